"""What thousands of collectives leave behind in memory. The argument names the case; prints the growth in bytes."""

import sys

import numpy as np
import tensorflow as tf

import compat_hvd.tensorflow as hvd

v1 = tf.compat.v1
COUNT, ELEMENTS = 3000, 1000
case = sys.argv[1]
hvd.init()
rank, size = hvd.rank(), hvd.size()


def resident():
    with open("/proc/self/status", encoding="ascii") as file:
        (line,) = [line for line in file if line.startswith("VmRSS:")]
    return int(line.split()[1]) << 10


def expect_mismatch(run):
    try:
        run()
    except tf.errors.FailedPreconditionError:
        return
    raise AssertionError("ranks that disagree must get an error")


def in_graph():
    """One collective of one name in a session."""
    x = v1.placeholder(tf.float32, [None])
    total = hvd.allreduce(x, op=hvd.Sum, name="x")
    session = v1.Session()

    def many(count):
        for _ in range(count):
            assert session.run(total, {x: np.full(ELEMENTS, rank, np.float32)})[-1] == size * (size - 1) / 2

    return many


def in_eager_mode():
    def many(count):
        for _ in range(count):
            assert hvd.allreduce(np.full(ELEMENTS, rank, np.float32), op=hvd.Sum).numpy()[-1] == size * (size - 1) / 2

    return many


def of_many_names():
    """Each iteration of a loop has a name of its own, and more of them than are remembered; the graph does not grow."""
    count = v1.placeholder(tf.int32, [])
    x = v1.placeholder(tf.float32, [ELEMENTS])
    _, last = tf.while_loop(
        lambda i, _: i < count, lambda i, x: (i + 1, hvd.allreduce(x, name="x")), (0, x), parallel_iterations=1
    )
    session = v1.Session()

    def many(number):
        result = session.run(last, {count: number, x: np.full(ELEMENTS, rank, np.float32)})
        assert result[-1] == (size - 1) / 2

    return many


def of_mismatches():
    x = v1.placeholder(tf.float32, [None])
    total = hvd.allreduce(x, op=hvd.Sum, name="x")
    session = v1.Session()

    def many(count):
        for _ in range(count):
            expect_mismatch(lambda: session.run(total, {x: np.ones(ELEMENTS + rank, np.float32)}))

    return many


def of_mismatches_in_eager_mode():
    def many(count):
        for _ in range(count):
            expect_mismatch(lambda: hvd.allreduce(np.ones(ELEMENTS + rank, np.float32)))

    return many


def of_groups_and_gathers():
    """What the other kinds of collectives keep; rows change from step to step."""
    x = v1.placeholder(tf.float32, [None, 10])
    fetches = [
        hvd.grouped_allreduce([x[:5], x[5:10]], name="group"),
        hvd.allgather(x, name="rows"),
        hvd.alltoall(x, tf.one_hot(0, size, tf.shape(x)[0], 0, dtype=tf.int32), name="sent"),
        hvd.broadcast(x[:7], 0, name="root"),
        hvd.reducescatter(x[:10], name="share"),
    ]
    session = v1.Session()

    def many(count):
        for step in range(count // len(fetches)):
            session.run(fetches, {x: np.ones((100 + (step + rank) % 7, 10), np.float32)})

    return many


if "eager" not in case:
    v1.disable_eager_execution()
    v1.disable_control_flow_v2()
run_many = globals()[case]()
run_many(COUNT // 2)  # what grows only once: caches, pools of TensorFlow and of the allocator
before = resident()
run_many(COUNT)
print(f"rank {rank} grew by {resident() - before} bytes", flush=True)
