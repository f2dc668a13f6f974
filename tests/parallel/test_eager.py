"""Eager mode and tf.function."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from world import RANK, SIZE

TOTAL = SIZE * (SIZE + 1) / 2


def test_allreduce(hvd):
    for value in (RANK + 1.0, np.float32(RANK + 1), np.array(RANK + 1.0), tf.Variable(RANK + 1.0)):
        assert hvd.allreduce(value, op=hvd.Sum).numpy() == TOTAL
        assert hvd.allreduce(value, op=hvd.Sum, name="named").numpy() == TOTAL
    assert hvd.allreduce([RANK, 1], op=hvd.Max).numpy().tolist() == [SIZE - 1, 1]
    exact = hvd.allreduce(tf.constant(1.0, tf.float64), op=hvd.Sum, prescale_factor=0.1)
    np.testing.assert_allclose(exact.numpy(), 0.1 * SIZE, rtol=1e-15)


def test_sparse(hvd):
    slices = tf.IndexedSlices(tf.fill([1, 2], RANK + 1.0), tf.constant([RANK]), tf.constant([SIZE, 2]))
    for name in (None, "named"):
        total = hvd.allreduce(slices, op=hvd.Sum, name=name)
        assert tf.convert_to_tensor(total).numpy().tolist() == [[rank + 1.0] * 2 for rank in range(SIZE)]


def test_allgather_and_broadcast(hvd):
    assert hvd.allgather(np.arange(RANK)).numpy().tolist() == [i for rank in range(SIZE) for i in range(rank)]
    assert hvd.broadcast([RANK + 5], SIZE - 1).numpy().tolist() == [SIZE + 4]


def test_other_dtypes_are_refused_by_name(hvd):
    with pytest.raises(TypeError, match="bool"):
        hvd.allreduce(True)
    with pytest.raises(TypeError, match="string"):
        hvd.broadcast("text", 0)


def test_identity(hvd):
    assert (hvd.rank_op().numpy(), hvd.size_op().numpy()) == (RANK, SIZE)


def test_function_leaves_the_order_open(hvd):
    """Ranks trace in opposite orders: a chain in program order would have each wait for the other."""
    names = [f"t{i}" for i in range(6)]
    mine = names if RANK % 2 == 0 else names[::-1]

    @tf.function
    def step(x):
        totals = {name: hvd.allreduce(x + int(name[1:]), op=hvd.Sum, name=name) for name in mine}
        return [totals[name] for name in names]

    for _ in range(2):
        results = step(tf.constant(RANK + 1.0))
        assert [result.numpy() for result in results] == [TOTAL + SIZE * i for i in range(6)]


def test_function_retraced(hvd):
    @tf.function
    def step(x):
        return hvd.allreduce(x, op=hvd.Sum, name="loss"), hvd.allreduce(2 * x, op=hvd.Sum)

    for shape in ([], [2], [3, 1]):
        one, two = step(tf.fill(shape, RANK + 1.0))
        assert np.array_equal(one.numpy(), np.full(shape, TOTAL))
        assert np.array_equal(two.numpy(), np.full(shape, 2 * TOTAL))


def test_legacy_optimizer(hvd):
    variables = [tf.Variable([1.0, 2.0], name="same"), tf.Variable([3.0, 4.0], name="same")]
    optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0))
    for _ in range(2):
        optimizer.minimize(lambda: tf.reduce_sum(variables[0] * (RANK + 1.0)) + tf.reduce_sum(variables[1]))
    mean = (SIZE + 1) / 2
    np.testing.assert_allclose(variables[0].numpy(), [1.0 - 2 * mean, 2.0 - 2 * mean])
    np.testing.assert_allclose(variables[1].numpy(), [1.0, 2.0])
