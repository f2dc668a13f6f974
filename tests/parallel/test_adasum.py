"""op=hvd.Adasum against a NumPy model: dtypes, shapes, zeros, groups, joins, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from adasum_model import adasum
from fed import Feed, run
from world import RANK, SIZE, equal_on_all_ranks

v1 = tf.compat.v1
pytestmark = pytest.mark.node_split

RANKS = range(SIZE)
possible = SIZE & (SIZE - 1) == 0
adaptive = pytest.mark.skipif(not possible, reason="Adasum needs a number of ranks that is a power of two")
apart = pytest.mark.skipif(SIZE == 1, reason="one rank waits for nobody")

PRECISION = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 2e-6, "float64": 1e-13}
# The largest spans several chunks of shared memory for every dtype, and is divisible by no number of ranks.
SHAPES = [(), (1,), (0,), (0, 3), (7,), (3, 5), (1001, 701)]


def values(shape, rank, salt=0):
    """Multiples of 1/4 between -3 and 3, exact in every dtype; the ranks' are neither parallel nor orthogonal."""
    draw = np.random.default_rng([salt, rank]).integers(-8, 9, size=shape)
    return (np.asarray(draw) + rank) / 4.0


def check(result, vectors, dtype="float64", factor=1.0):
    expected = factor * adasum(vectors)
    largest = np.max(np.abs(expected), initial=1e-30)
    assert result.shape == expected.shape
    np.testing.assert_allclose(np.asarray(result, np.float64), expected, rtol=0, atol=PRECISION[dtype] * largest)
    assert equal_on_all_ranks(result)


@adaptive
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", PRECISION)
def test_values(hvd, session, dtype, shape):
    """Of a tensor that stays, and of one whose memory the result may take."""
    kind = tf.as_dtype(dtype)

    def build(feed):
        x = feed(values(shape, RANK), kind)
        return hvd.allreduce(x, op=hvd.Adasum), hvd.allreduce(x + x, op=hvd.Adasum), x

    result, of_temporary, untouched = run(build)
    assert result.dtype == of_temporary.dtype == kind.as_numpy_dtype
    check(result, [values(shape, rank) for rank in RANKS], dtype)
    check(of_temporary, [2 * values(shape, rank) for rank in RANKS], dtype)
    assert np.array_equal(np.asarray(untouched, np.float64), values(shape, RANK))


@adaptive
def test_scale_factors(hvd, session):
    """The sum is homogeneous: both factors multiply it."""
    result = run(
        lambda feed: hvd.allreduce(
            feed(values((50,), RANK)), op=hvd.Adasum, prescale_factor=0.1, postscale_factor=-1 / 3
        )
    )
    check(result, [values((50,), rank) for rank in RANKS], factor=-0.1 / 3)


@adaptive
def test_zeros_and_nothing_but_zeros(hvd, session):
    one, none = values((9,), 5), np.zeros(9)
    for holders in [[0], [SIZE - 1], sorted({0, SIZE - 1}), []]:
        result = run(lambda feed, holders=holders: hvd.allreduce(feed(one if RANK in holders else none), op=hvd.Adasum))
        assert np.array_equal(result, one if holders else none)


@adaptive
def test_equal_opposite_and_orthogonal(hvd, session):
    unit = np.eye(SIZE)[RANK]
    equal, opposite, orthogonal = run(
        lambda feed: [
            hvd.allreduce(feed(values((33,), 5)), op=hvd.Adasum),
            hvd.allreduce(feed((-1.0) ** RANK * values((33,), 5)), op=hvd.Adasum),
            hvd.allreduce(feed((RANK + 1) * unit), op=hvd.Adasum),
        ]
    )
    assert np.array_equal(equal, values((33,), 5))
    assert np.array_equal(opposite, values((33,), 5) * (SIZE == 1))
    assert np.array_equal(orthogonal, np.arange(SIZE) + 1.0)


@adaptive
def test_squares_beyond_the_dtype(hvd, session):
    half, single, tiny = run(
        lambda feed: [
            hvd.allreduce(feed([60000.0] * 100, tf.float16), op=hvd.Adasum),
            hvd.allreduce(feed([3e38] * 100, tf.float32), op=hvd.Adasum),
            hvd.allreduce(feed([1e-38] * 100, tf.float32), op=hvd.Adasum),
        ]
    )
    assert half.tolist() == [np.float16(60000.0)] * 100
    assert single.tolist() == [np.float32(3e38)] * 100
    assert tiny.tolist() == [np.float32(1e-38)] * 100


@adaptive
def test_what_is_not_finite_shows_in_its_tensor_only(hvd, session):
    for bad in (np.nan, np.inf):
        spoilt, clean = run(
            lambda feed, bad=bad: hvd.grouped_allreduce(
                [feed([1.0, bad if RANK == SIZE - 1 else 2.0]), feed([1.0, 2.0])], op=hvd.Adasum
            )
        )
        assert not np.isfinite(spoilt).all()
        assert clean.tolist() == [1.0, 2.0]


@adaptive
def test_many_tensors_at_once_keep_their_own_dot_products(hvd, session):
    """Sixty tensors of odd sizes, whose lengths differ by orders of magnitude, submitted singly and in a group."""
    sizes = [1 + 37 * t % 101 for t in range(60)]

    def vector(t, rank):
        return 10.0 ** (t % 7 - 3) * values((sizes[t],), rank, salt=t)

    feed = Feed()
    fed = [feed(vector(t, RANK)) for t in range(60)]
    singly = [hvd.allreduce(x, op=hvd.Adasum) for x in fed]
    together = hvd.grouped_allreduce(fed, op=hvd.Adasum)
    first = None
    for _ in range(3):
        result = session.run([singly, together], feed.values)
        for t in range(60):
            check(result[0][t], [vector(t, rank) for rank in RANKS])
            assert np.array_equal(result[0][t], result[1][t])
            assert first is None or np.array_equal(result[0][t], first[0][t])  # whatever was fused
        first = result


@adaptive
def test_compression(hvd, session):
    result, double = run(
        lambda feed: [
            hvd.allreduce(feed(values((40,), RANK), kind), op=hvd.Adasum, compression=hvd.Compression.fp16)
            for kind in (tf.float32, tf.float64)
        ]
    )
    assert (result.dtype, double.dtype) == (np.float32, np.float64)
    check(result, [values((40,), rank) for rank in RANKS], "float16")
    assert np.array_equal(result, double)


@adaptive
def test_eagerly_and_in_functions(hvd):
    x = tf.constant(values((11,), RANK))
    check(hvd.allreduce(x, op=hvd.Adasum).numpy(), [values((11,), rank) for rank in RANKS])
    traced = tf.function(lambda x: hvd.allreduce(x, op=hvd.Adasum, name="traced"))
    check(traced(x).numpy(), [values((11,), rank) for rank in RANKS])
    check(hvd._allreduce(x, op=hvd.Adasum).numpy(), [values((11,), rank) for rank in RANKS])


@adaptive
@apart
@pytest.mark.parametrize("longest", sorted({0, SIZE - 1}))
def test_ranks_that_have_joined_count_as_zeros(hvd, session, longest):
    x = v1.placeholder(tf.float64, [21])
    result, join = hvd.allreduce(x, op=hvd.Adasum), hvd.join()
    for _ in range(2):
        for step in range(1 + (RANK - longest - 1) % SIZE):
            there = [rank for rank in RANKS if step < 1 + (rank - longest - 1) % SIZE]
            vectors = [values((21,), rank, step) * (rank in there) for rank in RANKS]
            np.testing.assert_allclose(
                session.run(result, {x: values((21,), RANK, step)}), adasum(vectors), rtol=0, atol=1e-12
            )
        assert session.run(join) == longest


@pytest.mark.skipif(possible, reason="the number of ranks is a power of two")
def test_other_numbers_of_ranks_are_refused(hvd, session):
    x = tf.constant([1.0])
    for call in (
        lambda: hvd.allreduce(x, op=hvd.Adasum),
        lambda: hvd._allreduce(x, op=hvd.Adasum),
        lambda: hvd.grouped_allreduce([x], op=hvd.Adasum),
    ):
        with pytest.raises(NotImplementedError, match=f"power of two, not {SIZE}"):
            call()


@adaptive
def test_what_is_refused_when_it_is_built(hvd, session):
    x = tf.constant([[1.0]])
    with pytest.raises(NotImplementedError, match="IndexedSlices"):
        hvd.allreduce(tf.IndexedSlices(x, [0], [4, 1]), op=hvd.Adasum)
    with pytest.raises(NotImplementedError, match="IndexedSlices"):
        hvd.grouped_allreduce([x, tf.IndexedSlices(x, [0], [4, 1])], op=hvd.Adasum)
    for scatter in (hvd.reducescatter, lambda x, op: hvd.grouped_reducescatter([x], op=op)):
        with pytest.raises(NotImplementedError, match=r"reducescatter.*Adasum"):
            scatter(x, op=hvd.Adasum)
    for integers in (tf.constant([1]), tf.constant([1], tf.int8)):
        with pytest.raises(TypeError, match=f"Adasum.*{integers.dtype.name}"):
            hvd.allreduce(integers, op=hvd.Adasum)
    if SIZE > 1:
        one = hvd.add_process_set([0])
        with pytest.raises(NotImplementedError, match="process set"):
            hvd.allreduce(x, op=hvd.Adasum, process_set=one)
        assert hvd.remove_process_set(one)


def raw(hvd, tensor, process_set_id=0, name=None):
    """The op as an imported graph holds it, which nothing has checked."""
    return hvd.mpi_ops.MPI_LIB.horovod_allreduce(
        tensor,
        reduce_op=hvd.Adasum,
        prescale_factor=1.0,
        postscale_factor=1.0,
        process_set_id=process_set_id,
        name=name,
    )


@apart
def test_what_only_running_can_refuse(hvd, session):
    """On every rank, and the next collective works."""
    sets = [hvd.add_process_set([0])]
    wrong = {"int32": raw(hvd, v1.placeholder_with_default([1, 2], [2]))}
    if not possible:
        wrong["power of two"] = raw(hvd, v1.placeholder_with_default([1.0], [1]))
    if RANK == 0:
        wrong["process set"] = raw(hvd, v1.placeholder_with_default([1.0], [1]), sets[0].process_set_id)
    good = hvd.allreduce(1.0, op=hvd.Sum)
    for message, op in wrong.items():
        for _ in range(2):
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                session.run(op)
    assert session.run(good) == SIZE
    assert hvd.remove_process_set(sets[0])


@apart
@adaptive
def test_one_rank_with_another_op(hvd, session):
    x = v1.placeholder_with_default([1.0], [1])
    mixed = hvd.allreduce(x, op=hvd.Adasum if RANK == 0 else hvd.Sum, name="mixed")
    with pytest.raises(tf.errors.FailedPreconditionError, match="Adasum"):
        session.run(mixed)
    assert session.run(hvd.allreduce(x, op=hvd.Adasum, name="good")).tolist() == [1.0]


def slopes(vectors, gradient, step=1e-6):
    """The gradient of this rank's vector by central differences of the model."""
    result = np.zeros_like(vectors[RANK])
    for i in np.ndindex(result.shape):
        ends = []
        for sign in (1, -1):
            moved = [vector.copy() for vector in vectors]
            moved[RANK][i] += sign * step
            ends.append(np.sum(gradient * adasum(moved)))
        result[i] = (ends[0] - ends[1]) / (2 * step)
    return result


@adaptive
@pytest.mark.parametrize("grouped", [False, True])
def test_gradient(hvd, session, grouped):
    """That of the sum of all ranks' losses, as for the other reduce ops."""
    vectors = [values((2, 3), rank, 7) for rank in RANKS]
    total = sum(values((2, 3), rank, 8) for rank in RANKS)

    def build(feed):
        x = feed(vectors[RANK], shape=[None, 3])
        if grouped:
            (reduced,) = hvd.grouped_allreduce([x], op=hvd.Adasum, prescale_factor=3.0, postscale_factor=0.5)
        else:
            reduced = hvd.allreduce(x, op=hvd.Adasum, prescale_factor=3.0, postscale_factor=0.5)
        return tf.gradients(reduced, x, grad_ys=feed(values((2, 3), RANK, 8)))

    (gradient,) = run(build)
    np.testing.assert_allclose(gradient, 1.5 * slopes(vectors, total), rtol=1e-6, atol=1e-8)


@adaptive
@pytest.mark.parametrize("dtype", PRECISION)
def test_gradient_eagerly_in_every_dtype(hvd, dtype):
    x = tf.cast(values((4,), RANK, 7), dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(hvd.allreduce(x, op=hvd.Adasum))
    gradient = tape.gradient(loss, x)
    assert gradient.dtype == dtype
    expected = slopes([values((4,), rank, 7) for rank in RANKS], float(SIZE))
    np.testing.assert_allclose(tf.cast(gradient, tf.float64), expected, rtol=0, atol=4 * SIZE * PRECISION[dtype] + 1e-8)


@adaptive
def test_gradient_at_zero_is_finite(hvd, session):
    (gradient,) = run(lambda feed: tf.gradients(hvd.allreduce(x := feed(np.zeros(3)), op=hvd.Adasum), x))
    assert gradient.tolist() == [SIZE] * 3
