"""Elastic training that goes wrong in the way that the first argument names, in eager mode or (second) a session."""

from __future__ import annotations

import os
import signal
import sys
import time

import tensorflow as tf

import compat_hvd.tensorflow as hvd
from compat_hvd.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

way, mode = sys.argv[1:3]
v1 = tf.compat.v1
STEPS = 6

alone = hvd.ProcessSet([0])  # of rank 0 alone
hvd.init(process_sets=[alone] if way == "set" else None)
last = hvd.size() - 1


class Eager:
    def __init__(self) -> None:
        self.weight = tf.Variable(float(hvd.rank()))
        self.state = hvd.elastic.TensorFlowState([self.weight], step=hvd.rank())

    def step(self, number: int) -> None:
        self.weight.assign_add(hvd.allreduce(tf.constant(hvd.rank() + 1.0 + number), op=hvd.Sum, name="step"))

    def value(self) -> float:
        return float(self.weight.numpy())


class InSession:
    def __init__(self) -> None:
        weight = v1.get_variable("weight", initializer=float(hvd.rank()))
        self.number = v1.placeholder(tf.float32, [])
        total = hvd.allreduce(self.number, op=hvd.Sum, name="step")
        self.train = weight.assign_add(total)
        self.weight = weight
        self.session = v1.train.MonitoredTrainingSession()
        self.state = hvd.elastic.TensorFlowState(session=self.session, step=hvd.rank())

    def step(self, number: int) -> None:
        self.session.run(self.train, {self.number: hvd.rank() + 1.0 + number})

    def value(self) -> float:
        return float(self.session.run(self.weight))


if mode == "session":
    v1.disable_v2_behavior()
training = Eager() if mode == "eager" else InSession()
failures = 0


def go_wrong(state: hvd.elastic.TensorFlowState) -> None:
    global failures
    once = failures == 0 and state.step == 3 and hvd.rank() == last
    if way in ("recover", "set") and once:
        failures += 1
        raise HorovodInternalError("rank 1 lost patience")
    if way == "stuck" and once:
        failures += 1
        hvd.allreduce(1.0, name="alone")  # in eager mode, while the others are at another collective
    if way == "interrupt" and failures == 0 and state.step == 3:
        failures += 1
        raise HostsUpdatedInterrupt(skip_sync=False)
    if way == "hopeless" and state.step == 3:
        failures += 1
        raise HorovodInternalError("never works")
    if way == "die" and state.step == 3 and hvd.rank() == last and os.environ["COMPAT_HVD_RESTART"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "ended" and state.step == 3 and hvd.rank() == last:
        sys.exit(0)


@hvd.elastic.run
def train(state: hvd.elastic.TensorFlowState, steps: int) -> str:
    print(f"rank {hvd.rank()} starts at step {state.step} with {training.value()}", flush=True)
    while state.step < steps:
        training.step(state.step)
        if state.step % 2 == 1:
            state.step += 1
            state.commit()
        else:
            state.step += 1
        go_wrong(state)
    return "trained"


training.state.register_reset_callbacks([lambda: print(f"rank {hvd.rank()} reset", flush=True)])
begin = time.monotonic()
try:
    outcome = train(training.state, STEPS)
except HorovodInternalError as error:
    print(f"rank {hvd.rank()} gives up after {time.monotonic() - begin:.0f} s: {error}", flush=True)
    if way == "hopeless":
        print(f"{failures} failures", flush=True)
    raise
if way == "set":
    print(f"rank {hvd.rank()} finds the set of {alone.size()} again", flush=True)
print(f"rank {hvd.rank()} {outcome}: {training.value()} after step {training.state.step}", flush=True)
