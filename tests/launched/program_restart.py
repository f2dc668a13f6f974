"""Trains 12 steps with MonitoredTrainingSession, saved every 3rd; the rank in DIRECTORY/die is killed after step 7.

Batches depend on the global step and the rank only, so a run that was interrupted sees the same data.
"""

from __future__ import annotations

import os
import signal
import sys

import numpy as np
import tensorflow.compat.v1 as tf

import compat_hvd.tensorflow as hvd

STEPS, BATCH = 12, 4

tf.disable_v2_behavior()
hvd.init()
directory = sys.argv[1]
with open(os.path.join(directory, "die"), encoding="utf-8") as plan:
    doomed = plan.read()
attempt = int(os.environ["COMPAT_HVD_RESTART"])


def batch(step):
    random = np.random.default_rng([step, hvd.rank()])
    x = random.standard_normal([BATCH, 3]).astype(np.float32)
    return x, x @ np.float32([1.0, -2.0, 3.0]) + 0.5


class Die(tf.train.SessionRunHook):
    """Kills this process as the machine might, once."""

    steps = 0

    def after_run(self, run_context, run_values):
        self.steps += 1
        if attempt == 0 and self.steps == 7 and doomed == str(hvd.rank()):
            os.kill(os.getpid(), signal.SIGKILL)


tf.set_random_seed(hvd.rank())
x = tf.placeholder(tf.float32, [BATCH, 3])
y = tf.placeholder(tf.float32, [BATCH])
w = tf.get_variable("w", [3, 1])
b = tf.get_variable("b", [1], initializer=tf.zeros_initializer())
global_step = tf.train.get_or_create_global_step()
loss = tf.reduce_mean(tf.square(tf.squeeze(x @ w, 1) + b - y))
train = hvd.DistributedOptimizer(tf.train.AdamOptimizer(0.1)).minimize(loss, global_step=global_step)

with tf.train.MonitoredTrainingSession(
    checkpoint_dir=os.path.join(directory, "saved") if hvd.rank() == 0 else None,
    save_checkpoint_steps=3,
    save_checkpoint_secs=None,
    hooks=[hvd.BroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(last_step=STEPS), Die()],
    config=hvd.session_config(),
) as session:
    step = session.run_step_fn(lambda step_context: step_context.session.run(global_step))
    print(f"attempt {attempt} begins at step {step}", flush=True)
    while not session.should_stop():
        features, labels = batch(step)
        session.run(train, {x: features, y: labels})
        step += 1
        weights = session.run_step_fn(lambda step_context: step_context.session.run([w, b]))
print(f"weights {weights[0].tobytes().hex()}{weights[1].tobytes().hex()}", flush=True)
