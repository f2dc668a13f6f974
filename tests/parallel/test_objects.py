"""broadcast_object, broadcast_object_fn and allgather_object."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf
from world import RANK, SIZE

pytestmark = pytest.mark.node_split

RANKS = range(SIZE)
LAST = SIZE - 1


def thing(rank):
    """Of another type and size on each rank."""
    kinds = [{"epoch": 3, "rates": [0.1, 0.2]}, "x" * 100_000, None, (1, np.arange(5).tolist())]
    return kinds[rank % len(kinds)]


@pytest.mark.parametrize("root", sorted({0, LAST}))
def test_broadcast_from_each_root(hvd, root):
    mine = thing(RANK)
    received = hvd.broadcast_object(mine, root, name="thing")
    assert received == thing(root)
    assert root != RANK or received is mine
    assert hvd.broadcast_object(RANK) == 0


def test_allgather(hvd):
    assert hvd.allgather_object(thing(RANK)) == [thing(rank) for rank in RANKS]
    assert hvd.allgather_object(RANK, name="numbers") == list(RANKS)


def test_broadcast_object_fn(hvd, session):
    broadcast = hvd.broadcast_object_fn(root_rank=LAST, session=session, name="fn")
    assert [broadcast((RANK, i)) for i in range(3)] == [(LAST, i) for i in range(3)]


def test_large_objects(hvd):
    array = hvd.broadcast_object(np.arange(3_000_000) * (RANK + 1), LAST)
    assert np.array_equal(array, np.arange(3_000_000) * SIZE)
    assert [len(part) for part in hvd.allgather_object(bytes(1_000_000 + RANK))] == [1_000_000 + r for r in RANKS]


def test_graphs_do_not_grow(hvd):
    """With a session, without one, and on a finalised graph."""
    with tf.Graph().as_default() as graph:
        tf.constant(1.0)
        before = len(graph.get_operations())
        assert hvd.broadcast_object(thing(RANK)) == thing(0)
        graph.finalize()
        with tf.compat.v1.Session() as session:
            for _ in range(3):
                assert hvd.broadcast_object(thing(RANK), session=session) == thing(0)
                assert hvd.allgather_object(RANK, session) == list(RANKS)
        assert len(graph.get_operations()) == before


def test_functions_of_the_test_are_sent_where_cloudpickle_is_there(hvd):
    pytest.importorskip("cloudpickle")
    offset = RANK + 10
    assert hvd.broadcast_object(lambda x: x + offset, LAST)(1) == LAST + 11


def test_what_cannot_be_pickled_is_an_error_on_every_rank(hvd):
    lock = threading.Lock() if RANK == LAST else None
    for _ in range(2):
        with pytest.raises(TypeError if RANK == LAST else ValueError, match="pickle"):
            hvd.broadcast_object(lock, LAST)
        with pytest.raises(TypeError if RANK == LAST else ValueError, match="pickle"):
            hvd.allgather_object(lock)
        assert hvd.broadcast_object(RANK, LAST) == LAST


def test_roots_out_of_range(hvd):
    for _ in range(2):
        with pytest.raises(ValueError, match="root"):
            hvd.broadcast_object(1, root_rank=SIZE)
        assert hvd.broadcast_object(RANK) == 0
