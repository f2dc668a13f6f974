"""groups= of DistributedOptimizer: which gradients are submitted together; the result is that without groups."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from fed import Feed
from world import RANK, SIZE

v1 = tf.compat.v1
pytestmark = pytest.mark.node_split

MEAN = (SIZE + 1) / 2  # of r + 1
SGD = v1.train.GradientDescentOptimizer


def dense_variables(dtypes):
    """Of shape [i + 1], named v0, v1, …"""
    return [v1.get_variable(f"v{i}", initializer=np.zeros(i + 1, dtype)) for i, dtype in enumerate(dtypes)]


def loss_of(variables, feed):
    """Rank r's gradient of variable i is (r + 1) * 10 ** i in every element."""
    terms = [tf.reduce_sum(v * feed(RANK + 1.0, v.dtype.base_dtype)) * 10**i for i, v in enumerate(variables)]
    return tf.add_n([tf.cast(term, tf.float64) for term in terms])


def check(session, pairs, feed):
    session.run(v1.global_variables_initializer())
    for i, gradient in enumerate(session.run([g for g, _ in pairs], feed.values)):
        np.testing.assert_allclose(gradient, np.full(i + 1, MEAN * 10**i), rtol=1e-3)


def group_sizes():
    operations = v1.get_default_graph().get_operations()
    return [op.get_attr("num_tensors") for op in operations if op.type == "HorovodGroupedAllreduce"]


def singles():
    return [op for op in v1.get_default_graph().get_operations() if op.type == "HorovodAllreduce"]


@pytest.mark.parametrize(
    ("number", "sizes", "alone"), [(1, [5], 0), (2, [3, 2], 0), (3, [2, 2], 1), (5, [], 5), (99, [], 5)]
)
def test_a_number_makes_consecutive_groups(hvd, session, number, sizes, alone):
    feed = Feed()
    variables = dense_variables([np.float32] * 5)
    pairs = hvd.DistributedOptimizer(SGD(1.0), groups=number).compute_gradients(loss_of(variables, feed))
    assert [v.name for _, v in pairs] == [v.name for v in variables]
    if SIZE > 1:
        assert (group_sizes(), len(singles())) == (sizes, alone)
    check(session, pairs, feed)


@pytest.mark.filterwarnings("ignore:Parameter `num_groups`:DeprecationWarning")
def test_num_groups_is_honoured_and_groups_wins(hvd, session):
    feed = Feed()
    loss = loss_of(dense_variables([np.float32] * 4), feed)
    hvd.DistributedOptimizer(SGD(1.0), num_groups=2).compute_gradients(loss)
    assert group_sizes() == ([2, 2] if SIZE > 1 else [])
    hvd.DistributedOptimizer(SGD(1.0), num_groups=2, groups=1).compute_gradients(loss)
    assert group_sizes() == ([2, 2, 4] if SIZE > 1 else [])


def test_lists_of_variables(hvd, session):
    """In any order; what is in no list, and what the loss does not touch, is not in the way."""
    feed = Feed()
    variables = dense_variables([np.float32] * 5)
    unused = v1.get_variable("unused", initializer=1.0)
    groups = [[variables[4], variables[0], unused], (variables[3], variables[1])]
    optimizer = hvd.DistributedOptimizer(SGD(1.0), groups=groups)
    pairs = optimizer.compute_gradients(loss_of(variables, feed), var_list=[*variables, unused])
    assert pairs.pop()[0] is None
    if SIZE > 1:
        assert (group_sizes(), len(singles())) == ([2, 2], 1)
    check(session, pairs, feed)


def test_dtypes_in_a_group_are_divided(hvd, session):
    feed = Feed()
    variables = dense_variables([np.float32, np.float64, np.float32, np.float16, np.float64])
    pairs = hvd.DistributedOptimizer(SGD(1.0), groups=1).compute_gradients(loss_of(variables, feed))
    assert [g.dtype.base_dtype for g, _ in pairs] == [v.dtype.base_dtype for v in variables]
    if SIZE > 1:
        assert (group_sizes(), len(singles())) == ([2, 2], 1)
    check(session, pairs, feed)


@pytest.mark.parametrize("sparse_as_dense", [False, True], ids=["sparse", "dense"])
@pytest.mark.parametrize("by_number", [False, True], ids=["lists", "number"])
def test_slices_in_a_group(hvd, session, by_number, sparse_as_dense):
    """Rank r takes row r, and row n twice."""
    feed = Feed()
    table = v1.get_variable("emb", initializer=np.zeros((SIZE + 1, 2), np.float32))
    variables = dense_variables([np.float32] * 2)
    ids = feed([RANK, SIZE, SIZE], tf.int64)
    loss = tf.cast(tf.reduce_sum(tf.gather(table, ids)), tf.float64) + loss_of(variables, feed)
    groups = 1 if by_number else [[variables[0], table, variables[1]]]
    optimizer = hvd.DistributedOptimizer(SGD(1.0), groups=groups, sparse_as_dense=sparse_as_dense)
    pairs = optimizer.compute_gradients(loss)
    if SIZE > 1:
        assert isinstance(pairs[0][0], tf.Tensor if sparse_as_dense else tf.IndexedSlices)
        assert group_sizes() == ([3] if sparse_as_dense else [2])
    (sparse, _), *dense = pairs
    check(session, dense, feed)
    expected = np.array([1.0 / SIZE] * SIZE + [2.0])
    value = session.run(tf.convert_to_tensor(sparse), feed.values)
    np.testing.assert_allclose(value, expected[:, None] * np.ones(2), rtol=1e-6)


@pytest.mark.parametrize("compression", ["none", "fp16", "bf16"])
def test_groups_with_the_other_arguments(hvd, session, compression):
    feed = Feed()
    variables = dense_variables([np.float32] * 3)
    optimizer = hvd.DistributedOptimizer(
        SGD(1.0), groups=2, compression=getattr(hvd.Compression, compression), gradient_predivide_factor=2.0
    )
    optimizer.register_local_var(variables[0])
    pairs = optimizer.compute_gradients(loss_of(variables, feed))
    if SIZE > 1:
        wire = {"none": tf.float32, "fp16": tf.float16, "bf16": tf.bfloat16}[compression]
        assert {op.inputs[0].dtype for op in singles()} == {wire}
    session.run(v1.global_variables_initializer())
    values = session.run([g for g, _ in pairs], feed.values)
    np.testing.assert_allclose(values[0], [(RANK + 1) / SIZE], rtol=1e-6)
    np.testing.assert_allclose(values[1], [MEAN * 10] * 2, rtol=1e-2)
    np.testing.assert_allclose(values[2], [MEAN * 100] * 3, rtol=1e-2)


def test_two_calls_with_groups_in_one_run(hvd, session):
    feed = Feed()
    loss = loss_of(dense_variables([np.float32] * 3), feed)
    optimizer = hvd.DistributedOptimizer(SGD(1.0), groups=2)
    first, second = optimizer.compute_gradients(loss), optimizer.compute_gradients(1000.0 * loss)
    session.run(v1.global_variables_initializer())
    fetches = [g for g, _ in first + second]
    order = np.roll(range(6), RANK)
    values = dict(zip(order, session.run([fetches[i] for i in order], feed.values)))
    np.testing.assert_allclose([values[i][0] for i in range(6)], MEAN * 10.0 ** np.arange(6), rtol=1e-6)
