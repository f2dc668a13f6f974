"""A job with a timeline. The first argument names the case, the second the file or folder for what is written."""

import os
import signal
import sys
import threading
import time

import numpy as np
import tensorflow.compat.v1 as tf

import compat_hvd.tensorflow as hvd

case, place = sys.argv[1], sys.argv[2]


def refusal(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return "nothing"


tf.disable_v2_behavior()
if case == "errors":
    print("before init:", refusal(lambda: hvd.start_timeline(place)))
    print("before init:", refusal(hvd.stop_timeline))
elif case in ("dynamic", "switch"):
    os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"
else:
    os.environ["HOROVOD_TIMELINE"] = place
sets = []
if case == "mixed":
    os.environ["HOROVOD_TIMELINE_MARK_CYCLES"] = "1"
    sets = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([1, 2])]
hvd.init(process_sets=sets)
x = tf.placeholder(tf.float32, [None])
session = tf.Session()


def reducer(name, **more):
    """Returns what makes one step."""
    total = hvd.allreduce(x, op=hvd.Sum, name=name, **more)
    return lambda: session.run(total, {x: np.full(5, hvd.rank() + 1.0)})


def alpha_and_beta(steps=3):
    alpha = hvd.allreduce(x, op=hvd.Sum, name="alpha")
    beta = hvd.broadcast(x, 0, name="beta")
    for _ in range(steps):
        values = session.run(alpha, {x: np.full(5, hvd.rank() + 1.0)})
        assert values[0] == hvd.size() * (hvd.size() + 1) / 2, values
        session.run(beta, {x: np.zeros(7)})


if case == "steps":
    alpha_and_beta()
elif case == "errors":
    print("not set:", refusal(lambda: hvd.start_timeline(place)))
    print("not set:", refusal(hvd.stop_timeline))
elif case == "dynamic":
    steps = reducer("before")
    steps()
    for number in range(2):
        hvd.start_timeline(os.path.join(place, f"{number}.json"), mark_cycles=number == 1)
        steps = reducer(f"during{number}")
        steps()
        hvd.barrier()
        hvd.stop_timeline()
        hvd.stop_timeline()
        hvd.barrier()
    steps = reducer("after")
    steps()
elif case == "switch":
    # Another thread changes the file, or has none for a while, as fast as it can.
    done = threading.Event()

    def switch():
        number = 0
        while not done.is_set():
            hvd.start_timeline(os.path.join(place, f"{number}.json"))
            number += 1
            time.sleep(0.01)

    hvd.start_timeline(os.path.join(place, "first.json"))
    thread = threading.Thread(target=switch)
    thread.start()
    hvd.barrier()
    steps = [reducer(f"tensor{number}") for number in range(5)]
    for _ in range(100):
        for step in steps:
            step()
    hvd.barrier()
    done.set()
    thread.join()
    hvd.stop_timeline()
elif case == "mixed":
    length = 5 if hvd.rank() == 0 else 6
    bad = hvd.allreduce(x, op=hvd.Sum, name="bad")
    try:
        session.run(bad, {x: np.zeros(length)})
    except tf.errors.FailedPreconditionError:
        print("rank", hvd.rank(), "got the error")
    for process_set in sets:
        if process_set.included():
            reducer(f"set{process_set.process_set_id}", process_set=process_set)()
    hvd.broadcast_object({"rank": hvd.rank()}, 0, name='quote " backslash \\ line\nend Grüße 🙂')
    step = reducer("uneven")
    for _ in range(1 + 2 * hvd.rank()):
        step()
    session.run(hvd.join())
elif case == "raise":
    alpha_and_beta()
    if hvd.rank() == hvd.size() - 1:
        raise KeyError("on purpose")
    reducer("lonely")()
elif case == "raise_on_rank_0":
    alpha_and_beta()
    if hvd.rank() == 0:
        raise KeyError("on purpose")
    reducer("lonely")()
elif case == "kill":
    # Rank 0 dies in the middle of its work; what is written stays readable.
    step = reducer("endless")
    begin = time.time()
    while True:
        step()
        if hvd.rank() == 0 and time.time() > begin + 1.234:
            os.kill(os.getpid(), signal.SIGKILL)
elif case == "init":
    pass
else:
    raise ValueError(case)
print("rank", hvd.rank(), "has done its work", flush=True)
