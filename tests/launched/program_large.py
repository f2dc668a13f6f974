"""Collectives of more than 2^31 bytes, or elements, on two ranks. The argument names the case.

The values repeat after a prime number of elements, so that whatever is displaced by a multiple of a chunk, of 2^31 or
of 2^32 does not fit. They are made in the graph and looked at in pieces: a rank holds one or two tensors of the full
size.
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

import compat_hvd.tensorflow as hvd

PERIOD = 999_983
case = sys.argv[1]
tf.disable_v2_behavior()
hvd.init()
rank = hvd.rank()


def pattern(dtype, of_rank):
    return ((np.arange(PERIOD) * 31 + 17 * of_rank) % 101).astype(dtype)


def repeated(dtype, times):
    """The pattern of this rank, ``times`` times; computed when it runs."""
    return tf.tile(tf.placeholder_with_default(pattern(dtype, rank), [None]), [times])


def run(tensors):
    with tf.Session(config=hvd.session_config(inter_op_parallelism_threads=1)) as session:
        return session.run(tensors)


def check(result, periods):
    """Compares consecutive periods of the result with the arrays given, each as often as it says."""
    rows = np.reshape(result, (-1, PERIOD))
    expected = [array for array, times in periods for _ in range(times)]
    assert len(rows) == len(expected), (len(rows), len(expected))
    for number, (row, right) in enumerate(zip(rows, expected)):
        assert np.array_equal(row, right), f"period {number} of {len(rows)} is wrong"
    print(f"rank {rank}: {result.nbytes} bytes of {result.dtype} are right", flush=True)


total = pattern(np.int64, 0) + pattern(np.int64, 1)
if case == "allreduce":
    # 3 GiB
    check(run(hvd.allreduce(repeated(np.float32, 806), op=hvd.Sum)), [(total.astype(np.float32), 806)])
elif case == "allgather":
    result = run(hvd.allgather(repeated(np.int8, 1075 + rank)))
    assert result.size > 2**31
    check(result, [(pattern(np.int8, 0), 1075), (pattern(np.int8, 1), 1076)])
elif case == "broadcast":
    check(run(hvd.broadcast(repeated(np.uint8, 2150), 1)), [(pattern(np.uint8, 1), 2150)])
elif case == "reducescatter":
    result = run(hvd.reducescatter(repeated(np.uint8, 2150), op=hvd.Max))
    check(result, [(np.maximum(pattern(np.uint8, 0), pattern(np.uint8, 1)), 1075)])
elif case == "alltoall":
    # More than half goes to rank 1: it receives more than 2^31 rows.
    output, received = hvd.alltoall(repeated(np.int8, 1500), np.array([400, 1100]) * PERIOD)
    output, received = run([output, received])
    mine = 1100 if rank else 400
    assert received.tolist() == [mine * PERIOD] * 2
    check(output, [(pattern(np.int8, 0), mine), (pattern(np.int8, 1), mine)])
