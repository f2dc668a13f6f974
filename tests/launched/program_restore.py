"""Trains to step 5 from the checkpoint of rank 0; each rank reports the bytes of all variables at start and end."""

from __future__ import annotations

import os
import sys
import zlib

import tensorflow.compat.v1 as tf

import compat_hvd.tensorflow as hvd

tf.disable_v2_behavior()
hvd.init()


def say(text):
    print(f"rank {hvd.rank()} {text}", flush=True)


class Report(tf.train.SessionRunHook):
    def begin(self):
        self._variables = tf.global_variables()
        self._step = tf.train.get_global_step()

    def _report(self, when, session):
        values = session.run(self._variables)
        crc = zlib.crc32(b"".join(value.tobytes() for value in values))
        say(f"{when}: step {session.run(self._step)}, {len(values)} globals, crc {crc}")

    def after_create_session(self, session, coord):
        self._report("start", session)

    def end(self, session):
        self._report("end", session)


checkpoints = os.path.join(sys.argv[1], "saved")
current = os.path.join(sys.argv[1], f"cwd{hvd.rank()}")
os.makedirs(current, exist_ok=True)
os.chdir(current)

tf.set_random_seed(1 + hvd.rank())
w = tf.get_variable("w", [3], initializer=tf.random_normal_initializer())
global_step = tf.train.get_or_create_global_step()
loss = (hvd.rank() + 1.0) * tf.reduce_sum(tf.square(w - 1.0))
train = hvd.DistributedOptimizer(tf.train.AdamOptimizer(0.1)).minimize(loss, global_step=global_step)

hooks = [hvd.BroadcastGlobalVariablesHook(0), Report(), tf.train.StopAtStepHook(last_step=5)]
steps = 0
with tf.train.MonitoredTrainingSession(
    checkpoint_dir=checkpoints if hvd.rank() == 0 else None, hooks=hooks, config=hvd.session_config()
) as session:
    while not session.should_stop():
        session.run(train)
        steps += 1
say(f"made {steps} steps")
