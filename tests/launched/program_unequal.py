"""Rank 0 makes 3 reductions and ends, the others want 5; of a fed value or of a constant."""

from __future__ import annotations

import sys

import tensorflow.compat.v1 as tf

import compat_hvd.tensorflow as hvd

tf.disable_v2_behavior()
hvd.init()
x = tf.constant([1.0]) if sys.argv[1] == "constant" else tf.placeholder(tf.float32, [1])
total = hvd.allreduce(x, op=hvd.Sum)
with tf.Session() as session:
    for number in range(3 if hvd.rank() == 0 else 5):
        value = session.run(total, {} if sys.argv[1] == "constant" else {x: [number + 1.0]})
        print(f"rank {hvd.rank()} reduction {number}: {value.tolist()}", flush=True)
print(f"rank {hvd.rank()} done", flush=True)
