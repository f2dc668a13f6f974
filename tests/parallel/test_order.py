"""Submission in any order, with as few threads as TensorFlow can have."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
import tensorflow as tf
from world import RANK, SIZE

v1 = tf.compat.v1
DTYPES = [np.float32, np.float64, np.int32, np.int64]
COUNT = 200


@pytest.fixture(params=["fused", "unfused"])
def fusion(request, hvd, monkeypatch):
    """Runs the test with fusion as it is by default, and with fusion switched off."""
    if request.param == "fused":
        yield
        return
    hvd.shutdown()
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "0")
    hvd.init()
    yield
    hvd.shutdown()
    monkeypatch.undo()
    hvd.init()


@pytest.mark.node_split
def test_two_hundred_tensors_in_rank_specific_order_on_one_thread(hvd, fusion):
    """BR-07."""
    config = v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
    sizes = [1_000_000 if i == COUNT - 1 else 1 + i % 13 for i in range(COUNT)]
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        inputs = [v1.placeholder(DTYPES[i % 4], [size]) for i, size in enumerate(sizes)]
        totals = [hvd.allreduce(tensor, op=hvd.Sum, name=f"t{i}") for i, tensor in enumerate(inputs)]
        began = time.monotonic()
        for step in range(1, 6):
            order = random.Random(1000 * RANK + step).sample(range(COUNT), COUNT)
            feeds = {inputs[i]: np.full(sizes[i], (i + 1) * step * (RANK + 1), DTYPES[i % 4]) for i in range(COUNT)}
            results = session.run([totals[i] for i in order], feeds)
            for i, result in zip(order, results):
                assert (result == (i + 1) * step * (SIZE * (SIZE + 1) // 2)).all()
        assert time.monotonic() - began < 60


@pytest.mark.node_split
def test_collectives_of_all_kinds_in_one_run(hvd, session):
    x = v1.placeholder(tf.float32, [None])
    fetches = {}
    for i in range(20):
        fetches[f"reduce{i}"] = hvd.allreduce(x + i, op=hvd.Sum, name=f"reduce{i}")
        fetches[f"gather{i}"] = hvd.allgather(x + i, name=f"gather{i}")
        fetches[f"send{i}"] = hvd.broadcast(x[:1] + i, i % SIZE, name=f"send{i}")
    fetches["barrier"] = hvd.barrier()
    for length in (1, 5, 3000):
        order = random.Random(RANK).sample(sorted(fetches), len(fetches))
        values = dict(zip(order, session.run([fetches[name] for name in order], {x: np.full(length, RANK)})))
        ranks = np.repeat(range(SIZE), length)
        for i in range(20):
            assert np.array_equal(values[f"reduce{i}"], np.full(length, SIZE * i + sum(range(SIZE))))
            assert np.array_equal(values[f"gather{i}"], ranks + i)
            assert values[f"send{i}"].tolist() == [i % SIZE + i]


def test_a_late_rank_is_waited_for(hvd, session):
    total = hvd.allreduce(v1.placeholder_with_default(1.0, []), op=hvd.Sum)
    for late in range(SIZE):
        if late == RANK:
            time.sleep(0.3)
        assert session.run(total) == SIZE


def test_partial_fetches(hvd, session):
    """Which of the collectives of a graph run changes from step to step."""
    x = v1.placeholder(tf.float32, [])
    totals = [hvd.allreduce(x + i, op=hvd.Sum) for i in range(8)]
    chained = hvd.allreduce(totals[0] + totals[1], op=hvd.Sum)
    for step in range(12):
        chosen = [i for i in range(8) if (i + step) % 3]
        *results, last = session.run([totals[i] for i in chosen] + [chained], {x: RANK})
        assert results == [sum(range(SIZE)) + SIZE * i for i in chosen]
        assert last == SIZE * (2 * sum(range(SIZE)) + SIZE)
