"""Gradients through the collectives."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from fed import run
from world import RANK, SIZE

RANKS = range(SIZE)


def gradient(build, value, upstream, shape="like value"):
    """d(sum(build(x) * upstream)) / dx with x fed; ``build`` and ``upstream`` may depend on the rank."""

    def graph(feed):
        x = feed(value, shape=shape)
        y = build(x)
        return tf.gradients(tf.reduce_sum(y * feed(upstream, y.dtype)), x)[0]

    return run(graph)


@pytest.mark.parametrize("shape", ["like value", None], ids=["known shape", "unknown shape"])
def test_sum_and_average(hvd, session, shape):
    upstream = [RANK + 1.0, 2.0]
    total = gradient(lambda x: hvd.allreduce(x, op=hvd.Sum), [1.0, 2.0], upstream, shape)
    mean = gradient(lambda x: hvd.allreduce(x), [1.0, 2.0], upstream, shape)
    ranks = SIZE * (SIZE + 1) / 2
    np.testing.assert_allclose(total, [ranks, 2.0 * SIZE])
    np.testing.assert_allclose(mean, [ranks / SIZE, 2.0])


def test_scale_factors(hvd, session):
    result = gradient(
        lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.1, postscale_factor=1 / 3), [1.0], [RANK + 1.0]
    )
    np.testing.assert_allclose(result, [SIZE * (SIZE + 1) / 2 * 0.1 / 3], rtol=1e-14)


@pytest.mark.parametrize("name", [None, "forward"])
@pytest.mark.parametrize("factor", [1.0, 0.5, -2.0])
@pytest.mark.parametrize("op_name", ["Min", "Max"])
def test_extrema_belong_to_the_ranks_that_held_them(hvd, session, op_name, factor, name):
    # Column 0: another value on each rank. Column 1: equal everywhere. Column 2: one rank differs.
    held = np.array([[rank + 1.0, 4.0, 1.0 if rank == 0 else 2.0] for rank in RANKS])
    upstream = np.array([[rank + 1.0, 1.0, 10.0] for rank in RANKS])
    result = gradient(
        lambda x: hvd.allreduce(x, op=getattr(hvd, op_name), prescale_factor=factor, postscale_factor=3.0, name=name),
        held[RANK],
        upstream[RANK],
    )
    scaled = held * factor
    holders = scaled == (scaled.min(0) if op_name == "Min" else scaled.max(0))
    expected = holders / holders.sum(0) * upstream.sum(0) * factor * 3.0
    np.testing.assert_allclose(result, expected[RANK], rtol=1e-14)


@pytest.mark.parametrize("shape", ["like value", None], ids=["known shape", "unknown shape"])
def test_product(hvd, session, shape):
    # Column 1 has one zero: only the rank that holds it has a gradient.
    held = np.array([[rank + 2.0, 0.0 if rank == 0 else 3.0] for rank in RANKS])
    upstream = np.array([[rank + 1.0, 1.0] for rank in RANKS])
    result = gradient(
        lambda x: hvd.allreduce(x, op=hvd.Product, prescale_factor=0.5, postscale_factor=3.0),
        held[RANK],
        upstream[RANK],
        shape,
    )
    others = np.prod([0.5 * held[rank] for rank in RANKS if rank != RANK], axis=0)
    np.testing.assert_allclose(result, upstream.sum(0) * others * 0.5 * 3.0, rtol=1e-14)


@pytest.mark.parametrize("shape", ["like value", [None, 2], None], ids=["known", "open", "unknown"])
def test_allgather_averages_and_gives_back_own_rows(hvd, session, shape):
    counts = [rank + 1 for rank in RANKS]
    upstream = np.arange(2.0 * sum(counts)).reshape(-1, 2)
    result = gradient(hvd.allgather, np.ones((counts[RANK], 2)), (RANK + 1.0) * upstream, shape)
    first = sum(counts[:RANK])
    np.testing.assert_allclose(result, (SIZE + 1) / 2 * upstream[first : first + counts[RANK]])


def test_allgather_with_a_rank_without_rows(hvd, session):
    result = gradient(hvd.allgather, np.ones((RANK, 2)), np.ones((sum(RANKS), 2)))
    assert np.array_equal(result, np.ones((RANK, 2)))


@pytest.mark.parametrize("root", sorted({0, SIZE - 1}))
def test_broadcast_gives_the_root_the_average(hvd, session, root):
    upstream = [RANK + 1.0, np.inf if root == RANK else 1.0]
    result = gradient(lambda x: hvd.broadcast(x, root), [1.0, 2.0], upstream, [None])
    assert result.tolist() == ([(SIZE + 1) / 2, np.inf] if root == RANK else [0.0, 0.0])


@pytest.mark.parametrize("shape", ["like value", [None, 2], None], ids=["known", "open", "unknown"])
@pytest.mark.parametrize("given", [False, True], ids=["equal splits", "given splits"])
def test_alltoall_sends_the_rows_back(hvd, session, given, shape):
    splits = [[rank + 2 * receiver + 1 if given else 2 for receiver in RANKS] for rank in RANKS]
    # Every receiver weights the rows it got by its rank + 1 and by who sent them.
    upstream = [[(RANK + 1.0) * (sender + 10)] * 2 for sender in RANKS for _ in range(splits[sender][RANK])]
    result = gradient(
        lambda x: hvd.alltoall(x, splits[RANK])[0] if given else hvd.alltoall(x),
        np.ones((sum(splits[RANK]), 2)),
        upstream,
        shape,
    )
    expected = [(receiver + 1.0) * (RANK + 10) for receiver in RANKS for _ in range(splits[RANK][receiver])]
    assert result.tolist() == [[value] * 2 for value in expected]


def test_alltoall_has_none_for_its_splits(hvd, session):
    x, splits = tf.zeros([SIZE]), tf.ones([SIZE], tf.int32)
    assert tf.gradients(hvd.alltoall(x, splits)[0], splits) == [None]


SCATTERED = np.array([[rank + 1.0, 4.0, 0.0 if rank == 0 else 2.0, 3.0] for rank in RANKS])
SCATTERED_UPSTREAM = np.array([5.0, 6.0, 7.0, 8.0])


def scattered_gradient(op_name, prescale, postscale):
    """What each rank expects for x = SCATTERED[rank] and one upstream gradient for each reduced number."""
    total = SCATTERED_UPSTREAM * SIZE * postscale
    scaled = SCATTERED * prescale
    if op_name in ("Min", "Max"):
        holders = scaled == (scaled.min(0) if op_name == "Min" else scaled.max(0))
        return holders / holders.sum(0) * total * prescale
    if op_name == "Product":
        return [np.prod(np.delete(scaled, rank, 0), axis=0) * total * prescale for rank in RANKS]
    return np.tile(total * prescale / (SIZE if op_name == "Average" else 1), (SIZE, 1))


@pytest.mark.parametrize("grouped", [False, True], ids=["single", "grouped"])
@pytest.mark.parametrize("op_name", ["Sum", "Average", "Min", "Max", "Product"])
def test_reducescatter(hvd, session, op_name, grouped):
    """With allgather behind it, it has the gradient of an allreduce."""
    how = {"op": getattr(hvd, op_name), "prescale_factor": -0.5, "postscale_factor": 3.0}

    def build(x):
        return hvd.grouped_reducescatter([x, 2 * x], **how)[0] if grouped else hvd.reducescatter(x, **how)

    result = gradient(build, SCATTERED[RANK], np.array_split(SCATTERED_UPSTREAM, SIZE)[RANK], [None])
    np.testing.assert_allclose(result, scattered_gradient(op_name, -0.5, 3.0)[RANK], rtol=1e-14)


@pytest.mark.parametrize("name", [None, "group"])
@pytest.mark.parametrize("op_name", ["Sum", "Average", "Min", "Max", "Product"])
def test_grouped_allreduce_as_one_by_one(hvd, session, op_name, name):
    def graph(feed):
        x, factor = feed(SCATTERED[RANK]), feed(SCATTERED_UPSTREAM * (RANK + 1.0))
        op = getattr(hvd, op_name)
        group = hvd.grouped_allreduce([x, x * x], op=op, prescale_factor=0.5, name=name)
        single = [hvd.allreduce(one, op=op, prescale_factor=0.5) for one in (x, x * x)]
        return [tf.gradients(factor * one, x)[0] for one in (*group, *single, tf.add_n(group), tf.add_n(single))]

    first, second, *expected, both, both_expected = run(graph)
    np.testing.assert_allclose([first, second], expected, rtol=1e-14)
    np.testing.assert_allclose(both, both_expected, rtol=1e-14)


def test_groups_of_mixed_dtypes_with_unused_members(hvd, session):
    def graph(feed):
        singles, doubles = feed([RANK + 1.0], tf.float32), feed([1.0, RANK + 2.0], tf.float64)
        inputs = [singles, doubles, doubles * 2, feed([RANK])]
        reduced = hvd.grouped_allreduce(inputs, op=hvd.Sum)
        gathered = hvd.grouped_allgather([doubles, doubles * 2], name="gathered")
        scattered = hvd.grouped_reducescatter([feed(np.ones(SIZE)), doubles])
        return (
            tf.gradients(reduced[0], singles)[0],
            tf.gradients(reduced[2], doubles)[0],
            tf.gradients(gathered[1], doubles)[0],
            tf.gradients(scattered[1], doubles)[0],
        )

    of_singles, of_doubles, of_gathered, of_scattered = run(graph)
    assert (of_singles.dtype, of_singles.tolist()) == (np.float32, [SIZE])
    assert (of_doubles.dtype, of_doubles.tolist()) == (np.float64, [2.0 * SIZE] * 2)
    assert of_gathered.tolist() == [2.0, 2.0]
    assert of_scattered.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("verb", ["grouped_allreduce", "grouped_allgather", "grouped_reducescatter"])
def test_groups_take_none_and_float32_for_what_nobody_used(hvd, session, verb):
    """Some versions of TensorFlow give these."""

    def graph(feed):
        op = getattr(hvd, verb)([feed(np.ones(SIZE)), feed(np.ones(SIZE))])[0].op
        upstream = np.ones(session.run(op.outputs[1], feed.values).shape, np.float32)
        return list(getattr(hvd.mpi_ops, f"_{verb}_grad")(op, None, tf.constant(upstream)))

    unused, used = run(graph)
    assert (unused.dtype, used.dtype) == (np.float64, np.float64)
    assert (unused.tolist(), used.tolist()) == ([0.0] * SIZE, [1.0] * SIZE)


def test_grouped_allgather_gives_back_own_rows(hvd, session):
    upstream = np.arange(1.0 * sum(RANKS) + SIZE)

    def graph(feed):
        x = feed(np.ones(RANK + 1), shape=[None])
        rows = hvd.grouped_allgather([tf.zeros([2]), x])[1]
        return tf.gradients(rows * feed(upstream * (RANK + 1)), x)[0]

    first = sum(RANKS[:RANK]) + RANK
    np.testing.assert_allclose(run(graph), (SIZE + 1) / 2 * upstream[first : first + RANK + 1])


def test_second_derivative(hvd, session):
    def graph(feed):
        x = feed([RANK + 1.0])
        first = tf.gradients(hvd.allreduce(x**3, op=hvd.Sum), x)[0]
        return tf.gradients(first, x)[0]

    # Every rank's sum depends on x: the gradient of n sums is n * 3 x^2, and that gradient's over n ranks n^2 * 6 x.
    np.testing.assert_allclose(run(graph), [6.0 * (RANK + 1) * SIZE])


def test_scalar_ops_have_none(hvd, session):
    x = tf.compat.v1.placeholder(tf.float32, [])
    assert tf.gradients(x * tf.cast(hvd.size_op() * hvd.rank_op(), tf.float32), x)[0] is not None
    assert tf.gradients(tf.cast(hvd.size_op(), tf.float32), x) == [None]


def test_in_eager_mode(hvd):
    x = tf.constant([RANK + 1.0, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        total = hvd.allreduce(x, op=hvd.Sum, name="named")
        largest = hvd.allreduce(x, op=hvd.Max)
        everything = hvd.allgather(x)
        received = hvd.broadcast(x, 0)
        first, second = hvd.grouped_allreduce([x, tf.cast(x, tf.float64)], op=hvd.Sum)
        scattered = hvd.grouped_reducescatter([x, tf.cast(x, tf.float64)[:1]])
        swapped, _ = hvd.alltoall(x, [2] + [0] * (SIZE - 1))
    assert tape.gradient(total, x).numpy().tolist() == [SIZE, SIZE]
    assert tape.gradient(largest, x).numpy().tolist() == [SIZE if RANK == SIZE - 1 else 0, 1]
    assert tape.gradient(everything, x).numpy().tolist() == [1, 1]
    assert tape.gradient(received, x).numpy().tolist() == ([1, 1] if RANK == 0 else [0, 0])
    assert tape.gradient(first, x).numpy().tolist() == [SIZE, SIZE]
    assert tape.gradient(second, x).numpy().tolist() == [SIZE, SIZE]
    assert tape.gradient(scattered[0], x).numpy().tolist() == [1, 1]
    assert tape.gradient(swapped, x).numpy().tolist() == [1, 1]


def test_in_a_function(hvd):
    @tf.function
    def derivative(x):
        y = hvd.allreduce(x * x, op=hvd.Sum)
        return tf.gradients(y, x)[0]

    assert derivative(tf.constant([RANK + 1.0])).numpy().tolist() == [2.0 * (RANK + 1) * SIZE]
