"""Process sets as lists, as communicators, and added while the job runs; sets that overlap."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import tensorflow as tf
from fed import run
from world import COMM, RANK, SIZE

pytestmark = [pytest.mark.node_split, pytest.mark.skipif(SIZE < 2, reason="one rank has no subsets")]

EVEN, ODD = list(range(0, SIZE, 2)), list(range(1, SIZE, 2))
MINE = ODD if RANK % 2 else EVEN


@pytest.fixture
def start(hvd):
    """Calls init anew with process sets; the world is as before after the test."""
    hvd.shutdown()
    yield lambda process_sets: hvd.init(process_sets=process_sets)
    hvd.shutdown()
    hvd.init()


def total(hvd, process_set):
    return hvd.allreduce(RANK, op=hvd.Sum, process_set=process_set).numpy()


def test_communicators(hvd, start):
    """Each rank gives the one that it belongs to; the set of the lowest rank has the lowest id."""
    mine = hvd.ProcessSet(COMM.Split(RANK % 2))
    assert (mine.ranks, mine.process_set_id, mine.included()) == (None, None, None)
    start([mine])
    assert (mine.process_set_id, mine.ranks) == (1 + RANK % 2, MINE)
    assert (mine.size(), mine.rank(), mine.included()) == (len(MINE), MINE.index(RANK), True)
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {0: list(range(SIZE)), 1: EVEN, 2: ODD}
    assert total(hvd, mine) == sum(MINE)


def test_lists_are_sets_as_well(hvd, start):
    start([EVEN, hvd.ProcessSet(reversed(ODD))])
    assert [hvd.size_op(number).numpy() for number in range(3)] == [SIZE, len(EVEN), len(ODD)]
    assert [hvd.process_set_included_op(number).numpy() for number in range(4)] == [1, 1 - RANK % 2, RANK % 2, -3]
    assert total(hvd, hvd.mpi_ops._temp_process_set_object(1 + RANK % 2)) == sum(MINE)
    with pytest.raises(tf.errors.InvalidArgumentError, match="3"):
        hvd.size_op(3)


def test_dynamic(hvd, start):
    start("dynamic")
    for _ in range(3):
        even, odd = hvd.add_process_set(EVEN), hvd.add_process_set(hvd.ProcessSet(ODD))
        assert total(hvd, (even, odd)[RANK % 2]) == sum(MINE)
        with pytest.raises(ValueError, match="already"):
            hvd.add_process_set(EVEN[::-1])
        assert hvd.remove_process_set(odd)
        assert hvd.remove_process_set(even)
        assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {0: list(range(SIZE))}


def test_a_second_init_adds_sets(hvd, start):
    start(None)
    odd = hvd.ProcessSet(ODD)
    hvd.init(process_sets=[odd])
    assert odd.process_set_id == 1
    if RANK in ODD:
        assert total(hvd, odd) == sum(ODD)


@pytest.mark.parametrize("sets", [[[0], [0]], [[0], list(range(SIZE))]], ids=["twice", "everyone"])
def test_after_a_duplicate_init_may_be_called_with_another_list(hvd, start, sets):
    """As with Horovod, the engine runs with the sets that differ."""
    with pytest.raises(ValueError, match="entry number 1 is a duplicate"):
        start(sets)
    assert hvd.is_initialized()
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {0: list(range(SIZE)), 1: [0]}
    odd, zero = hvd.ProcessSet(ODD), hvd.ProcessSet([0])
    hvd.init(process_sets=[odd, zero])
    assert (odd.process_set_id, zero.process_set_id) == (2, 1)
    with pytest.raises(ValueError, match="entry number 2 is a duplicate"):
        hvd.init(process_sets=[odd, zero, hvd.ProcessSet(ODD)])
    assert total(hvd, odd) == sum(ODD) if RANK in ODD else True


def test_a_communicator_and_a_list_of_the_same_ranks(hvd, start):
    """On the ranks that are in both, the list is a duplicate."""
    part, world = COMM.Split(RANK % 2), COMM.Dup()
    hvd.init(comm=world)
    assert hvd.global_process_set.mpi_comm == world
    hvd.shutdown()
    assert hvd.global_process_set.mpi_comm is None
    sets = [hvd.ProcessSet(part), hvd.ProcessSet(EVEN)]
    if RANK in EVEN:
        with pytest.raises(ValueError, match="entry number 1 is a duplicate"):
            hvd.init(comm=world, process_sets=sets)
    else:
        hvd.init(comm=world, process_sets=sets)
    hvd.init(comm=world, process_sets=[hvd.ProcessSet(part)])
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {0: list(range(SIZE)), 1: EVEN, 2: ODD}
    assert total(hvd, sets[0]) == sum(MINE)


BAD_SETS = {
    "nobody": [[]],
    "out of range": [[0, SIZE]],
    "a rank twice": [[1, 1]],
    "no list": "static",
}


@pytest.mark.parametrize("kind", BAD_SETS)
def test_wrong_sets_are_refused_and_init_may_follow(hvd, start, kind):
    with pytest.raises(ValueError, match=r"process_sets|hold"):
        start(BAD_SETS[kind])
    start([ODD])
    assert hvd.size_op(1).numpy() == len(ODD)


def test_an_id_that_is_not_that_of_the_set_is_refused(hvd, start):
    """When it is used, on the rank that uses it: of a set that never was, and of a copy that has outlived its set."""
    odd = hvd.ProcessSet(ODD)
    start([odd])
    invented, outlived = hvd.ProcessSet([0]), copy.copy(odd)
    invented.process_set_id = 10
    assert outlived.size() == len(ODD)
    assert hvd.remove_process_set(odd)
    assert hvd.add_process_set([0]).process_set_id == outlived.process_set_id
    for unregistered in (invented, outlived):
        for use in (hvd.ProcessSet.size, lambda one: hvd.allreduce(1.0, process_set=one)):
            with pytest.raises(ValueError, match="registered"):
                use(unregistered)


def test_ranks_that_are_no_integers(hvd):
    for wrong in ([0.0], ["0"], [True]):
        with pytest.raises(ValueError, match="integers"):
            hvd.ProcessSet(wrong)


@pytest.mark.skipif(SIZE < 3, reason="needs three ranks")
def test_overlapping_sets_in_opposite_orders(hvd, start):
    """One coordinator orders the collectives of all sets, so that no two ranks wait for each other."""
    members = [[0, 1], [1, 2], [0, 2]]
    sets = [hvd.ProcessSet(ranks) for ranks in members]
    start(sets)
    with tf.Graph().as_default(), tf.compat.v1.Session():

        def build(feed):
            order = np.roll(range(3), RANK)
            mine = [i for i in order if RANK in members[i]]
            x = feed(np.full(1000, RANK + 1.0))
            return {i: hvd.allreduce(x, process_set=sets[i], op=hvd.Sum, name=f"set{i}") for i in mine}

        for _ in range(3):
            for i, result in run(build).items():
                assert set(result) == {sum(members[i]) + 2.0}
