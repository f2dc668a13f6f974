"""barrier: nobody passes before all have come."""

from __future__ import annotations

import time

import pytest
import tensorflow as tf
from world import RANK, SIZE, allgather

pytestmark = pytest.mark.node_split


def microseconds():
    return time.monotonic_ns() // 1000


def assert_nobody_left_early(entered, left):
    times = allgather([entered, left])
    assert min(left for _, left in times) >= max(entered for entered, _ in times)


@pytest.mark.parametrize("late", [0, SIZE - 1])
def test_waits_for_the_last_in_a_session(hvd, session, late):
    barrier = hvd.barrier()
    assert isinstance(barrier, tf.Operation)
    for _ in range(2):
        if late == RANK:
            time.sleep(0.2)
        entered = microseconds()
        session.run(barrier)
        assert_nobody_left_early(entered, microseconds())


def test_waits_for_the_last_in_eager_mode(hvd):
    if RANK == 0:
        time.sleep(0.2)
    entered = microseconds()
    assert hvd.barrier() is None
    assert_nobody_left_early(entered, microseconds())


def test_several_in_one_graph(hvd, session):
    first = hvd.barrier()
    with tf.control_dependencies([first]):
        second = hvd.barrier()
    third = hvd.barrier(name="mine")
    session.run([second, third])
