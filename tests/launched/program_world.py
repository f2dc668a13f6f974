"""Says who it is, synchronises a variable that starts as the rank, and makes one step."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

import compat_hvd.tensorflow as hvd

tf.disable_v2_behavior()
errors = 0
for question in (hvd.rank, hvd.size, hvd.local_rank, hvd.local_size):
    try:
        question()
    except ValueError:
        errors += 1
hvd.init()
hvd.init()

variable = tf.Variable([float(hvd.rank())])
step = hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(1.0)).minimize(3.0 * tf.reduce_sum(variable))
synchronise = hvd.broadcast_global_variables(0)
config = tf.ConfigProto()
config.gpu_options.visible_device_list = str(hvd.local_rank())
with tf.Session(config=config) as session:
    session.run(tf.global_variables_initializer())
    synchronise.run()
    session.run(step)
    value = session.run(variable).tolist()
kind = isinstance(synchronise, tf.Operation)
print(f"rank {hvd.rank()} of {hvd.size()}: {errors} errors before init, operation {kind}, variable {value}", flush=True)
