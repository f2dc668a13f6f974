"""alltoall: every dtype, equal and given splits, rows to oneself only, wrong splits."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from fed import TRANSFERABLE, Feed, run
from world import RANK, SIZE

pytestmark = pytest.mark.node_split

RANKS = range(SIZE)


def count(sender, receiver):
    """How many rows a rank sends to another: nothing from the last to the first, otherwise another number each."""
    return 0 if (sender, receiver) == (SIZE - 1, 0) else 1 + sender + 2 * receiver


def rows(sender, receiver, width=2):
    shape = count(sender, receiver), width
    return (np.arange(np.prod(shape)).reshape(shape) + 3 * sender + receiver) % 50


def sent_by(sender, width=2):
    return np.concatenate([rows(sender, receiver, width) for receiver in RANKS])


def received_by(receiver, width=2):
    return np.concatenate([rows(sender, receiver, width) for sender in RANKS])


MY_SPLITS = [count(RANK, receiver) for receiver in RANKS]
MY_COUNTS = [count(sender, RANK) for sender in RANKS]


@pytest.mark.parametrize("dtype", TRANSFERABLE, ids=lambda dtype: dtype.name)
def test_every_dtype_with_splits(hvd, session, dtype):
    mine = sent_by(RANK).astype(dtype.as_numpy_dtype)
    output, received = run(lambda feed: hvd.alltoall(feed(mine, dtype, [None, 2]), feed(MY_SPLITS, tf.int32)))
    assert output.dtype == dtype.as_numpy_dtype
    assert np.array_equal(output, received_by(RANK).astype(dtype.as_numpy_dtype))
    assert (received.dtype, received.tolist()) == (np.int32, MY_COUNTS)


@pytest.mark.parametrize("shape", ["like value", None], ids=["known shape", "unknown shape"])
def test_equal_splits_return_the_tensor_only(hvd, session, shape):
    mine = [[100 * RANK + i, 0.5] for i in range(3 * SIZE)]
    output = run(lambda feed: hvd.alltoall(feed(mine, tf.float32, shape)))
    expected = [[100 * sender + 3 * RANK + i, 0.5] for sender in RANKS for i in range(3)]
    assert output.tolist() == expected


@pytest.mark.parametrize("kind", [list, np.array, tf.constant], ids=["list", "array", "tensor"])
def test_kinds_of_splits(hvd, session, kind):
    output, received = run(lambda feed: hvd.alltoall(feed(sent_by(RANK)), kind(MY_SPLITS)))
    assert np.array_equal(output, received_by(RANK))
    assert received.tolist() == MY_COUNTS


def test_rows_over_several_chunks(hvd, session):
    width = 40_001
    output = run(lambda feed: hvd.alltoall(feed(sent_by(RANK, width)), MY_SPLITS)[0])
    assert np.array_equal(output, received_by(RANK, width))


def test_nothing_to_send(hvd, session):
    output, received = run(lambda feed: hvd.alltoall(feed(np.zeros((0, 3)), tf.float32), [0] * SIZE))
    assert (output.shape, received.tolist()) == ((0, 3), [0] * SIZE)


def test_in_eager_mode(hvd):
    output, received = hvd.alltoall(sent_by(RANK), splits=MY_SPLITS, name="named")
    assert output.numpy().tolist() == received_by(RANK).tolist()
    assert received.numpy().tolist() == MY_COUNTS
    assert hvd.alltoall(np.arange(SIZE)).numpy().tolist() == [RANK] * SIZE


def test_static_shape_has_an_open_first_dimension(hvd, session):
    output, received = hvd.alltoall(tf.zeros([5, 3]), tf.compat.v1.placeholder(tf.int32, [None]))
    assert (output.shape.as_list(), received.shape.as_list()) == ([None, 3], [None])


BAD_SPLITS = {
    "too many rows": [2] + [1] * (SIZE - 1),
    "rows left over": [0] + [1] * (SIZE - 1),
    "too few entries": [SIZE] * (SIZE - 1) or [1, 1],
    "negative": [SIZE + 1] + [0] * (SIZE - 2) + [-1] if SIZE > 1 else [-1],
    "two dimensions": [[1] * SIZE],
}


@pytest.mark.parametrize("kind", BAD_SPLITS)
def test_wrong_splits_of_one_rank_are_an_error_on_every_rank(hvd, session, kind):
    """Horovod drops rows left over without a word, and lets the other ranks wait for the one with the error."""
    feed = Feed()
    splits = tf.compat.v1.placeholder(tf.int32)
    output, _ = hvd.alltoall(feed(np.arange(SIZE)), splits, name="x")
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"x.*splits|splits.*x"):
            session.run(output, {**feed.values, splits: BAD_SPLITS[kind] if RANK == SIZE - 1 else [1] * SIZE})
        assert session.run(output, {**feed.values, splits: [1] * SIZE}).tolist() == [RANK] * SIZE


@pytest.mark.skipif(SIZE == 1, reason="one rank can always divide")
def test_rows_that_cannot_be_divided_equally(hvd, session):
    with pytest.raises(tf.errors.InvalidArgumentError, match="even multiple"):
        run(lambda feed: hvd.alltoall(feed(np.arange(SIZE + (RANK == 0))), name="x"))


def test_wrong_arguments_are_refused_while_building(hvd, session):
    with pytest.raises(ValueError, match="first dimension"):
        hvd.alltoall(1.0)
    with pytest.raises(TypeError, match="string"):
        hvd.alltoall(["text"])
    with pytest.raises((TypeError, ValueError), match="int64"):
        hvd.alltoall(tf.zeros([SIZE]), tf.ones([SIZE], tf.int64))
    for floats in ([1.0] * SIZE, np.ones(SIZE)):
        with pytest.raises(TypeError):
            hvd.alltoall(tf.zeros([SIZE]), floats)
