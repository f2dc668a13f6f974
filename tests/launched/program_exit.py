"""A job in which one rank ends in the way that the first argument names, while the others do what the second names."""

import os
import signal
import sys
import threading
import time

import numpy as np
import tensorflow.compat.v1 as tf

import compat_hvd.tensorflow as hvd

way, others = sys.argv[1:3]

tf.disable_v2_behavior()
hvd.init()
x = tf.placeholder(tf.float32, [3])
total = hvd.allreduce(x, op=hvd.Sum, name="total")
session = tf.Session()


def reduce():
    values = session.run(total, {x: np.full(3, hvd.rank() + 1.0)})
    assert values[0] == hvd.size() * (hvd.size() + 1) / 2, values


def end():
    """What the last rank does."""
    if way == "raise":
        raise KeyError(f"the reason of rank {hvd.rank()}")
    if way == "raise_with_own_excepthook":
        sys.excepthook = lambda kind, value, trace: print("own hook saw", repr(value), file=sys.stderr)
        raise KeyError(f"the reason of rank {hvd.rank()}")
    if way == "raise_with_stuck_thread":
        stuck = tf.placeholder(tf.float32, [])
        alone = hvd.allreduce(stuck, op=hvd.Sum, name="alone")
        threading.Thread(target=lambda: session.run(alone, {stuck: 1.0})).start()
        time.sleep(1)
        raise KeyError(f"the reason of rank {hvd.rank()}")
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "os_exit":
        os._exit(0)
    if way == "sys_exit":
        sys.exit(0)
    if way == "fork":
        child = os.fork()
        if child == 0:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0


for _ in range(3):
    reduce()
print("rank", hvd.rank(), "pid", os.getpid(), flush=True)
if hvd.rank() == hvd.size() - 1:
    end()
if others == "reduce" or way == "fork":
    for _ in range(5):
        reduce()
elif others == "compute":
    # Long enough that only being told can end it in time.
    until = time.time() + 100
    while time.time() < until:
        sum(range(100000))
elif others == "stagger":
    time.sleep(hvd.rank() * 1.5)
print("done", hvd.rank(), flush=True)
