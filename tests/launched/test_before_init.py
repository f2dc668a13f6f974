"""Before init() everything that needs the world is a ValueError, in graph and in eager mode (BR-04, first part)."""

from __future__ import annotations

import sys
import textwrap

from children import run

PROGRAM = textwrap.dedent(
    """
    import tensorflow as tf

    import compat_hvd.tensorflow as hvd


    def attempt(what, action):
        try:
            print(what, "returned", action())
        except Exception as error:
            print(what, type(error).__name__, error)


    def calls(where):
        attempt(f"{where} rank", hvd.rank)
        attempt(f"{where} size", hvd.size)
        attempt(f"{where} local_rank", hvd.local_rank)
        attempt(f"{where} local_size", hvd.local_size)
        attempt(f"{where} allreduce", lambda: hvd.allreduce(tf.constant(1.0)))
        attempt(f"{where} sparse", lambda: hvd.allreduce(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]))))
        attempt(f"{where} allgather", lambda: hvd.allgather(tf.constant([1.0])))
        attempt(f"{where} broadcast", lambda: hvd.broadcast(tf.constant(1.0), 0))
        attempt(f"{where} alltoall", lambda: hvd.alltoall(tf.constant([1.0])))
        attempt(f"{where} reducescatter", lambda: hvd.reducescatter(tf.constant([1.0])))
        attempt(f"{where} grouped_allreduce", lambda: hvd.grouped_allreduce([tf.constant(1.0)]))
        attempt(f"{where} grouped_allgather", lambda: hvd.grouped_allgather([tf.constant([1.0])]))
        attempt(f"{where} grouped_reducescatter", lambda: hvd.grouped_reducescatter([tf.constant([1.0])]))
        attempt(f"{where} join", hvd.join)
        attempt(f"{where} barrier", hvd.barrier)
        attempt(f"{where} broadcast_", lambda: hvd.broadcast_([tf.compat.v1.Variable(1.0)], 0))
        attempt(f"{where} broadcast_object", lambda: hvd.broadcast_object(1))
        attempt(f"{where} allgather_object", lambda: hvd.allgather_object(1))
        attempt(f"{where} add_process_set", lambda: hvd.add_process_set([0]))
        attempt(f"{where} remove_process_set", lambda: hvd.remove_process_set(hvd.global_process_set))
        attempt(f"{where} variables", lambda: hvd.broadcast_variables([tf.compat.v1.Variable(1.0)], 0))
        attempt(f"{where} session_config", hvd.session_config)


    assert not hvd.is_initialized()
    calls("eager")
    with tf.Graph().as_default():
        calls("graph")
        attempt("graph globals", lambda: hvd.broadcast_global_variables(0))
        w = tf.compat.v1.get_variable("w", [2])
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.AdamOptimizer())
        attempt("graph minimize", lambda: optimizer.minimize(tf.reduce_sum(w)))
    """
)


def test_every_call_is_a_value_error():
    ended = run([sys.executable, "-c", PROGRAM], timeout=120)
    assert ended.returncode == 0, ended
    lines = ended.stdout.splitlines()
    assert len(lines) == 2 * 22 + 2
    expected = "ValueError Horovod has not been initialized; use hvd.init()."
    assert [line for line in lines if not line.endswith(expected)] == []
