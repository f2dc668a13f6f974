"""Ranks that wait for each other, or only seem to. The argument names the case; every rank prints what came of it."""

import os
import signal
import sys
import time

import tensorflow.compat.v1 as tf

import compat_hvd.tensorflow as hvd

case = sys.argv[1]
tf.disable_v2_behavior()
hvd.init()
x = tf.placeholder(tf.float32, [])


def summed(name, value):
    return hvd.allreduce(value, op=hvd.Sum, name=name)


def after(first, make):
    with tf.control_dependencies([first]):
        return make()


def compute(value):
    until = time.time() + 16
    while time.time() < until:
        sum(range(10000))
    return value


def outcome(fetches):
    """Runs one step and says how it ended."""
    with tf.Session() as session:
        start = time.time()
        try:
            text = f"gave {[float(value) for value in session.run(fetches, {x: hvd.rank() + 1.0})]}"
        except tf.errors.OpError as error:
            text = f"raised {type(error).__name__}: " + error.message.replace("\n", " ")
        print(f"rank {hvd.rank()} after {time.time() - start:.0f} s {text}", flush=True)


if case == "step_fails_elsewhere":
    # Rank 1 has submitted "a" when another op of its step fails, so that it never comes to "b", for which rank 0 waits
    # before it submits "a". TensorFlow ends rank 1's step only when "a" is done.
    if hvd.rank() == 0:
        b = summed("b", x)
        outcome([after(b, lambda: summed("a", x)), b])
    else:
        failing = tf.debugging.check_numerics(x / 0.0, "on purpose")
        outcome([summed("a", x), after(failing, lambda: summed("b", x))])
elif case == "opposite_orders_with_work_between":
    # Healthy: both compute for long after their first collective was submitted, and then come to the other one.
    first, second = ("a", "b") if hvd.rank() == 0 else ("b", "a")
    work = tf.py_func(compute, [x], tf.float32)
    outcome([summed(first, x), summed(second, work)])
elif case == "kill_under_monitored_session":
    total = summed("total", x)
    with tf.train.MonitoredTrainingSession() as session:
        for step in range(1000):
            if step == 3 and hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            session.run(total, {x: 1.0})
    print(f"rank {hvd.rank()} took the death of rank 1 for the end of its work", flush=True)
elif case == "limit":
    if hvd.rank() == 0:
        outcome([summed("lonely", x)])
    else:
        time.sleep(9)  # well after the limit of 6 s, and well before what waits from then on reaches it
        outcome([summed("lonely", x)])
    outcome([summed("good", x)])
