"""Random programs of collectives, as data that travels as JSON; shrinking leaves few steps of small tensors.

A program is a list of steps, each for all ranks:

- ``run``: operations that run at the same time (or one after another in mode ``eager``), ``times`` times with new
  values; each rank submits them in an order of its own;
- ``join``: rank r makes ``counts[r]`` rounds of reductions and then joins;
- ``add`` and ``remove``: of process sets; ``other`` is what one rank passes instead.

An operation may be spoiled: ``spoil`` says how, on which rank, and from which repetition on. What is right for each is
in ``fuzz_model``.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

from hypothesis import strategies as st

REDUCIBLE = ["float32", "int32", "float64", "float16", "bfloat16", "uint8", "int8", "int64"]
TRANSFERABLE = [*REDUCIBLE, "uint16", "int16", "bool"]
REDUCE_OPS = ["Sum", "Average", "Min", "Max", "Product"]
REDUCTIONS = ("allreduce", "grouped_allreduce", "reducescatter", "grouped_reducescatter")
GATHERS = ("allgather", "grouped_allgather", "sparse_allreduce")
VERBS = [*REDUCTIONS, *GATHERS, "broadcast", "alltoall", "barrier"]
MODES = ["session", "threads", "function", "eager", "eager_threads"]

few = st.integers(0, 4)
rows = st.one_of(few, st.sampled_from([700, 1501]))


def shapes(least: int) -> st.SearchStrategy[list[int]]:
    """Of at least ``least`` dimensions: small ones, empty ones, and some of several chunks."""
    small = st.lists(few, min_size=least, max_size=3)
    return st.one_of(small, small, st.sampled_from([[1500], [3, 2001], [5000]]))


def subsets(ranks: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, ranks - 1), min_size=1, max_size=ranks, unique=True).map(sorted)


@st.composite
def operations(draw: Any, name: str, members: list[int], ranks: int, may_spoil: bool, verbs: list[str]) -> dict:
    verb = draw(st.sampled_from(verbs))
    operation: dict[str, Any] = {"name": name, "verb": verb, "members": members, "spoil": None}
    operation["static"] = draw(st.booleans())  # whether placeholders have a static shape
    count = draw(st.integers(1, 3)) if verb.startswith("grouped") else 0 if verb == "barrier" else 1
    if verb in REDUCTIONS:
        dtype = st.sampled_from(REDUCIBLE)
    else:
        dtype = st.sampled_from(["float32", "float64"] if verb == "sparse_allreduce" else TRANSFERABLE)
    operation["dtypes"] = [draw(dtype) for _ in range(count)]
    if verb in GATHERS:
        # Trailing dimensions, and the rows of each member.
        operation["shapes"] = [draw(st.lists(few, max_size=2)) for _ in range(count)]
        operation["rows"] = [[draw(rows) for _ in members] for _ in range(count)]
    elif verb == "alltoall":
        operation["shapes"] = [draw(st.lists(few, max_size=2))]
        operation["equal"] = draw(st.booleans())
        if operation["equal"]:
            operation["splits"] = [[draw(few)] * len(members) for _ in members]
        else:
            operation["splits"] = [[draw(rows) for _ in members] for _ in members]
    else:
        operation["shapes"] = [draw(shapes(1 if "scatter" in verb else 0)) for _ in range(count)]
    if verb in REDUCTIONS or verb == "sparse_allreduce":
        operation["op"] = draw(st.sampled_from(REDUCE_OPS if verb != "sparse_allreduce" else REDUCE_OPS[:2]))
    if verb in REDUCTIONS:
        scales = [1.0, 0.1, 3.0] if all("float" in dtype for dtype in operation["dtypes"]) else [1.0, 2.0, 0.5]
        for factor in ("prescale", "postscale"):
            operation[factor] = draw(st.sampled_from(scales)) if operation["op"] != "Product" else 1.0
    if verb == "broadcast":
        operation["root"] = draw(st.sampled_from(members))
    if may_spoil and draw(st.integers(0, 2)) == 2:
        kinds = spoils(operation, ranks)
        if kinds:
            kind = draw(st.sampled_from(kinds))
            guilty = [rank for rank in range(ranks) if (rank in members) == (kind != "outsider")]
            operation["spoil"] = {"kind": kind, "rank": draw(st.sampled_from(guilty)), "from": 0}
    return operation


def spoils(operation: dict, ranks: int) -> list[str]:
    """The ways in which this operation can be spoiled."""
    verb, several = operation["verb"], len(operation["members"]) > 1
    kinds = ["outsider"] if len(operation["members"]) < ranks and verb != "barrier" else []
    if verb in ("barrier", "sparse_allreduce"):
        return kinds
    if several:
        kinds += ["dtype", "dimensions"]
        kinds += ["length"] if verb.startswith("grouped") else ["verb"] if verb != "broadcast" else ["root"]
        kinds += ["shape"] if operation["shapes"][0] else []
        kinds += ["op", "prescale", "postscale"] if verb in REDUCTIONS else []
    if verb == "broadcast":
        kinds += ["foreign root"]
    if verb in ("allgather", "alltoall", "reducescatter"):
        kinds += ["scalar"]
    if verb == "alltoall":
        # The only faults that are found on one rank alone, before any negotiation: they shall not be rare.
        kinds += 3 * ["too few sent", "too many sent", "negative split", "split too many"]
    return kinds


@st.composite
def runs(draw: Any, sets: list[list[int]], ranks: int) -> dict:
    mode = draw(st.sampled_from(MODES))
    world = list(range(ranks))
    found: list[dict] = []
    for i in range(draw(st.integers(1, 6))):
        # Several barriers in one function are chained in the order of tracing.
        verbs = VERBS[:-1] if mode == "function" and any(one["verb"] == "barrier" for one in found) else VERBS
        members = draw(st.sampled_from([world, *sets]))
        may_spoil = mode in ("threads", "eager", "eager_threads")  # a run of many ends with the first error
        found.append(draw(operations(f"n{i}", members, ranks, may_spoil, verbs)))
    times = draw(st.integers(1, 3))
    for one in found:
        if one["spoil"] and mode.startswith("eager"):  # a node of a graph cannot change
            one["spoil"]["from"] = draw(st.integers(0, times - 1))
    orders = [draw(st.permutations(range(len(found)))) for _ in world]
    if mode == "eager":
        orders = [orders[0]] * ranks
    return {
        "kind": "run",
        "mode": mode,
        "times": times,
        "operations": found,
        "orders": orders,
        "delays": [draw(st.sampled_from([0, 0, 5, 30])) for _ in world],  # milliseconds
    }


@st.composite
def programs(draw: Any, ranks: int) -> list[dict]:
    """Programs for a world of this many ranks."""
    sets: list[list[int]] = []
    steps: list[dict] = []
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["run", "run", "run", "join", "add", "add", "remove"]))
        if kind == "run":
            steps.append(draw(runs(sets, ranks)))
        elif kind == "join":
            counts = [draw(st.integers(0, 3)) for _ in range(ranks)]
            reduce_ops = draw(st.lists(st.sampled_from(REDUCE_OPS), min_size=1, max_size=3))
            dtypes = [draw(st.sampled_from(REDUCIBLE)) for _ in reduce_ops]
            gather = draw(st.booleans())
            steps.append({"kind": kind, "counts": counts, "ops": reduce_ops, "dtypes": dtypes, "gather": gather})
        elif kind == "add":
            new = draw(subsets(ranks))
            step: dict[str, Any] = {"kind": kind, "ranks": new, "other": None}
            if ranks > 1 and draw(st.integers(0, 3)) == 3:
                other = draw(subsets(ranks).filter(functools.partial(operator.ne, new)))
                step["other"] = {"rank": draw(st.integers(0, ranks - 1)), "ranks": other}
            elif new not in sets and len(new) < ranks:
                sets = [*sets, new]
            steps.append(step)
        elif sets:
            gone = draw(st.sampled_from(sets))
            sets = [one for one in sets if one != gone]
            steps.append({"kind": kind, "ranks": gone})
    return steps
