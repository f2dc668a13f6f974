"""Beside a user's own mpi4py, with communicators as worlds, and again after shutdown."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf
from mpi4py import MPI
from world import COMM, RANK, SIZE

v1 = tf.compat.v1


@pytest.fixture
def back_to_the_world(hvd, monkeypatch):
    """For tests that leave the world behind: afterwards it is formed again."""
    # It describes nodes of the whole world, not of a part.
    monkeypatch.delenv("COMPAT_HVD_NODE_SPLIT", raising=False)
    yield
    hvd.shutdown()
    monkeypatch.undo()
    hvd.init()


def average_of_world_rank(hvd):
    with tf.Graph().as_default(), v1.Session() as session:
        tensor = v1.placeholder(tf.float32, [])
        return session.run(hvd.allreduce(tensor), {tensor: RANK})


@pytest.mark.node_split
def test_streams_of_both_do_not_mix(hvd):
    """BR-11, first half: a thread reduces while the main thread calls MPI on COMM_WORLD."""
    wrong = []

    def reduce_in_thread():
        try:
            with tf.Graph().as_default(), v1.Session() as session:
                tensor = v1.placeholder(tf.float64, [1000])
                total = hvd.allreduce(tensor, op=hvd.Sum)
                for i in range(100):
                    result = session.run(total, {tensor: np.full(1000, i + RANK)})
                    if (result != SIZE * i + sum(range(SIZE))).any():
                        wrong.append((i, result))
        except Exception as error:
            wrong.append(error)

    thread = threading.Thread(target=reduce_in_thread)
    thread.start()
    received = np.empty(1000)
    for i in range(100):
        MPI.COMM_WORLD.Allreduce(np.full(1000, 7.0 * i + RANK), received)
        if (received != SIZE * 7.0 * i + sum(range(SIZE))).any():
            wrong.append(("mpi4py", i, received))
    thread.join()
    assert wrong == []


def test_split_world(hvd, back_to_the_world):
    """BR-11, second half: even and odd ranks become worlds of their own."""
    hvd.shutdown()
    assert not hvd.is_initialized()
    assert not MPI.Is_finalized()
    half = COMM.Split(RANK % 2, RANK)
    hvd.init(comm=half)
    mine = range(RANK % 2, SIZE, 2)
    assert (hvd.size(), hvd.rank()) == (len(mine), RANK // 2)
    assert average_of_world_rank(hvd) == pytest.approx(np.mean(mine))
    half.Free()


def test_list_of_ranks(hvd, back_to_the_world):
    """All but the last rank form a world, which is too late to hear of from the last one itself."""
    members = list(range(max(1, SIZE - 1)))
    hvd.shutdown()
    if RANK in members:
        hvd.init(comm=members)
        assert (hvd.size(), hvd.rank()) == (len(members), RANK)
        assert average_of_world_rank(hvd) == pytest.approx(np.mean(members))
    else:
        with pytest.raises(ValueError, match=str(RANK)):
            hvd.init(comm=members)
        assert not hvd.is_initialized()


def test_again_and_again(hvd, back_to_the_world):
    for _ in range(3):
        hvd.shutdown()
        with pytest.raises(ValueError, match="not been initialized"):
            hvd.size()
        hvd.init()
        assert average_of_world_rank(hvd) == pytest.approx(np.mean(range(SIZE)))


def test_a_graph_outlives_the_world_it_was_built_in(hvd, back_to_the_world):
    with tf.Graph().as_default(), v1.Session() as session:
        tensor = v1.placeholder(tf.float32, [])
        total = hvd.allreduce(tensor, op=hvd.Sum)
        assert session.run(total, {tensor: 1.0}) == SIZE
        hvd.shutdown()
        with pytest.raises((tf.errors.FailedPreconditionError, tf.errors.UnknownError)):
            session.run(total, {tensor: 1.0})
        hvd.init()
        assert session.run(total, {tensor: 1.0}) == SIZE
