"""allreduce: every dtype, reduce op and shape; averages, scale factors, sparse tensors, compression, names."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from fed import REDUCIBLE, run
from world import RANK, SIZE, equal_on_all_ranks

pytestmark = pytest.mark.node_split

# The largest spans several chunks of shared memory for every dtype, and ends within one.
SHAPES = [(), (1,), (0,), (0, 3), (7,), (3, 5), (1000, 701)]


def values(shape, rank):
    """Between 1 and 3, different for each rank and element, so small that no result overflows an int8."""
    count = int(np.prod(shape))
    return (1 + (np.arange(count) + rank) % 3).reshape(shape).astype(np.float64)


def reduced(hvd, op, inputs):
    """The answer, in float64."""
    stacked = np.stack(inputs)
    return {
        hvd.Average: stacked.mean(0),
        hvd.Sum: stacked.sum(0),
        hvd.Min: stacked.min(0),
        hvd.Max: stacked.max(0),
        hvd.Product: stacked.prod(0),
    }[op]


def tolerance(dtype):
    return {tf.float16: 1e-3, tf.bfloat16: 8e-3, tf.float32: 2e-7, tf.float64: 1e-15}.get(dtype, 0)


@pytest.mark.parametrize("op_name", ["Average", "Sum", "Min", "Max", "Product"])
@pytest.mark.parametrize("dtype", REDUCIBLE, ids=lambda dtype: dtype.name)
def test_every_dtype_op_and_shape(hvd, session, dtype, op_name):
    op = getattr(hvd, op_name)
    results = run(lambda feed: [hvd.allreduce(feed(values(shape, RANK), dtype), op=op) for shape in SHAPES])
    for shape, result in zip(SHAPES, results):
        expected = reduced(hvd, op, [values(shape, rank) for rank in range(SIZE)])
        if dtype.is_integer:
            expected = np.trunc(expected)
        assert np.shape(result) == shape
        assert np.asarray(result).dtype == dtype.as_numpy_dtype
        np.testing.assert_allclose(np.asarray(result, np.float64), expected, rtol=tolerance(dtype))


def test_negative_integers_average_toward_zero(hvd, session):
    result = run(lambda feed: hvd.allreduce(feed([-RANK - 1, RANK + 1], tf.int32)))
    total = SIZE * (SIZE + 1) // 2
    assert result.tolist() == [-(total // SIZE), total // SIZE]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (tf.float16, 60000),
        (tf.int8, 100),
        (tf.int8, -128),
        (tf.uint8, 255),
        (tf.int32, 2**31 - 1),
        (tf.int64, 2**63 - 1),
    ],
    ids=lambda item: getattr(item, "name", item),
)
def test_averages_do_not_overflow(hvd, session, dtype, value):
    result = run(lambda feed: hvd.allreduce(feed([value] * 5, dtype)))
    assert result.tolist() == [value] * 5


def test_float16_sums_accumulate_in_float32(hvd, session):
    # Added one after the other in float16, 2048 + 1 stays 2048.
    result = run(lambda feed: hvd.allreduce(feed([2048 if RANK == 0 else 1], tf.float16), op=hvd.Sum))
    assert result.tolist() == [np.float16(2048 + SIZE - 1)]


def test_infinities_and_nan_arrive(hvd, session):
    mine = [np.inf if RANK == 0 else 1.0, np.nan if RANK == SIZE - 1 else 1.0, -np.inf, 0.0]
    result = run(lambda feed: hvd.allreduce(feed(mine, tf.float32), op=hvd.Sum))
    assert result[0] == np.inf
    assert np.isnan(result[1])
    assert result[2] == -np.inf
    assert result[3] == 0


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64], ids=lambda dtype: dtype.name)
def test_scale_factors_of_floats(hvd, session, dtype):
    result = run(
        lambda feed: hvd.allreduce(feed([RANK + 1.0] * 9, dtype), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4)
    )
    np.testing.assert_allclose(np.asarray(result, np.float64), [SIZE * (SIZE + 1.0)] * 9, rtol=tolerance(dtype))


@pytest.mark.parametrize("dtype", [tf.uint8, tf.int8, tf.int32, tf.int64], ids=lambda dtype: dtype.name)
def test_scale_factors_of_integers_truncate_before_and_after_the_sum(hvd, session, dtype):
    result = run(
        lambda feed: hvd.allreduce(
            feed([5, 2 * RANK + 1], dtype), op=hvd.Sum, prescale_factor=0.5, postscale_factor=1.5
        )
    )
    assert result.tolist() == [int(2 * SIZE * 1.5), int(sum(range(SIZE)) * 1.5)]


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
def test_scaled_halves_have_the_bits_of_tensors_scaled_by_themselves(hvd, session, dtype):
    """Every rank gives the same, so that scaling, summing and scaling again are products of three roundings."""
    values = np.random.default_rng(5).uniform(-100, 100, 1000)
    factor = 0.19151945
    before, after = run(
        lambda feed: [
            hvd.allreduce(feed(values, dtype), op=hvd.Sum, prescale_factor=factor),
            hvd.allreduce(feed(values, dtype), op=hvd.Sum, postscale_factor=factor),
        ]
    )
    half = dtype.as_numpy_dtype
    given = values.astype(half).astype(np.float32)
    scaled = (given * np.float32(factor)).astype(half).astype(np.float32)
    np.testing.assert_array_equal(before, (scaled * SIZE).astype(half))
    summed = (given * SIZE).astype(half).astype(np.float32)
    np.testing.assert_array_equal(after, (summed * np.float32(factor)).astype(half))


def test_a_half_that_overflows_only_between_the_factors_does_not(hvd, session):
    before, after = run(
        lambda feed: [
            hvd.allreduce(
                feed([60000.0], tf.float16), op=hvd.Sum, prescale_factor=1.5, postscale_factor=1 / (2 * SIZE)
            ),
            hvd.allreduce(feed([60000.0], tf.float16), op=hvd.Sum, postscale_factor=0.5 / SIZE),
        ]
    )
    assert before.astype(np.float64) == pytest.approx(45000, rel=1e-3)
    assert after.astype(np.float64) == pytest.approx(30000, rel=1e-3)


def test_scale_factors_of_an_average(hvd, session):
    result = run(lambda feed: hvd.allreduce(feed([RANK + 1.0]), prescale_factor=0.25, postscale_factor=8))
    assert result == pytest.approx([SIZE + 1.0])


def test_scale_factors_are_exact_for_float64(hvd, session):
    before, after, average = run(
        lambda feed: [
            hvd.allreduce(feed([1.0]), op=hvd.Sum, prescale_factor=0.1),
            hvd.allreduce(feed([1.0]), op=hvd.Sum, postscale_factor=0.1),
            hvd.allreduce(feed([1.0]), prescale_factor=0.1, postscale_factor=1 / 3),
        ]
    )
    # As a 32-bit number 0.1 is off by 1.5e-9.
    np.testing.assert_allclose(before, [0.1 * SIZE], rtol=1e-15)
    np.testing.assert_allclose(after, [0.1 * SIZE], rtol=1e-15)
    np.testing.assert_allclose(average, [0.1 / 3], rtol=1e-15)


def test_average_is_taken_exactly_once(hvd, session):
    """BR-01."""
    mine = [RANK + 1.0, 10.0 * (RANK + 1)]
    with pytest.warns(DeprecationWarning, match="average"):
        results = run(
            lambda feed: [
                hvd.allreduce(feed(mine)),
                hvd.allreduce(feed(mine), op=hvd.Sum),
                hvd.allreduce(feed(mine), average=False),
                hvd.allreduce(feed(mine), average=True),
            ]
        )
    total = SIZE * (SIZE + 1) / 2
    for result, expected in zip(results, [total / SIZE, total, total, total / SIZE]):
        np.testing.assert_allclose(result, [expected, 10 * expected], rtol=1e-15)
    with pytest.raises(ValueError, match="only one"):
        hvd.allreduce(1.0, average=True, op=hvd.Sum)


def test_same_inputs_give_the_same_bits_on_all_ranks_and_again(hvd, session):
    mine = np.random.RandomState(RANK).standard_normal(300_001).astype(np.float32)
    tensor = tf.compat.v1.placeholder(tf.float32, [None])
    total = hvd.allreduce(tensor, op=hvd.Sum)
    first, second = session.run(total, {tensor: mine}), session.run(total, {tensor: mine})
    assert np.array_equal(first, second)
    assert equal_on_all_ranks(first)


def test_the_input_is_left_alone(hvd, session):
    feed_value = np.full(1000, RANK + 1.0)
    tensor = tf.compat.v1.placeholder(tf.float64, [1000])
    doubled = 2 * tensor
    reduced_twice = hvd.allreduce(doubled, op=hvd.Sum, name="a"), hvd.allreduce(doubled, op=hvd.Max, name="b")
    total, largest, original = session.run([*reduced_twice, doubled], {tensor: feed_value})
    assert set(total) == {SIZE * (SIZE + 1.0)}
    assert set(largest) == {2.0 * SIZE}
    assert set(original) == {2.0 * (RANK + 1)}


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
def test_takes_variables(hvd, session, use_resource):
    variable = tf.compat.v1.get_variable("v", initializer=RANK + 1.0, use_resource=use_resource)
    total = hvd.allreduce(variable, op=hvd.Sum)
    session.run(tf.compat.v1.global_variables_initializer())
    assert session.run([total, variable]) == [SIZE * (SIZE + 1) / 2, RANK + 1.0]


def test_takes_python_and_numpy_values(hvd, session):
    tensors = [
        hvd.allreduce(RANK, op=hvd.Sum),
        hvd.allreduce(float(RANK), op=hvd.Sum),
        hvd.allreduce(np.float64(RANK), op=hvd.Sum),
        hvd.allreduce(np.full(3, RANK, np.int64), op=hvd.Sum),
        hvd.allreduce([RANK, RANK], op=hvd.Sum),
    ]
    total = sum(range(SIZE))
    scalar, real, double, array, pair = session.run(tensors)
    assert (scalar, real, double, array.tolist(), pair.tolist()) == (total, total, total, [total] * 3, [total] * 2)
    assert [tensor.dtype for tensor in tensors[:4]] == [tf.int32, tf.float32, tf.float64, tf.int64]


def test_constants_are_reduced_in_every_run(hvd, session):
    """TensorFlow folds ops on constants away, unless they are stateful: then each run has the node."""
    total = hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Sum)
    merged = hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Sum)
    for _ in range(2):
        traced = tf.compat.v1.RunMetadata()
        options = tf.compat.v1.RunOptions(output_partition_graphs=True)
        result = session.run([total, merged], options=options, run_metadata=traced)
        ops = [node.op for graph in traced.partition_graphs for node in graph.node]
        assert ops.count("HorovodAllreduce") == 2
        assert np.array_equal(result, [[SIZE, 2.0 * SIZE]] * 2)


@pytest.mark.parametrize("value", ["text", True, 1j, np.uint16(1), np.uint32(1)], ids=lambda v: type(v).__name__)
def test_other_dtypes_are_refused_by_name(hvd, session, value):
    with pytest.raises(TypeError, match=tf.convert_to_tensor(value).dtype.name):
        hvd.allreduce(value)


def test_unknown_ops_are_refused(hvd, session):
    with pytest.raises(ValueError, match="op=17"):
        hvd.allreduce(1.0, op=17)


def slices(feed, rows=None):
    """Rank r has r + 1 slices: of rows 0 to r, with the value 10 (r + 1) + row."""
    rows = list(range(RANK + 1)) if rows is None else rows
    content = [[10.0 * (RANK + 1) + row] * 2 for row in rows]
    return tf.IndexedSlices(
        feed(np.reshape(content, (-1, 2)), tf.float32, [None, 2]), feed(rows, tf.int64, [None]), tf.constant([SIZE, 2])
    )


@pytest.mark.parametrize("name", [None, "mine"])
def test_sparse_tensors(hvd, session, name):
    total, mean = run(
        lambda feed: [
            hvd.allreduce(slices(feed), op=hvd.Sum, name=name),
            hvd.allreduce(slices(feed), name=name),
        ]
    )
    rows = [row for rank in range(SIZE) for row in range(rank + 1)]
    content = [[10.0 * (rank + 1) + row] * 2 for rank in range(SIZE) for row in range(rank + 1)]
    assert total.indices.tolist() == mean.indices.tolist() == rows
    assert total.values.tolist() == content
    np.testing.assert_allclose(mean.values, np.divide(content, SIZE), rtol=1e-6)
    assert total.dense_shape.tolist() == [SIZE, 2]


def test_sparse_tensors_without_slices(hvd, session):
    total = run(lambda feed: hvd.allreduce(slices(feed, [] if RANK == 0 else [RANK]), op=hvd.Sum))
    assert total.indices.tolist() == list(range(1, SIZE))
    assert total.values.shape == (SIZE - 1, 2)


def test_sparse_tensors_refuse_what_gathering_cannot_do(hvd, session):
    sparse = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([4, 2]))
    for op in (hvd.Min, hvd.Max, hvd.Product):
        with pytest.raises(NotImplementedError, match="IndexedSlices"):
            hvd.allreduce(sparse, op=op)
    for factor in ("prescale_factor", "postscale_factor"):
        with pytest.raises(NotImplementedError, match="IndexedSlices"):
            hvd.allreduce(sparse, **{factor: 2.0})


def test_float16_compression(hvd, session):
    # 1/3 has no exact float16; integers are not compressed.
    real, double, integer = run(
        lambda feed: [
            hvd.allreduce(feed([1 / 3], tf.float32), compression=hvd.Compression.fp16),
            hvd.allreduce(feed([1 / 3], tf.float64), compression=hvd.Compression.fp16),
            hvd.allreduce(feed([100_001], tf.int32), compression=hvd.Compression.fp16, op=hvd.Max),
        ]
    )
    assert (real.dtype, double.dtype, integer.tolist()) == (np.float32, np.float64, [100_001])
    assert real[0] == double[0] == np.float16(1 / 3)


def test_one_name_for_several_tensors_of_a_graph(hvd, session):
    def build(feed):
        totals = [hvd.allreduce(feed([i + RANK]), op=hvd.Sum, name="loss") for i in range(3)]
        for scope in ("a", "b"):
            with tf.name_scope(scope):
                totals.append(hvd.allreduce(feed([10 + RANK]), op=hvd.Sum, name="loss"))
                totals.append(hvd.allreduce(feed([20 + RANK]), op=hvd.Sum, name="loss", ignore_name_scope=True))
        return totals

    ranks = sum(range(SIZE))
    assert [total.item() for total in run(build)] == [SIZE * i + ranks for i in (0, 1, 2, 10, 20, 10, 20)]


def test_names_that_ranks_agree_on_match_in_any_order(hvd, session):
    """Each rank builds the ops in another order, in scopes of its own."""

    def build(feed):
        totals = {}
        for i in np.roll(range(4), RANK):
            with tf.name_scope(f"rank{RANK}"):
                totals[i] = hvd.allreduce(feed([10.0 * i]), op=hvd.Sum, name=f"t{i}", ignore_name_scope=True)
        return [totals[i] for i in range(4)]

    assert [total.item() for total in run(build)] == [10.0 * i * SIZE for i in range(4)]


def test_placed_on_the_given_device(hvd, session):
    dense = hvd.allreduce(1.0, device_dense="/cpu:0", name="dense")
    assert dense.device == "/device:CPU:0"
    sparse = hvd.allreduce(
        tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([4, 2])), device_sparse="/cpu:0"
    )
    assert sparse.values.device == sparse.indices.device == "/device:CPU:0"
