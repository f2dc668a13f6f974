"""Checkpoints of a wrapped optimizer are those of the optimizer alone, with aggregation as well."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow as tf
from world import RANK, SIZE, allgather

v1 = tf.compat.v1

MEAN = (SIZE + 1) / 2  # of r + 1
LossScale = v1.train.experimental.MixedPrecisionLossScaleOptimizer
OPTIMIZERS = {
    "adam": lambda: v1.train.AdamOptimizer(0.5),
    "momentum": lambda: v1.train.MomentumOptimizer(0.5, 0.5),
    "loss scale": lambda: v1.train.experimental.MixedPrecisionLossScaleOptimizer(
        v1.train.AdamOptimizer(0.5), "dynamic"
    ),
}
each_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
each_wrapper = pytest.mark.parametrize("passes", [None, 1, 2], ids=["alone", "wrapped", "aggregated"])


@pytest.fixture(params=[1, 2], ids=["control flow 1", "control flow 2"])
def control_flow(request):
    if request.param == 2:
        yield
        return
    v1.disable_control_flow_v2()
    yield
    v1.enable_control_flow_v2()


def wrap(hvd, optimizer, passes):
    return hvd.DistributedOptimizer(optimizer, backward_passes_per_step=passes) if passes else optimizer


def model(optimizer):
    """A step of which rank r's gradient is r + 1, within scopes; the optimizer makes its variables there."""
    with v1.variable_scope("net"):
        weight = v1.get_variable("w", initializer=np.zeros(2, np.float32))
    slope = v1.placeholder(tf.float32, [])
    with tf.name_scope("train"):
        step = optimizer.minimize(slope * tf.reduce_sum(weight), global_step=v1.train.get_or_create_global_step())
    return weight, slope, step


@pytest.mark.usefixtures("control_flow")
@each_optimizer
def test_the_names_are_those_of_the_optimizer_alone(hvd, make):
    names = []
    for passes in (None, 1, 2):
        with tf.Graph().as_default():
            model(wrap(hvd, make(), passes))
            names.append([v.op.name for v in v1.global_variables()])
    assert names[0] == names[1] == names[2]
    assert len(names[0]) > 2


@each_optimizer
def test_saved_with_aggregation_restored_alone(hvd, make, tmp_path):
    path = os.path.join(tmp_path, "model")
    with tf.Graph().as_default(), v1.Session() as session:
        _, slope, step = model(wrap(hvd, make(), 2))
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for _ in range(4):
            session.run(step, {slope: RANK + 1.0})
        saved = session.run(v1.global_variables())
        v1.train.Saver().save(session, path)
    with tf.Graph().as_default(), v1.Session() as session:
        model(make())
        v1.train.Saver().restore(session, path)
        restored = session.run(v1.global_variables())
    assert len(saved) == len(tf.train.list_variables(path))
    for before, after in zip(saved, restored):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("reader", [None, 1, 2], ids=["alone", "wrapped", "aggregated"])
@each_wrapper
@each_optimizer
def test_object_based_checkpoints(hvd, make, passes, reader, tmp_path):
    """tf.train.Checkpoint sees slots and the optimizer's other variables; what one writes any other reads."""
    path = os.path.join(tmp_path, "model")
    with tf.Graph().as_default(), v1.Session() as session:
        optimizer = wrap(hvd, make(), passes)
        weight, slope, step = model(optimizer)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for _ in range(2):
            session.run(step, {slope: RANK + 1.0})
        path = tf.train.Checkpoint(optimizer=optimizer, weight=weight).save(path)
        saved = dict(zip((v.op.name for v in v1.global_variables()), session.run(v1.global_variables())))
    with tf.Graph().as_default(), v1.Session() as session:
        optimizer = wrap(hvd, make(), reader)
        checkpoint = tf.train.Checkpoint(optimizer=optimizer)
        # Before the variables exist: the restoration waits for each of them.
        status = checkpoint.restore(path)
        weight, _, _ = model(optimizer)
        checkpoint.weight = weight
        status.assert_existing_objects_matched().run_restore_ops(session)
        for variable in v1.global_variables():
            if variable.op.name not in ("global_step", "save_counter"):
                np.testing.assert_array_equal(session.run(variable), saved[variable.op.name], variable.op.name)


def test_checkpoints_in_eager_mode(hvd, tmp_path):
    weight = tf.Variable([0.0, 0.0])
    optimizer = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(1.0, 0.5))
    optimizer.minimize(lambda: (RANK + 1.0) * tf.reduce_sum(weight), var_list=[weight])
    checkpoint = tf.train.Checkpoint(optimizer=optimizer, weight=weight)
    path = checkpoint.write(os.path.join(tmp_path, "model"))
    fresh, again = tf.Variable([5.0, 5.0]), v1.train.MomentumOptimizer(1.0, 0.5)
    status = tf.train.Checkpoint(optimizer=hvd.DistributedOptimizer(again), weight=fresh).read(path)
    status.assert_consumed()
    np.testing.assert_allclose(again.get_slot(fresh, "momentum").numpy(), [MEAN] * 2, rtol=1e-6)
    np.testing.assert_allclose(fresh.numpy(), [-MEAN] * 2, rtol=1e-6)


class Recorder(v1.train.SessionRunHook):
    """Notes the global step after each run."""

    def __init__(self):
        self.steps = []

    def before_run(self, context):
        return v1.train.SessionRunArgs(v1.train.get_global_step())

    def after_run(self, context, values):
        self.steps.append(int(context.session.run(v1.train.get_global_step())))


@pytest.mark.usefixtures("control_flow")
def test_monitored_training_session(hvd, tmp_path):
    """It initialises the sums; they are neither saved nor broadcast; a restart begins a new step."""
    folder = os.path.join(tmp_path, "model") if RANK == 0 else None

    def train(last_step):
        with tf.Graph().as_default():
            _, slope, step = model(wrap(hvd, v1.train.GradientDescentOptimizer(1.0), 2))
            recorder = Recorder()
            hooks = [hvd.BroadcastGlobalVariablesHook(0), v1.train.StopAtStepHook(last_step=last_step), recorder]
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=folder, hooks=hooks, save_summaries_steps=None
            ) as session:
                while not session.should_stop():
                    session.run(step, {slope: RANK + 1.0})
            return recorder.steps

    assert train(5) == [1, 2, 3, 4, 5]
    allgather([0])
    assert train(8) == [6, 7, 8]
    if RANK == 0:
        path = tf.train.latest_checkpoint(folder)
        assert sorted(name for name, _ in tf.train.list_variables(path)) == ["global_step", "net/w"]
        # Passes 1 to 4 make two steps; the fifth is lost with the first session, 6 and 7 make the third.
        np.testing.assert_allclose(tf.train.load_variable(path, "net/w"), [-6 * MEAN] * 2, rtol=1e-6)
