"""Loss scaling inside and around DistributedOptimizer: the ranks skip a step together or not at all."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from world import RANK, SIZE, allgather

pytestmark = pytest.mark.two_ranks

v1 = tf.compat.v1

MEAN = (SIZE + 1) / 2  # of r + 1
LAST = SIZE - 1
experimental = v1.train.experimental


@pytest.fixture(params=[1, 2], ids=["control flow 1", "control flow 2"], autouse=True)
def control_flow(request):
    if request.param == 2:
        yield
        return
    v1.disable_control_flow_v2()
    yield
    v1.enable_control_flow_v2()


def inside(hvd, scale, **kwargs):
    scaled = experimental.MixedPrecisionLossScaleOptimizer(v1.train.GradientDescentOptimizer(1.0), scale)
    return hvd.DistributedOptimizer(scaled, **kwargs)


def around(hvd, scale, **kwargs):
    wrapped = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), **kwargs)
    return experimental.MixedPrecisionLossScaleOptimizer(wrapped, scale)


class Training:
    """Rank r's gradient is (r + 1) * x in every element, for the x that is fed."""

    def __init__(self, session, optimizer):
        self.session = session
        self.weight = v1.get_variable("w", initializer=np.zeros(2, np.float32))
        self.table = v1.get_variable("emb", initializer=np.zeros((2, 1), np.float32))
        self.slope = v1.placeholder(tf.float32, [])
        self.global_step = v1.train.get_or_create_global_step()
        loss = self.slope * (tf.reduce_sum(self.weight) + tf.reduce_sum(tf.gather(self.table, [1])))
        self.step = optimizer.minimize(loss, global_step=self.global_step)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])

    def run(self, x, bad=None):
        """Makes a step, with the slope ``bad`` on the last rank if it is given."""
        slope = (RANK + 1.0) * x if bad is None or RANK != LAST else bad
        self.session.run(self.step, {self.slope: slope})

    def check(self, total, global_step):
        """The same values on all ranks: minus the total times the mean, after so many global steps."""
        weight, table, step = self.session.run([self.weight, self.table, self.global_step])
        np.testing.assert_allclose(weight, [-total * MEAN] * 2, rtol=1e-5)
        np.testing.assert_allclose(table, [[0.0], [-total * MEAN]], rtol=1e-5)
        assert step == global_step


def on_all_ranks(session, scale):
    """The loss scales of all ranks, which must be one."""
    return {value for (value,) in allgather([int(session.run(scale()))])}


def dynamic(**kwargs):
    return experimental.DynamicLossScale(initial_loss_scale=64.0, **kwargs)


@pytest.mark.parametrize("place", [inside, around])
@pytest.mark.parametrize("sparse_as_dense", [False, True], ids=["sparse", "dense"])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_bad_gradient_on_one_rank_is_skipped_by_all(hvd, session, place, sparse_as_dense, bad):
    scale = dynamic()
    training = Training(session, place(hvd, scale, sparse_as_dense=sparse_as_dense))
    training.run(1)
    training.check(1, 1)
    training.run(2, bad)
    training.check(1, 1)
    assert on_all_ranks(session, scale) == {32}
    training.run(3)
    training.check(4, 2)
    assert on_all_ranks(session, scale) == {32}


@pytest.mark.parametrize("place", [inside, around])
def test_a_scale_that_overflows_on_one_rank_alone(hvd, session, place):
    """The gradient is finite, but not when scaled by 2 ** 120 or 2 ** 119; then all ranks apply it."""
    scale = experimental.DynamicLossScale(initial_loss_scale=2.0**120)
    training = Training(session, place(hvd, scale))
    large = 2.0**9
    for _ in range(3):
        training.run(0, large)
    assert session.run(scale()) == 2.0**118
    np.testing.assert_allclose(session.run(training.weight), [-large / SIZE] * 2, rtol=1e-5)
    assert session.run(training.global_step) == 1


@pytest.mark.parametrize("place", [inside, around])
def test_a_fixed_scale(hvd, session, place):
    training = Training(session, place(hvd, 128.0))
    training.run(1)
    training.run(2)
    training.check(3, 2)


@pytest.mark.parametrize("when", ["first", "last"])
def test_inside_an_aggregation_the_sum_decides(hvd, session, when):
    """In the last pass, on what was reduced; the scale is that of all its passes."""
    scale = dynamic(increment_period=3)
    training = Training(session, inside(hvd, scale, backward_passes_per_step=2, sparse_as_dense=True))
    training.run(1, np.inf if when == "first" else None)
    assert on_all_ranks(session, scale) == {64}
    training.run(2, np.inf if when == "last" else None)
    # The skipped step is none: only the passes before it were counted, as the optimizer by itself does.
    training.check(0, 1)
    assert on_all_ranks(session, scale) == {32}
    for x in (1, 2, 3):
        training.run(x)
    training.check(3, 4)
    for x in (4, 5, 6):
        training.run(x)
    training.check(21, 7)
    assert on_all_ranks(session, scale) == {64}


@pytest.mark.parametrize("when", ["first", "last"])
def test_around_an_aggregation(hvd, session, when):
    """Passes without a reduction look finite on every rank, so that the scales cannot part."""
    scale = dynamic(increment_period=4)
    training = Training(session, around(hvd, scale, backward_passes_per_step=2, sparse_as_dense=True))
    training.run(1, np.inf if when == "first" else None)
    assert on_all_ranks(session, scale) == {64}
    training.run(2, np.inf if when == "last" else None)
    training.check(0, 1)
    assert on_all_ranks(session, scale) == {32}
    for x in (1, 2, 3, 4):
        training.run(x)
    training.check(10, 5)
    assert on_all_ranks(session, scale) == {64}


def test_an_aggregation_with_a_fixed_scale_around(hvd, session):
    training = Training(session, around(hvd, 128.0, backward_passes_per_step=2, sparse_as_dense=True))
    for x in (1, 2, 3):
        training.run(x)
    training.check(3, 3)


@pytest.mark.parametrize("order", ["inside", "around"])
def test_the_graph_rewrite(hvd, order):
    """enable_mixed_precision_graph_rewrite: the usual door to a dynamic loss scale."""
    rewrite, optimizer = experimental.enable_mixed_precision_graph_rewrite, v1.train.MomentumOptimizer(1.0, 0.0)
    try:
        with tf.Graph().as_default():
            if order == "inside":
                optimizer = hvd.DistributedOptimizer(rewrite(optimizer))
            else:
                optimizer = rewrite(hvd.DistributedOptimizer(optimizer))
            with v1.Session() as session:
                training = Training(session, optimizer)
                training.run(1)
                training.check(1, 1)
                training.run(2, np.nan)
                training.check(1, 1)
                training.run(3)
                training.check(4, 2)
    finally:
        experimental.disable_mixed_precision_graph_rewrite()
