"""The ranks as the tests themselves know them, apart from the library under test."""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

COMM = MPI.COMM_WORLD.Dup()
RANK = COMM.Get_rank()
SIZE = COMM.Get_size()


def _wait(request):
    # A blocking call would keep a core busy that a slower rank may need.
    while not request.Test():
        time.sleep(0.002)


def allgather(numbers):
    """Every rank's list of integers, in the order of ranks; all lists have the same length."""
    mine = np.array(numbers, np.int64)
    theirs = np.empty((SIZE, len(mine)), np.int64)
    _wait(COMM.Iallgather(mine, theirs))
    return theirs.tolist()


def equal_on_all_ranks(array):
    """Whether all ranks hold the same bytes."""
    mine = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    root = mine.copy()
    if len({length for (length,) in allgather([mine.size])}) > 1:
        return False
    _wait(COMM.Ibcast(root, 0))
    return all(same for (same,) in allgather([np.array_equal(mine, root)]))
