"""join: ranks without further steps let the others go on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from world import RANK, SIZE, allgather

v1 = tf.compat.v1
pytestmark = pytest.mark.node_split

RANKS = range(SIZE)
apart = pytest.mark.skipif(SIZE == 1, reason="one rank waits for nobody")


def steps(rank, longest):
    """How many steps a rank makes: two more than the rank before it, ``longest`` the most."""
    return 1 + 2 * ((rank - longest - 1) % SIZE)


@pytest.mark.parametrize("longest", sorted({0, SIZE - 1}))
def test_unequal_steps_again_and_again(hvd, session, longest):
    """Averages divide by those that took part; a second join waits as the first did."""
    x = v1.placeholder(tf.float64, [2])
    results = {
        "mean": hvd.allreduce(x),
        "sum": hvd.allreduce(x, op=hvd.Sum, postscale_factor=0.5),
        "min": hvd.allreduce(x, op=hvd.Min),
        "max": hvd.allreduce(-x, op=hvd.Max),
        "product": hvd.allreduce(x, op=hvd.Product),
        "integer": hvd.allreduce(tf.cast(x, tf.int32), op=hvd.Min),
    }
    group = hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum)
    join = hvd.join()
    for repetition in range(3):
        for step in range(repetition + steps(RANK, longest)):
            value = session.run([results, group], {x: [RANK + 2.0, step + 1.0]})
            held = np.array([[rank + 2.0, step + 1.0] for rank in RANKS if step < repetition + steps(rank, longest)])
            np.testing.assert_allclose(value[0]["mean"], held.mean(0))
            np.testing.assert_allclose(value[0]["sum"], held.sum(0) / 2)
            np.testing.assert_allclose(value[0]["min"], held.min(0))
            np.testing.assert_allclose(value[0]["max"], -held.min(0))
            np.testing.assert_allclose(value[0]["product"], held.prod(0))
            assert np.array_equal(value[0]["integer"], held.min(0))
            np.testing.assert_allclose(value[1], [held.sum(0), 2 * held.sum(0)])
        assert session.run(join) == longest


def test_result_is_an_int32_scalar(hvd, session):
    last = hvd.join()
    assert (last.dtype, last.shape.as_list()) == (tf.int32, [])
    for _ in range(3):
        outcome = session.run(last)
        assert outcome in RANKS
        assert len({rank for (rank,) in allgather([outcome])}) == 1


def test_in_eager_mode(hvd):
    for repetition in range(3):
        last = (repetition + 1) % SIZE
        for step in range(steps(RANK, last)):
            there = [rank for rank in RANKS if step < steps(rank, last)]
            assert hvd.allreduce(RANK + 1.0).numpy() == pytest.approx(np.mean(there) + 1)
        assert hvd.join().numpy() == last


def test_two_joins_in_one_run(hvd, session):
    """They follow one another: the ranks are free to run theirs one by one."""
    x = v1.placeholder(tf.float32, [])
    mean = hvd.allreduce(x)
    joins = [hvd.join(), hvd.join()]
    for _ in range(2):
        if RANK == SIZE - 1:
            for join in joins:
                assert session.run(mean, {x: RANK}) == RANK
                assert session.run(join) == SIZE - 1
        else:
            assert session.run(joins) == [SIZE - 1] * 2
        assert session.run(mean, {x: RANK}) == (SIZE - 1) / 2


def test_joins_of_two_threads(hvd):
    with ThreadPoolExecutor(2) as pool:
        results = sorted(pool.map(lambda _: hvd.join().numpy(), range(2)))
    assert allgather(results) == [results] * SIZE


OTHERS = {
    "allgather": lambda hvd, x: hvd.allgather(x),
    "broadcast": lambda hvd, x: hvd.broadcast(x, 0),
    "alltoall": lambda hvd, x: hvd.alltoall(x),
    "reducescatter": lambda hvd, x: hvd.reducescatter(x),
}


@apart
@pytest.mark.parametrize("verb", OTHERS)
def test_other_collectives_meanwhile_are_errors(hvd, session, verb):
    """The ranks that joined stay so, and the others go on."""
    x = v1.placeholder(tf.float32, [SIZE])
    other, mean, join = OTHERS[verb](hvd, x), hvd.allreduce(x), hvd.join()
    for _ in range(2):
        if RANK > 0:
            with pytest.raises(tf.errors.FailedPreconditionError, match=r"(?i)join"):
                session.run(other, {x: np.ones(SIZE)})
            assert session.run(mean, {x: np.full(SIZE, RANK)}).tolist() == [SIZE / 2] * SIZE
        session.run(join)
        session.run(other, {x: np.ones(SIZE)})


def test_an_optimizer_with_unequal_steps(hvd, session):
    weights = v1.get_variable("w", initializer=[0.0, 0.0], use_resource=True)
    c = v1.placeholder(tf.float32, [])
    train = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0)).minimize(c * tf.reduce_sum(weights))
    session.run(v1.global_variables_initializer())
    expected = 0.0
    for step in range(RANK + 1):
        session.run(train, {c: RANK + 1.0})
        expected -= np.mean([rank + 1.0 for rank in RANKS if step < rank + 1])
    session.run(hvd.join())
    np.testing.assert_allclose(session.run(weights), [expected] * 2, rtol=1e-6)
