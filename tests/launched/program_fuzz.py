"""Runs random programs as one rank: program-0.json, program-1.json, … as they appear in the folder given.

Answers each with outcome-NUMBER-RANK.json, a list of what was wrong. A program also runs by itself, as program-0.json
of a folder that holds nothing else; the ranks then end after it when "once" follows.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fuzz_model as model
import numpy as np
import tensorflow as tf

import compat_hvd.tensorflow as hvd

v1 = tf.compat.v1
HANG_SECONDS = 60


def collective(operation, tensors, process_set):
    """Builds the operation; returns its results and, of a barrier in a graph, the op to run."""
    verb, how = operation["verb"], {"name": operation["name"], "process_set": process_set}
    if "op" in operation and verb not in ("broadcast",):
        how["op"] = getattr(hvd, operation["op"])
    if "prescale" in operation and verb != "broadcast":
        how.update(prescale_factor=operation["prescale"], postscale_factor=operation["postscale"])
    if verb == "barrier":
        return [], hvd.barrier(**how)
    if verb == "broadcast":
        return [hvd.broadcast(tensors[0], operation["root"], **how)], None
    if verb == "alltoall":
        result = hvd.alltoall(*tensors, **how)
        return list(result) if len(tensors) > 1 else [result], None
    if verb == "sparse_allreduce":
        slices = hvd.allreduce(tf.IndexedSlices(*tensors), **how)
        return [slices.values, slices.indices], None
    if verb == "grouped_reducescatter":
        return hvd._grouped_reducescatter(tensors, **how), None
    if verb.startswith("grouped"):
        return getattr(hvd, verb)(tensors, **how), None
    return [getattr(hvd, verb)(tensors[0], **how)], None


class Outcome:
    """What came of one operation: its results, or the name of its exception."""

    def __init__(self, run):
        self.results, self.error = [], None
        try:
            # A bfloat16 scalar of TensorFlow is no array for np.asarray.
            self.results = [np.asarray(one.numpy() if hasattr(one, "numpy") else one) for one in run()]
        except Exception as error:
            self.error, self.text = type(error).__name__, str(error).splitlines()[0]

    def fault(self, right):
        if right.errors:
            got = f"{self.error}: {self.text}" if self.error else f"results {self.results}"
            return "" if self.error in right.errors else f"should raise {' or '.join(right.errors)}, but gave {got}"
        return f"raised {self.error}: {self.text}" if self.error else model.difference(self.results, right)


class Rank:
    def __init__(self):
        hvd.init()
        self.rank = hvd.rank()
        self.sets = {}
        self.faults = []

    def run(self, program):
        self.faults = []
        for number, step in enumerate(program):
            getattr(self, f"step_{step['kind']}")(f"step {number} ({step['kind']})", step)
        for ranks in sorted(self.sets):
            hvd.remove_process_set(self.sets[ranks])
        self.sets = {}
        return self.faults

    def check(self, where, fault):
        if fault:
            self.faults.append(f"rank {self.rank}: {where}: {fault}")

    def set_of(self, ranks):
        return self.sets.get(tuple(ranks), hvd.global_process_set)

    # ---- Process sets ----

    def step_add(self, where, step):
        mine = step["other"]["ranks"] if step["other"] and step["other"]["rank"] == self.rank else step["ranks"]
        there = [*self.sets, tuple(range(hvd.size()))]
        refused = bool(step["other"]) or tuple(step["ranks"]) in there
        try:
            added = hvd.add_process_set(mine)
        except ValueError as error:
            return self.check(where, "" if refused else f"raised {error}")
        self.sets[tuple(mine)] = added
        return self.check(where, "should raise ValueError" if refused else "")

    def step_remove(self, where, step):
        self.check(where, "" if hvd.remove_process_set(self.sets.pop(tuple(step["ranks"]))) else "returned False")

    # ---- Operations at the same time ----

    def step_run(self, where, step):
        time.sleep(step["delays"][self.rank] / 1000)
        order = [step["operations"][i] for i in step["orders"][self.rank]]
        mine = [one for one in order if model.takes_part(one, self.rank)]
        if not step["mode"].startswith("eager"):
            mine = [model.spoiled(one, self.rank) for one in mine]
        if mine:
            getattr(self, step["mode"])(where, mine, step)

    def judge(self, where, step, operation, moment, outcome):
        original = next(one for one in step["operations"] if one["name"] == operation["name"])
        right = model.expected(model.at(original, moment), self.rank, moment, step["mode"].startswith("eager"))
        self.check(f"{where} {step['mode']} {operation['name']} time {moment}", outcome.fault(right))

    def eager(self, where, mine, step, at_once=map):
        def work(operation):
            for moment in range(step["times"]):
                now = model.at(operation, moment)
                if not model.takes_part(now, self.rank):
                    continue
                mine = model.spoiled(now, self.rank)
                arrays = model.inputs(mine, self.rank, moment)
                outcome = Outcome(lambda: collective(mine, arrays, self.set_of(mine["members"]))[0])  # noqa: B023
                self.judge(where, step, operation, moment, outcome)

        list(at_once(work, mine))

    def eager_threads(self, where, mine, step):
        with ThreadPoolExecutor(len(mine)) as pool:
            self.eager(where, mine, step, pool.map)

    def function(self, where, mine, step):
        @tf.function
        def together(tensors):
            return [collective(one, tensors[one["name"]], self.set_of(one["members"]))[0] for one in mine]

        for moment in range(step["times"]):
            arrays = {one["name"]: [tf.constant(a) for a in model.inputs(one, self.rank, moment)] for one in mine}
            outcome = Outcome(lambda: [np.asarray(0)])
            try:
                results = together(arrays)
            except Exception as error:
                return self.check(f"{where} function time {moment}", f"raised {type(error).__name__}: {error}")
            for operation, values in zip(mine, results):
                outcome.results = [value.numpy() for value in values]
                self.judge(where, step, operation, moment, outcome)
        return None

    def graph(self, mine):
        """Fetches and placeholders of each operation, in the default graph."""
        built = {}
        for one in mine:
            scalar = (one["spoil"] or {}).get("kind") == "scalar"
            placeholders = [
                v1.placeholder(array.dtype, array.shape if one["static"] and not scalar else None)
                for array in model.inputs(one, self.rank, 0)
            ]
            built[one["name"]] = (*collective(one, placeholders, self.set_of(one["members"])), placeholders)
        return built

    def fed(self, built, mine, moment):
        """Fetches of these operations, and what to feed for them."""
        fetches, feed = [], {}
        for one in mine:
            results, barrier, placeholders = built[one["name"]]
            fetches.append([results, [] if barrier is None else barrier])
            feed.update(zip(placeholders, model.inputs(one, self.rank, moment)))
        return fetches, feed

    def session(self, where, mine, step):
        with tf.Graph().as_default(), v1.Session() as session:
            built = self.graph(mine)
            for moment in range(step["times"]):
                try:
                    results = session.run(*self.fed(built, mine, moment))
                except Exception as error:
                    return self.check(f"{where} session time {moment}", f"raised {type(error).__name__}: {error}")
                for operation, (values, _) in zip(mine, results):
                    self.judge(where, step, operation, moment, Outcome(lambda values=values: values))
        return None

    def threads(self, where, mine, step):
        with tf.Graph().as_default(), v1.Session() as session:
            built = self.graph(mine)

            def work(operation):
                for moment in range(step["times"]):
                    fetches, feed = self.fed(built, [operation], moment)
                    outcome = Outcome(lambda: session.run(fetches, feed)[0][0])  # noqa: B023
                    self.judge(where, step, operation, moment, outcome)

            with ThreadPoolExecutor(len(mine)) as pool:
                list(pool.map(work, mine))

    # ---- Joins ----

    def step_join(self, where, step):
        counts = step["counts"]
        for moment in range(counts[self.rank]):
            there = [rank for rank, count in enumerate(counts) if count > moment]
            for i, (op, dtype) in enumerate(zip(step["ops"], step["dtypes"])):
                sent = [model.values([5], dtype, moment, rank, op == "Product") for rank in there]
                result, tolerance = model.reduced(sent, dtype, op)
                mine = sent[there.index(self.rank)]
                outcome = Outcome(lambda: [hvd.allreduce(mine, op=getattr(hvd, op), name=f"j{i}")])  # noqa: B023
                self.check(f"{where} j{i} round {moment}", outcome.fault(model.Expected([result], [tolerance])))
            if step["gather"]:
                outcome = Outcome(lambda: [hvd.allgather(np.array([self.rank]), name="jg")])
                right = model.exact([np.array(there)])
                if len(there) < len(counts):
                    right = model.Expected([], [], model.DISAGREEMENT)
                self.check(f"{where} gather round {moment}", outcome.fault(right))
        last = int(hvd.join())
        self.check(where, "" if counts[last] == max(counts) else f"rank {last} cannot have been the last to join")


def read(path):
    """The program in this file, as soon as it is there."""
    while not path.exists():
        time.sleep(0.005)
    return json.loads(path.read_text())


def main(folder, once):
    rank = Rank()
    number = 0
    while True:
        program = read(folder / f"program-{number}.json")
        if program is None:
            return
        faulthandler.dump_traceback_later(HANG_SECONDS)
        faults = rank.run(program)
        faulthandler.cancel_dump_traceback_later()
        outcome = folder / f"outcome-{number}-{rank.rank}.json"
        outcome.with_suffix(".part").write_text(json.dumps(faults))
        os.replace(outcome.with_suffix(".part"), outcome)
        if once:
            print("\n".join(faults) or f"rank {rank.rank}: all is right", flush=True)
            return
        number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), "once" in sys.argv[2:])
