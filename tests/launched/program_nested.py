"""A py_func that itself runs a collective, in sessions with few or no threads of their own."""

import sys

import tensorflow.compat.v1 as tf

import compat_hvd.tensorflow as hvd

tf.disable_v2_behavior()
hvd.init()
inner_graph = tf.Graph()
with inner_graph.as_default():
    inner_fed = tf.placeholder(tf.float32, [])
    inner_sum = hvd.allreduce(inner_fed, op=hvd.Sum, name="inner")
inner_session = tf.Session(graph=inner_graph)


def reduce_inside(value):
    return inner_session.run(inner_sum, {inner_fed: value})


fed = tf.placeholder(tf.float32, [])
outer = hvd.allreduce(fed, op=hvd.Sum, name="outer")
nested = tf.py_func(reduce_inside, [outer * (hvd.rank() + 1.0)], tf.float32)
again = hvd.allreduce(nested + hvd.rank(), op=hvd.Sum, name="again")
threads = int(sys.argv[1])
with tf.Session(config=hvd.session_config(inter_op_parallelism_threads=threads)) as session:
    for step in range(5):
        result = session.run(again, {fed: hvd.rank() + step})
        size = hvd.size()
        ranks = size * (size - 1) / 2
        expected = size * (ranks + size * step) * (ranks + size) + ranks
        assert result == expected, (result, expected)
print(f"rank {hvd.rank()} right", flush=True)
