"""allgather: every dtype, uneven and empty contributions."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from fed import TRANSFERABLE, run
from world import RANK, SIZE

pytestmark = pytest.mark.node_split


def rows(rank, count, width=3):
    return (np.arange(count * width).reshape(count, width) + rank) % 7 - (rank % 2)


@pytest.mark.parametrize("dtype", TRANSFERABLE, ids=lambda dtype: dtype.name)
def test_every_dtype_with_uneven_rows(hvd, session, dtype):
    mine = np.maximum(rows(RANK, 2 * RANK + 1), 0)
    result = run(lambda feed: hvd.allgather(feed(mine, dtype, [None, 3])))
    expected = np.concatenate([np.maximum(rows(rank, 2 * rank + 1), 0) for rank in range(SIZE)])
    assert result.dtype == dtype.as_numpy_dtype
    assert np.array_equal(result, expected.astype(dtype.as_numpy_dtype))


@pytest.mark.parametrize("empty", ["first", "last", "all"])
def test_ranks_without_rows(hvd, session, empty):
    counts = [0 if empty == "all" else rank + 2 for rank in range(SIZE)]
    counts[0 if empty == "first" else -1] = 0
    result = run(lambda feed: hvd.allgather(feed(rows(RANK, counts[RANK]), tf.float32, [None, 3])))
    assert np.array_equal(result, np.concatenate([rows(rank, counts[rank]) for rank in range(SIZE)]))


def test_rows_over_several_chunks(hvd, session):
    counts = [30_001 + 1000 * rank for rank in range(SIZE)]
    result = run(lambda feed: hvd.allgather(feed(rows(RANK, counts[RANK], 11), tf.float64)))
    assert np.array_equal(result, np.concatenate([rows(rank, counts[rank], 11) for rank in range(SIZE)]))


def test_rows_without_elements(hvd, session):
    result = run(lambda feed: hvd.allgather(feed(np.zeros((RANK + 1, 0, 2), np.float32))))
    assert result.shape == (SIZE * (SIZE + 1) // 2, 0, 2)


def test_vectors_and_blocks(hvd, session):
    vector, block = run(
        lambda feed: [hvd.allgather(feed([RANK], tf.int64)), hvd.allgather(feed(np.full((1, 2, 2, 2), RANK)))]
    )
    assert vector.tolist() == list(range(SIZE))
    assert np.array_equal(block, np.arange(SIZE)[:, None, None, None] * np.ones((1, 2, 2, 2)))


def test_static_shape_has_an_open_first_dimension(hvd, session):
    known = hvd.allgather(tf.zeros([5, 3]))
    open_ended = hvd.allgather(tf.compat.v1.placeholder(tf.float32, None))
    assert known.shape.as_list() == [None, 3]
    assert open_ended.shape.rank is None


def test_scalars_are_refused_while_building(hvd, session):
    with pytest.raises(ValueError, match="first dimension"):
        hvd.allgather(1.0)


def test_other_dtypes_are_refused_by_name(hvd, session):
    with pytest.raises(TypeError, match="string"):
        hvd.allgather(["text"])
