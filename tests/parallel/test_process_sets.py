"""Process sets given to init: the even ranks and the odd ranks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from fed import run
from world import RANK, SIZE

v1 = tf.compat.v1
pytestmark = [pytest.mark.node_split, pytest.mark.skipif(SIZE < 2, reason="one rank has no subsets")]

EVEN, ODD = list(range(0, SIZE, 2)), list(range(1, SIZE, 2))
MINE = ODD if RANK % 2 else EVEN


@pytest.fixture(scope="module")
def sets(hvd):
    hvd.shutdown()
    even, odd = hvd.ProcessSet(EVEN), hvd.ProcessSet(ODD)
    hvd.init(process_sets=[even, odd])
    yield even, odd
    hvd.shutdown()
    hvd.init()


@pytest.fixture
def mine(sets):
    return sets[RANK % 2]


@pytest.fixture
def other(sets):
    return sets[1 - RANK % 2]


def test_members(hvd, session, sets, mine, other):
    assert [one.process_set_id for one in sets] == [1, 2]
    assert [one.ranks for one in sets] == [EVEN, ODD]
    assert str(sets[1]) == f"ProcessSet(process_set_id=2, ranks={ODD}, mpi_comm=None)"
    assert (mine.included(), other.included()) == (True, False)
    assert (mine.size(), mine.rank(), other.size()) == (len(MINE), MINE.index(RANK), SIZE - len(MINE))
    with pytest.raises(ValueError, match="not part"):
        other.rank()
    ops = [hvd.size_op(1), hvd.size_op(2), hvd.process_set_included_op(1), hvd.process_set_included_op(2)]
    assert session.run(ops) == [len(EVEN), len(ODD), 1 - RANK % 2, RANK % 2]


def test_collectives(hvd, session, mine):
    def build(feed):
        x = feed([RANK + 1.0])
        slices = tf.IndexedSlices(feed([[RANK + 1.0]]), feed([RANK]), tf.constant([SIZE, 1]))
        return {
            "mean": hvd.allreduce(x, process_set=mine),
            "everyone": hvd.allreduce(x, op=hvd.Sum),
            "rows": hvd.allgather(x, process_set=mine),
            "sent": hvd.broadcast(x, MINE[-1], process_set=mine),
            "sparse": hvd.allreduce(slices, process_set=mine),
            "named": hvd.allreduce(x, op=hvd.Sum, process_set=mine, name="same"),
            "barrier": hvd.barrier(process_set=mine),
            "group": hvd.grouped_allreduce([x, slices, 2 * x], process_set=mine),
            "rows of group": hvd.grouped_allgather([x, feed([RANK])], process_set=mine),
            "sent around": hvd.alltoall(feed(np.full(len(MINE), RANK)), process_set=mine),
            "splits": hvd.alltoall(feed(np.full(len(MINE), RANK)), feed([1] * len(MINE), tf.int32), process_set=mine),
            "own row": hvd.reducescatter(feed(np.arange(len(MINE)) + 10.0 * RANK), process_set=mine),
            "own rows": hvd.grouped_reducescatter([feed(np.full(2 * len(MINE), RANK))], op=hvd.Sum, process_set=mine),
        }

    result = run(build)
    values = np.add(MINE, 1.0)
    assert result["mean"] == pytest.approx([values.mean()])
    assert result["everyone"] == SIZE * (SIZE + 1) / 2
    assert result["rows"].tolist() == values.tolist()
    assert result["sent"].tolist() == [MINE[-1] + 1.0]
    np.testing.assert_allclose(result["sparse"].values[:, 0], values / len(MINE))
    assert result["named"] == values.sum()
    np.testing.assert_allclose([result["group"][0], result["group"][2]], [[values.mean()], [2 * values.mean()]])
    assert np.array_equal(result["group"][1].values, result["sparse"].values)
    assert [rows.tolist() for rows in result["rows of group"]] == [values.tolist(), MINE]
    assert result["sent around"].tolist() == MINE
    assert [part.tolist() for part in result["splits"]] == [MINE, [1] * len(MINE)]
    np.testing.assert_allclose(result["own row"], [MINE.index(RANK) + 10 * np.mean(MINE)])
    assert result["own rows"][0].tolist() == [sum(MINE)] * 2


def test_in_eager_mode(hvd, mine, other):
    assert hvd.allreduce(RANK, op=hvd.Sum, process_set=mine).numpy() == sum(MINE)
    assert hvd.alltoall([RANK] * len(MINE), process_set=mine).numpy().tolist() == MINE
    assert hvd.grouped_allreduce([RANK, 1.0], op=hvd.Sum, process_set=mine)[1].numpy() == len(MINE)
    with pytest.raises(tf.errors.InvalidArgumentError, match="member"):
        hvd.allreduce(RANK, process_set=other)


def test_objects_and_variables(hvd, session, mine):
    assert hvd.broadcast_object({"rank": RANK}, MINE[-1], process_set=mine) == {"rank": MINE[-1]}
    assert hvd.broadcast_object_fn(MINE[0], process_set=mine)(RANK) == MINE[0]
    assert hvd.allgather_object(str(RANK), process_set=mine) == [str(rank) for rank in MINE]
    variable = v1.get_variable("v", initializer=RANK + 0.5, use_resource=True)
    updated = hvd.broadcast_([variable], MINE[-1], process_set=mine)
    session.run(variable.initializer)
    assert session.run(updated) == [MINE[-1] + 0.5]


def test_names_that_other_code_reaches_for(hvd, sets):
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {0: list(range(SIZE)), 1: EVEN, 2: ODD}
    again = hvd.mpi_ops._temp_process_set_object(2)
    assert str(again) == str(sets[1])
    with pytest.raises(ValueError, match="99"):
        hvd.mpi_ops._temp_process_set_object(99)


def test_one_set_alone(hvd, session, sets):
    """Ranks outside have nothing to do with it."""
    if RANK in ODD:
        total = run(lambda feed: hvd.allreduce(feed([RANK + 1.0]), op=hvd.Sum, process_set=sets[1]))
        assert total == sum(ODD) + len(ODD)


def test_gradients(hvd, session, mine):
    def build(feed):
        x = feed([RANK + 1.0])
        ys = [
            hvd.allreduce(x, op=hvd.Sum, process_set=mine),
            hvd.allreduce(x, op=hvd.Max, process_set=mine),
            hvd.allgather(x, process_set=mine)[: MINE.index(RANK) + 1],
            hvd.broadcast(x, MINE[0], process_set=mine),
            hvd.reducescatter(tf.tile(x, [len(MINE)]), op=hvd.Sum, process_set=mine),
            hvd.alltoall(tf.tile(x, [len(MINE)]), process_set=mine),
            hvd.grouped_allreduce([x, x], op=hvd.Min, process_set=mine)[0],
        ]
        return [tf.gradients(y * feed(RANK + 1.0), x)[0] for y in ys]

    total, largest, gathered, sent, scattered, swapped, smallest = run(build)
    upstream = np.add(MINE, 1.0)
    assert total == upstream.sum()
    assert largest == (upstream.sum() if MINE[-1] == RANK else 0)
    # Rank number i of the set reads the rows up to its own.
    assert gathered == pytest.approx([upstream[MINE.index(RANK) :].sum() / len(MINE)])
    assert scattered == pytest.approx([len(MINE) * upstream.sum()])
    assert swapped == upstream.sum()
    assert smallest == (upstream.sum() if MINE[0] == RANK else 0)
    assert sent == (pytest.approx([upstream.mean()]) if MINE[0] == RANK else 0)


def test_optimizer(hvd, session, sets):
    """Members of the odd set average; the others step by their own gradient."""
    w = v1.get_variable("w", initializer=[0.0])
    c = v1.placeholder(tf.float32, [])
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), process_set=sets[1])
    step = optimizer.minimize(c * tf.reduce_sum(w))
    synchronise = hvd.broadcast_variables([w], ODD[0], process_set=sets[1]) if RANK in ODD else tf.no_op()
    session.run(v1.global_variables_initializer())
    session.run(w.assign([100.0 * RANK]))
    session.run(synchronise)
    session.run(step, {c: RANK + 1.0})
    expected = 100.0 * ODD[0] - np.mean(np.add(ODD, 1.0)) if RANK in ODD else 100.0 * RANK - (RANK + 1)
    np.testing.assert_allclose(session.run(w), [expected], rtol=1e-6)


def test_foreigners_get_an_error(hvd, session, other):
    with pytest.raises(tf.errors.InvalidArgumentError, match="member"):
        run(lambda feed: hvd.allreduce(feed([1.0]), process_set=other, name="foreign"))
    synchronise = hvd.broadcast_variables([v1.get_variable("v", [1])], 0, process_set=other)
    session.run(v1.global_variables_initializer())
    with pytest.raises(tf.errors.InvalidArgumentError, match="member"):
        session.run(synchronise)


def test_root_outside_the_set(hvd, session, sets, mine):
    outside = ODD[0] if RANK in EVEN else EVEN[0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="root"):
        run(lambda feed: hvd.broadcast(feed([1.0]), outside, process_set=mine))


def test_unregistered_sets_are_refused(hvd, session, sets):
    with pytest.raises(ValueError, match="registered"):
        hvd.allreduce(1.0, process_set=hvd.ProcessSet([0]))


def test_added_and_removed_while_the_job_runs(hvd, session, sets):
    if SIZE == 2:
        pytest.skip("two ranks have no set of two beside the world")
    first = hvd.add_process_set([1, 0])
    assert (first.process_set_id, first.ranks) == (3, [0, 1])
    if first.included():
        assert run(lambda feed: hvd.allreduce(feed([RANK]), op=hvd.Sum, process_set=first)) == 1
    with pytest.raises(ValueError, match="already"):
        hvd.add_process_set(EVEN)
    assert hvd.remove_process_set(first)
    assert first.process_set_id is None
    assert not hvd.remove_process_set(first)
    assert not hvd.remove_process_set(hvd.global_process_set)
    with pytest.raises(ValueError, match="registered"):
        hvd.allreduce(1.0, process_set=first)
    # By default the name would come from the tensor's, which another one in the graphs of some ranks has shifted.
    assert run(lambda feed: hvd.allreduce(feed([RANK]), op=hvd.Sum, name="all")) == sum(range(SIZE))
