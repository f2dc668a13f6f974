"""Trains with Adam; with ``alone`` without compat_hvd, which cannot even be imported then.

Arguments: folder of the checkpoint, the last step, and ``alone`` or the number of passes that are aggregated.
"""

from __future__ import annotations

import sys
import zlib

import tensorflow.compat.v1 as tf

folder, last_step, passes = sys.argv[1], int(sys.argv[2]), sys.argv[3]
tf.disable_v2_behavior()
rank, hooks = 0, [tf.train.StopAtStepHook(last_step=last_step)]
optimizer = tf.train.AdamOptimizer(0.1)
if passes == "alone":
    sys.modules["compat_hvd"] = None
else:
    import compat_hvd.tensorflow as hvd

    hvd.init()
    rank = hvd.rank()
    optimizer = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=int(passes))
    hooks.append(hvd.BroadcastGlobalVariablesHook(0))

w = tf.get_variable("w", [3], initializer=tf.random_normal_initializer())
global_step = tf.train.get_or_create_global_step()
train = optimizer.minimize((rank + 1.0) * tf.reduce_sum(tf.square(w - 1.0)), global_step=global_step)


def report(when, session):
    values = session.run(tf.global_variables())
    names = " ".join(variable.op.name for variable in tf.global_variables())
    print(f"rank {rank} {when}: crc {zlib.crc32(b''.join(v.tobytes() for v in values))} of {names}", flush=True)


class Report(tf.train.SessionRunHook):
    def after_create_session(self, session, coord):
        report("start", session)

    def end(self, session):
        report("end", session)


hooks.append(Report())
with tf.train.MonitoredTrainingSession(checkpoint_dir=folder if rank == 0 else None, hooks=hooks) as session:
    while not session.should_stop():
        session.run(train)
