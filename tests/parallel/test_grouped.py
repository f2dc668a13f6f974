"""grouped_allreduce and grouped_allgather: order, mixtures of dtypes and kinds, errors of one member."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf
from fed import REDUCIBLE, TRANSFERABLE, Feed, run
from world import RANK, SIZE

pytestmark = pytest.mark.node_split

RANKS = range(SIZE)
TOTAL = SIZE * (SIZE + 1) // 2
SHAPES = [(), (3,), (0, 2), (2, 5)]
apart = pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")


@pytest.mark.parametrize("dtype", REDUCIBLE, ids=lambda dtype: dtype.name)
def test_sums_of_every_dtype_in_order(hvd, session, dtype):
    results = run(
        lambda feed: hvd.grouped_allreduce(
            [feed(np.full(shape, (i + 1) * (RANK + 1)), dtype, None) for i, shape in enumerate(SHAPES)], op=hvd.Sum
        )
    )
    for i, (shape, result) in enumerate(zip(SHAPES, results)):
        assert np.asarray(result).dtype == dtype.as_numpy_dtype
        assert np.array_equal(result, np.full(shape, (i + 1) * TOTAL))


@pytest.mark.parametrize("name", [None, "group"])
def test_mixed_dtypes(hvd, session, name):
    dtypes = [tf.float32, tf.int32, tf.float32, tf.float64, tf.float16]
    results = run(
        lambda feed: hvd.grouped_allreduce(
            [feed([i + 1.0 + RANK], dtype) for i, dtype in enumerate(dtypes)], op=hvd.Max, name=name
        )
    )
    assert [result.dtype.type for result in results] == [dtype.as_numpy_dtype for dtype in dtypes]
    assert [result.item() for result in results] == [i + SIZE for i in range(5)]


def test_every_argument(hvd, session):
    how = {"prescale_factor": 0.1, "postscale_factor": 3.0, "ignore_name_scope": True, "name": "scaled"}
    with tf.name_scope(f"scope{RANK}"):
        scaled = hvd.grouped_allreduce([tf.fill([2], RANK + 1.0), tf.constant(1.0)], device_dense="/cpu:0", **how)
    with pytest.warns(DeprecationWarning, match="average"):
        summed = hvd.grouped_allreduce([tf.constant(RANK + 1)], average=False)
    compressed = hvd.grouped_allreduce(
        [tf.constant(RANK + 1.0001), tf.constant(RANK)], compression=hvd.Compression.fp16
    )
    assert {one.op.device for one in scaled} == {"/device:CPU:0"}
    assert [one.dtype for one in compressed] == [tf.float32, tf.int32]
    (vector, scalar), (total,), (mean, integer) = session.run([scaled, summed, compressed])
    np.testing.assert_allclose(vector, [0.3 * (SIZE + 1) / 2] * 2, rtol=1e-6)
    assert scalar == pytest.approx(0.3)
    assert (total, mean, integer) == (TOTAL, (SIZE + 1) / 2, (SIZE - 1) // 2)


def test_raw_form_sums(hvd, session):
    assert run(lambda feed: hvd._grouped_allreduce([feed(RANK + 1), feed([2])], name="raw")) == [TOTAL, [2 * SIZE]]


def test_empty_lists(hvd, session):
    assert hvd.grouped_allreduce([]) == []
    with pytest.raises(tf.errors.InvalidArgumentError, match="at least one"):
        hvd.grouped_allgather([])


def test_dense_and_sparse_in_their_places(hvd, session):
    """Horovod takes the dense shape of slices from another place of the list."""

    def build(feed):
        first = tf.IndexedSlices(feed([[RANK + 1.0]]), feed([RANK]), tf.constant([SIZE, 1]))
        last = tf.IndexedSlices(feed([[1.0, 2.0]]), feed([2 * RANK]), tf.constant([2 * SIZE, 2]))
        mixture = [first, feed([1.0 + RANK]), last, feed(7.0, tf.float32)]
        return hvd.grouped_allreduce(mixture, op=hvd.Sum, name="mixture"), hvd.grouped_allreduce([last])

    (first, dense, last, scalar), (mean,) = run(build)
    assert first.dense_shape.tolist() == [SIZE, 1]
    assert first.indices.tolist() == list(RANKS)
    assert first.values[:, 0].tolist() == [rank + 1.0 for rank in RANKS]
    assert last.dense_shape.tolist() == [2 * SIZE, 2]
    assert last.indices.tolist() == [2 * rank for rank in RANKS]
    assert last.values.tolist() == [[1.0, 2.0]] * SIZE
    assert (dense.tolist(), scalar) == ([TOTAL], 7.0 * SIZE)
    np.testing.assert_allclose(mean.values, [[1.0 / SIZE, 2.0 / SIZE]] * SIZE)


def test_sparse_restrictions(hvd, session):
    slices = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([0]), tf.constant([1, 1]))
    for how in ({"op": hvd.Min}, {"prescale_factor": 2.0}):
        with pytest.raises(NotImplementedError):
            hvd.grouped_allreduce([tf.constant(1.0), slices], **how)


@pytest.mark.parametrize("dtype", TRANSFERABLE, ids=lambda dtype: dtype.name)
def test_gathers_every_dtype(hvd, session, dtype):
    results = run(
        lambda feed: hvd.grouped_allgather(
            [feed(np.full((RANK + i, 2), RANK % 2), dtype, [None, 2]) for i in range(3)], name="rows"
        )
    )
    for i, result in enumerate(results):
        assert result.dtype == dtype.as_numpy_dtype
        expected = np.repeat([rank % 2 for rank in RANKS], [rank + i for rank in RANKS])
        assert np.array_equal(result, np.stack([expected, expected], 1).astype(dtype.as_numpy_dtype))


def test_gathers_mixed_dtypes(hvd, session):
    numbers, flags = run(lambda feed: hvd.grouped_allgather([feed([RANK]), feed([RANK == 0], tf.bool)]))
    assert (numbers.tolist(), flags.tolist()) == (list(RANKS), [rank == 0 for rank in RANKS])


def test_in_eager_mode(hvd):
    one, two = hvd.grouped_allreduce([RANK + 1.0, tf.constant([RANK, 1])], op=hvd.Sum)
    assert (one.numpy(), two.numpy().tolist()) == (TOTAL, [TOTAL - SIZE, SIZE])
    rows, more = hvd.grouped_allgather([np.arange(RANK), [RANK]])
    assert rows.numpy().tolist() == [i for rank in RANKS for i in range(rank)]
    assert more.numpy().tolist() == list(RANKS)


def test_functions_traced_in_opposite_orders(hvd):
    names = ["a", "b"] if RANK % 2 == 0 else ["b", "a"]

    @tf.function
    def step(x):
        results = {name: hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum, name=name) for name in names}
        return results["a"] + hvd.grouped_allgather([x], name="rows") + results["b"]

    for _ in range(2):
        results = step(tf.constant([RANK + 1.0]))
        assert [result.numpy().tolist() for result in results] == [
            [TOTAL],
            [2 * TOTAL],
            [rank + 1 for rank in RANKS],
            [TOTAL],
            [2 * TOTAL],
        ]


def wrong(hvd, feed, verb, kind, position):
    """A group of three of which one differs on the last rank."""
    values = [np.ones((2, 2)) for _ in range(3)]
    dtypes = [tf.float64] * 3
    if RANK == SIZE - 1:
        values[position] = np.ones((2, 3)) if kind == "shape" else values[position]
        dtypes[position] = tf.float32 if kind == "dtype" else tf.float64
    return getattr(hvd, verb)([feed(value, dtype) for value, dtype in zip(values, dtypes)], name="x")


@apart
@pytest.mark.parametrize("position", range(3))
@pytest.mark.parametrize("kind", ["shape", "dtype"])
@pytest.mark.parametrize("verb", ["grouped_allreduce", "grouped_allgather"])
def test_the_error_of_one_member_is_that_of_the_group(hvd, session, verb, kind, position):
    """In Horovod the member that completes last decides, and a wrong one may pass unnoticed."""
    feed = Feed()
    bad = wrong(hvd, feed, verb, kind, position)
    good = hvd.grouped_allreduce([feed([1.0]), feed([RANK + 1.0])], op=hvd.Sum, name="good")
    for _ in range(2):
        with pytest.raises(tf.errors.FailedPreconditionError, match="x"):
            session.run(bad, feed.values)
        assert session.run(good, feed.values) == [[SIZE], [TOTAL]]


@apart
@pytest.mark.parametrize("kind", ["one dtype", "a dtype more on one rank", "several dtypes"])
@pytest.mark.parametrize("verb", ["grouped_allreduce", "grouped_allgather"])
def test_groups_of_different_sizes_are_an_error_at_once(hvd, session, verb, kind):
    """No rank waits for tensors that another one's group lacks."""
    size = 4 if RANK == SIZE - 1 else 2
    mixed = kind == "several dtypes" or (kind == "a dtype more on one rank" and RANK == SIZE - 1)
    dtypes = [tf.float32, tf.int32 if mixed else tf.float32, tf.float32, tf.float32]
    feed = Feed()
    bad = getattr(hvd, verb)([feed([1], dtype) for dtype in dtypes[:size]], name="x")
    good = hvd.grouped_allreduce([feed([1.0]), feed([RANK + 1.0])], op=hvd.Sum, name="good")
    start = time.monotonic()
    for _ in range(2):
        with pytest.raises(tf.errors.FailedPreconditionError, match=rf"x_\dof\d.*rank {SIZE - 1} sent a group of 4"):
            session.run(bad, feed.values)
        assert session.run(good, feed.values) == [[SIZE], [TOTAL]]
    assert time.monotonic() - start < 15


@apart
def test_groups_of_different_sizes_in_eager_mode(hvd):
    for _ in range(2):
        for members in ([1.0, 2.0, 3.0], [1.0, 2, 3.0]):
            with pytest.raises(tf.errors.FailedPreconditionError, match="group of 3"):
                hvd.grouped_allreduce(members if RANK == 0 else members[:2])
            # Nothing of the shorter or the longer group is left to come.
            for count in (2, 3):
                results = hvd.grouped_allreduce(members[:count], op=hvd.Sum)
                assert [one.numpy() for one in results] == [SIZE, 2 * SIZE, 3 * SIZE][:count]


@apart
@pytest.mark.parametrize("verb", ["grouped_allreduce", "grouped_allgather", "_grouped_reducescatter"])
def test_several_dtypes_on_one_rank_meet_one_dtype_on_the_others(hvd, verb):
    """Eagerly and without a name: the groups match, and the tensor that differs is the error of both."""
    other = tf.int32 if RANK == SIZE - 1 else tf.float32
    for _ in range(2):
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"_2of2.*int32"):
            getattr(hvd, verb)([tf.ones([SIZE]), tf.ones([SIZE], other)])
