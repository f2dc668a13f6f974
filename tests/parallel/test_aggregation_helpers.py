"""LocalGradientAggregationHelper and LocalGradientAggregationHelperEager, as programs call them by themselves."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from world import RANK, SIZE

from compat_hvd.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from compat_hvd.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager

pytestmark = pytest.mark.two_ranks

v1 = tf.compat.v1

MEAN = (SIZE + 1) / 2  # of r + 1


class Iterations:
    """What an optimizer has that counts."""

    def __init__(self):
        self.iterations = v1.Variable(np.int64(0), use_resource=True, trainable=False)


def averages(hvd):
    def reduce(gradients, variables):
        return [hvd.allreduce(g, name=f"helper/{v.name.split(':')[0]}") for g, v in zip(gradients, variables)]

    return reduce


@pytest.mark.parametrize("average", [False, True], ids=["sum", "average"])
def test_in_a_session_graph(hvd, session, average):
    """With a None, a local variable, and both counters."""
    legacy = LocalGradientAggregationHelper._OPTIMIZER_TYPE_LEGACY
    helper = hvd.LocalGradientAggregationHelper(2, averages(hvd), True, average, hvd.rank(), legacy, name="mine")
    shared, unused, local = (v1.get_variable(name, initializer=np.zeros(2, np.float32)) for name in "sul")
    slope = v1.placeholder(tf.float32, [])
    gradients = [slope * tf.ones(2), None, tf.IndexedSlices(tf.fill([1], slope), [1], [2])]
    helper.register_local_var(local)
    optimizer, global_step = Iterations(), v1.train.get_or_create_global_step()
    results = helper.compute_gradients(gradients, [shared, unused, local])
    assert results[1] is None
    pairs = list(zip(results, [shared, unused, local]))

    def apply():
        moved = [v.assign_sub(g) for g, v in pairs if g is not None]
        return tf.group(*moved, optimizer.iterations.assign_add(1), global_step.assign_add(1))

    step = helper.apply_gradients(apply, optimizer, pairs, global_step=global_step)
    session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
    for x in range(1, 6):
        session.run(step, {slope: x * (RANK + 1.0)})
        total = [0, 3, 3, 10, 10][x - 1] / (2 if average else 1)
        np.testing.assert_allclose(session.run(shared), [-MEAN * total] * 2, rtol=1e-6)
        np.testing.assert_allclose(session.run(local), [0, -(RANK + 1) * total / SIZE], rtol=1e-6)
        assert session.run([optimizer.iterations, global_step]) == [x, x]


def test_wrong_arguments(hvd):
    legacy = LocalGradientAggregationHelper._OPTIMIZER_TYPE_LEGACY
    for passes in (0, -1):
        with pytest.raises(ValueError, match="backward_passes_per_step"):
            LocalGradientAggregationHelper(passes, averages(hvd), True, False, 0, legacy)
        with pytest.raises(ValueError, match="backward_passes_per_step"):
            LocalGradientAggregationHelperEager(passes, averages(hvd), True, False)
    slices = tf.IndexedSlices(tf.ones([1]), [0], [2])
    with pytest.raises(ValueError, match="sparse_as_dense"):
        LocalGradientAggregationHelperEager(2, averages(hvd), False, False).compute_gradients([slices], [None])


@pytest.mark.parametrize("average", [False, True], ids=["sum", "average"])
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])
def test_eagerly(hvd, traced, average):
    """The sums so far are given in passes without a reduction; a bad sum is forgotten."""
    helper = LocalGradientAggregationHelperEager(2, averages(hvd), True, average)
    shared, unused, local = (tf.Variable([0.0, 0.0], name=name) for name in ("shared", "unused", "local"))
    helper.register_local_var(local)
    optimizer = Iterations()

    def one_pass(slope):
        slices = tf.IndexedSlices(tf.fill([1], slope), [1], [2])
        results = helper.compute_gradients([slope * tf.ones(2), None, slices], [shared, unused, local])
        assert results[1] is None

        def apply():
            shared.assign_sub(results[0])
            local.assign_sub(results[2])
            optimizer.iterations.assign_add(1)

        return results[0], helper.apply_gradients(apply, optimizer, [])

    run = tf.function(one_pass) if traced else one_pass
    for x in range(1, 6):
        given, applied = run(tf.constant(x * (RANK + 1.0)))
        assert bool(applied) == (x % 2 == 0)
        total = [0, 3, 3, 10, 10][x - 1] / (2 if average else 1)
        np.testing.assert_allclose(shared.numpy(), [-MEAN * total] * 2, rtol=1e-6)
        np.testing.assert_allclose(local.numpy(), [0, -(RANK + 1) * total / SIZE], rtol=1e-6)
        if x % 2:
            np.testing.assert_allclose(given.numpy(), [x * (RANK + 1)] * 2, rtol=1e-6)
        assert optimizer.iterations.numpy() == x
    shared.assign([0.0, 0.0])
    run(tf.constant(np.inf))
    shared.assign([0.0, 0.0])
    for x in (1.0, 2.0):
        run(tf.constant(x * (RANK + 1.0)))
    np.testing.assert_allclose(shared.numpy(), [-3 * MEAN / (2 if average else 1)] * 2, rtol=1e-6)


def test_a_gradient_that_turns_none(hvd):
    helper = LocalGradientAggregationHelperEager(2, averages(hvd), True, False)
    variables = [tf.Variable(0.0, name="a"), tf.Variable(0.0, name="b")]
    assert helper.compute_gradients([None, None], variables) == [None, None]
    helper.compute_gradients([tf.constant(1.0), None], variables)
    with pytest.raises(ValueError, match="not None"):
        helper.compute_gradients([None, tf.constant(1.0)], variables)
