"""reducescatter: every reduce op and dtype, rows that cannot be divided equally, fewer rows than ranks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from fed import REDUCIBLE, run
from world import RANK, SIZE, allgather

pytestmark = pytest.mark.node_split

RANKS = range(SIZE)
NUMPY = {"Average": np.mean, "Sum": np.sum, "Min": np.min, "Max": np.max, "Product": np.prod}


def values(rank, rows, width=3):
    return np.arange(rows * width).reshape(rows, width) % 5 + rank % 2 + 1


def own_rows(reduced, rank=RANK):
    """The rows of a rank: the first ranks get one more where they cannot be divided equally."""
    return np.array_split(reduced, SIZE)[rank]


@pytest.mark.parametrize("rows", [SIZE, 2 * SIZE + 1, 1, 0])
@pytest.mark.parametrize("dtype", REDUCIBLE, ids=lambda dtype: dtype.name)
def test_sums_of_every_dtype(hvd, session, dtype, rows):
    result = run(lambda feed: hvd.reducescatter(feed(values(RANK, rows), dtype, [None, 3]), op=hvd.Sum))
    expected = own_rows(sum(values(rank, rows) for rank in RANKS))
    assert result.dtype == dtype.as_numpy_dtype
    assert np.array_equal(result, expected.astype(dtype.as_numpy_dtype))


@pytest.mark.parametrize("op_name", NUMPY)
def test_every_reduce_op(hvd, session, op_name):
    held = np.stack([values(rank, SIZE + 1) for rank in RANKS])
    result = run(lambda feed: hvd.reducescatter(feed(held[RANK], tf.float64), op=getattr(hvd, op_name)))
    np.testing.assert_allclose(result, own_rows(NUMPY[op_name](held, axis=0)), rtol=1e-14)


def test_averages_by_default_and_scales_exactly(hvd, session):
    held = np.stack([values(rank, SIZE) for rank in RANKS])
    mean, scaled = run(
        lambda feed: [
            hvd.reducescatter(feed(held[RANK], tf.float64)),
            hvd.reducescatter(feed(held[RANK], tf.float64), prescale_factor=0.1, postscale_factor=1 / 3),
        ]
    )
    np.testing.assert_allclose(mean, own_rows(held.mean(0)), rtol=1e-14)
    np.testing.assert_allclose(scaled, own_rows(held.mean(0)) * 0.1 / 3, rtol=1e-14)


def test_averages_of_halves_and_integers(hvd, session):
    """Sums of halves would overflow; integers are divided exactly and cut toward zero."""
    half, integer = run(
        lambda feed: [
            hvd.reducescatter(feed([60_000.0] * SIZE, tf.float16)),
            hvd.reducescatter(feed([-RANK - 1] * SIZE, tf.int32)),
        ]
    )
    assert half.tolist() == [60_000.0]
    assert integer.tolist() == [int(-(SIZE + 1) / 2)]


def test_rows_over_several_chunks(hvd, session):
    rows = 30_001
    result = run(lambda feed: hvd.reducescatter(feed(values(RANK, rows, 11), tf.float32), op=hvd.Sum))
    assert np.array_equal(result, own_rows(sum(values(rank, rows, 11) for rank in RANKS)))


def test_compression_rounds_to_halves(hvd, session):
    one, two = run(
        lambda feed: [
            hvd.reducescatter(feed([1.0001] * SIZE, tf.float32), "", hvd.Compression.fp16, hvd.Sum),
            *hvd.grouped_reducescatter([feed([1.0001] * SIZE, tf.float32)], "", hvd.Compression.fp16, hvd.Sum),
        ]
    )
    assert (one.dtype, one.tolist(), two.tolist()) == (np.float32, [SIZE], [SIZE])


def test_raw_form_sums(hvd, session):
    one, two = run(
        lambda feed: [
            hvd._reducescatter(feed(values(RANK, SIZE)), name="raw"),
            hvd._grouped_reducescatter([feed(values(RANK, SIZE))], name="raw_group")[0],
        ]
    )
    assert np.array_equal(one, own_rows(sum(values(rank, SIZE) for rank in RANKS)))
    assert np.array_equal(two, one)


def test_in_eager_mode(hvd):
    result = hvd.reducescatter(np.arange(SIZE) * (RANK + 1.0), op=hvd.Sum, name="named")
    assert result.numpy().tolist() == [RANK * SIZE * (SIZE + 1) / 2]


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
@pytest.mark.parametrize("kind", ["shape", "dtype", "op", "factor"])
def test_mismatches(hvd, session, kind):
    last = SIZE - 1 == RANK
    rows = SIZE + (last and kind == "shape")
    dtype = tf.float32 if last and kind == "dtype" else tf.float64
    op = hvd.Sum if last and kind == "op" else hvd.Average
    factor = 2.0 if last and kind == "factor" else 1.0
    for _ in range(2):
        with pytest.raises(tf.errors.FailedPreconditionError, match="x"):
            run(lambda feed: hvd.reducescatter(feed(np.ones(rows), dtype), op=op, name="x", prescale_factor=factor))
        assert run(lambda feed: hvd.reducescatter(feed(np.ones(SIZE)), op=hvd.Sum, name="y")).tolist() == [SIZE]


def test_wrong_arguments_are_refused_while_building(hvd, session):
    with pytest.raises(ValueError, match="first dimension"):
        hvd.reducescatter(1.0)
    with pytest.raises(ValueError, match="first dimension"):
        hvd.grouped_reducescatter([tf.zeros([1]), 1.0])
    with pytest.raises(TypeError, match="bool"):
        hvd.reducescatter([True])
    with pytest.raises(ValueError, match="op"):
        hvd.reducescatter([1.0], op=None)


def test_group(hvd, session):
    """Of different shapes and dtypes, in their order."""
    counts = [SIZE, 2 * SIZE + 1, 1]
    held = {rows: np.stack([values(rank, rows) for rank in RANKS]) for rows in counts}
    for dtypes in ([tf.float32] * 3, [tf.float32, tf.int64, tf.float64]):
        results = run(
            lambda feed, dtypes=dtypes: hvd.grouped_reducescatter(
                [feed(held[rows][RANK], dtype) for rows, dtype in zip(counts, dtypes)], op=hvd.Sum
            )
        )
        for rows, dtype, result in zip(counts, dtypes, results):
            assert result.dtype == dtype.as_numpy_dtype
            assert np.array_equal(result, own_rows(held[rows].sum(0)))
    assert hvd.grouped_reducescatter([]) == []


def test_allgather_of_it_is_an_allreduce(hvd, session):
    def build(feed):
        x = feed(values(RANK, 2 * SIZE + 1), tf.float32)
        return hvd.allgather(hvd.reducescatter(x)), hvd.allreduce(x)

    both, reduced = run(build)
    assert np.array_equal(both, reduced)
    assert len({tuple(row) for row in allgather([int(reduced.sum() * 1000)])}) == 1
