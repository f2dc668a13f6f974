"""Wrong use is an error on every rank, and the job goes on."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from fed import Feed
from world import RANK, SIZE

pytestmark = pytest.mark.node_split

apart = pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
LAST = SIZE - 1

MISMATCHES = {
    "shape": lambda hvd, feed: hvd.allreduce(feed(np.ones(3 if RANK == LAST else 2)), name="x"),
    "dimensions": lambda hvd, feed: hvd.allreduce(feed(np.ones((2, 1) if RANK == LAST else 2)), name="x"),
    "dtype": lambda hvd, feed: hvd.allreduce(feed(np.ones(2, np.float32 if RANK == LAST else np.float64)), name="x"),
    "reduce op": lambda hvd, feed: hvd.allreduce(feed(np.ones(2)), op=hvd.Min if RANK == LAST else hvd.Sum, name="x"),
    "prescale factor": lambda hvd, feed: hvd.allreduce(feed(np.ones(2)), prescale_factor=1.0 + RANK, name="x"),
    "postscale factor": lambda hvd, feed: hvd.allreduce(feed(np.ones(2)), postscale_factor=1.0 + RANK, name="x"),
    "broadcast root": lambda hvd, feed: hvd.broadcast(feed(np.ones(2)), LAST if RANK == LAST else 0, name="x"),
    "broadcast shape": lambda hvd, feed: hvd.broadcast(feed(np.ones(3 if RANK == LAST else 2)), 0, name="x"),
    "broadcast dtype": lambda hvd, feed: hvd.broadcast(feed(np.ones(2, "f4" if RANK == LAST else "f8")), 0, name="x"),
    "gathered rows": lambda hvd, feed: hvd.allgather(feed(np.ones((2, 3 if RANK == LAST else 2))), name="x"),
    "gathered dtype": lambda hvd, feed: hvd.allgather(feed(np.ones(2, np.int8 if RANK == LAST else "f8")), name="x"),
    "sent rows": lambda hvd, feed: hvd.alltoall(feed(np.ones((SIZE, 3 if RANK == LAST else 2))), name="x"),
    "sent dtype": lambda hvd, feed: hvd.alltoall(feed(np.ones(SIZE, np.int8 if RANK == LAST else "f8")), name="x"),
    "collective": lambda hvd, feed: (hvd.allgather if RANK == LAST else hvd.allreduce)(feed(np.ones(2)), name="x"),
}


def good_average(hvd, feed):
    return hvd.allreduce(feed([RANK + 1.0]), name="good")


def assert_life_goes_on(hvd, session):
    feed = Feed()
    assert session.run(good_average(hvd, feed), feed.values) == pytest.approx([(SIZE + 1) / 2])


@apart
@pytest.mark.parametrize("kind", MISMATCHES)
def test_mismatches(hvd, session, kind):
    """BR-09. Twice, because the second time the name is known."""
    feed = Feed()
    bad = MISMATCHES[kind](hvd, feed)
    for _ in range(2):
        with pytest.raises(tf.errors.FailedPreconditionError, match="x"):
            session.run(bad, feed.values)
        assert_life_goes_on(hvd, session)


@apart
def test_a_mismatch_after_good_steps(hvd, session):
    tensor = tf.compat.v1.placeholder(tf.float32, [None])
    total = hvd.allreduce(tensor, op=hvd.Sum)
    for length in (2, 3):
        assert session.run(total, {tensor: np.ones(length)}).tolist() == [SIZE] * length
    with pytest.raises(tf.errors.FailedPreconditionError):
        session.run(total, {tensor: np.ones(5 if RANK == 0 else 4)})
    assert session.run(total, {tensor: np.ones(4)}).tolist() == [SIZE] * 4


@apart
def test_a_mismatch_leaves_the_others_of_a_run_alone(hvd, session):
    feed = Feed()
    bad = MISMATCHES["shape"](hvd, feed)
    with pytest.raises(tf.errors.FailedPreconditionError):
        session.run(
            [bad] + [hvd.allreduce(feed([float(i)]), op=hvd.Sum, name=f"fine{i}") for i in range(10)], feed.values
        )
    assert_life_goes_on(hvd, session)


@apart
def test_mismatches_in_eager_mode(hvd):
    for _ in range(2):
        with pytest.raises(tf.errors.FailedPreconditionError):
            hvd.allreduce(np.ones(3 if RANK == LAST else 2), name="x")
        assert hvd.allreduce(RANK + 1.0).numpy() == pytest.approx((SIZE + 1) / 2)


@pytest.mark.parametrize("root", [SIZE, SIZE + 10, -1])
def test_root_out_of_range_on_every_rank(hvd, session, root):
    feed = Feed()
    bad = hvd.broadcast(feed([1.0, 2.0]), root)
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="root"):
            session.run(bad, feed.values)
        assert_life_goes_on(hvd, session)


def test_root_out_of_range_for_variables(hvd, session):
    tf.compat.v1.get_variable("v", initializer=1.0)
    bad = hvd.broadcast_global_variables(SIZE)
    session.run(tf.compat.v1.global_variables_initializer())
    with pytest.raises(tf.errors.InvalidArgumentError, match="root"):
        session.run(bad)


@apart
def test_root_out_of_range_on_one_rank(hvd, session):
    """The others wait for nobody: they get the error as well."""
    feed = Feed()
    bad = hvd.broadcast(feed([1.0, 2.0]), SIZE if RANK == LAST else 0, name="x")
    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError), match="root"):
        session.run(bad, feed.values)
    assert_life_goes_on(hvd, session)


def test_errors_are_none_that_monitored_sessions_swallow(hvd, session):
    swallowed = (tf.errors.AbortedError, tf.errors.UnavailableError, tf.errors.OutOfRangeError)
    with pytest.raises(tf.errors.OpError) as caught:
        session.run(hvd.broadcast(tf.constant(1.0), SIZE))
    assert not isinstance(caught.value, swallowed)
