"""Collectives in branches and loops, in several sessions and threads, and from a MetaGraph."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf
from world import RANK, SIZE

v1 = tf.compat.v1

RANKS = sum(range(SIZE))


@pytest.fixture(params=["switch-merge", "functional"])
def session_of_either_kind(request, hvd):
    """A session on a graph with control flow of version 1 or 2."""
    if request.param == "switch-merge":
        v1.disable_control_flow_v2()
    with tf.Graph().as_default(), v1.Session() as session:
        yield session
    v1.enable_control_flow_v2()


def test_cond(hvd, session_of_either_kind):
    x, choice = v1.placeholder(tf.float32, []), v1.placeholder(tf.bool, [])
    y = v1.cond(
        choice,
        lambda: hvd.allreduce(x, op=hvd.Sum, name="a"),
        lambda: hvd.allreduce(2 * x, op=hvd.Sum, name="a"),
    )
    outside = hvd.allreduce(3 * x, op=hvd.Sum, name="a")
    for chosen in (True, False, True):
        result = session_of_either_kind.run([y, outside], {x: RANK, choice: chosen})
        assert result == [RANKS * (1 if chosen else 2), 3 * RANKS]


@pytest.mark.parametrize("name", [None, "a"])
def test_while_loop_with_parallel_iterations(hvd, session_of_either_kind, name):
    x, count = v1.placeholder(tf.float32, [3]), 12

    def body(i, totals):
        fed = x + tf.cast(i, tf.float32)
        return i + 1, totals.write(i, hvd.allreduce(fed, op=hvd.Sum, name=name))

    totals = tf.TensorArray(tf.float32, count, element_shape=[3])
    _, totals = v1.while_loop(lambda i, _: i < count, body, [0, totals], parallel_iterations=5)
    result = session_of_either_kind.run(totals.stack(), {x: np.full(3, RANK)})
    assert np.array_equal(result, np.add.outer(SIZE * np.arange(count), np.full(3, RANKS)))


def test_other_collectives_in_a_loop(hvd, session_of_either_kind):
    x, count = v1.placeholder(tf.float32, [SIZE]), 6

    def body(i, results):
        fed = x + tf.cast(i, tf.float32)
        both = hvd.grouped_allreduce([fed, 2 * fed], op=hvd.Sum)
        rows = hvd.grouped_allgather([hvd.reducescatter(fed, op=hvd.Sum)])
        return i + 1, results.write(i, tf.stack([hvd.alltoall(fed), *both, *rows]))

    results = tf.TensorArray(tf.float32, count)
    _, results = v1.while_loop(lambda i, _: i < count, body, [0, results], parallel_iterations=3)
    columns = 10.0 * np.arange(SIZE)
    result = session_of_either_kind.run(results.stack(), {x: columns + RANK})
    for i in range(count):
        total = SIZE * (columns + i) + RANKS
        assert np.array_equal(result[i], [columns[RANK] + np.arange(SIZE) + i, total, 2 * total, total])


def test_a_loop_that_feeds_itself(hvd, session_of_either_kind):
    x = v1.placeholder(tf.float32, [])
    _, result = v1.while_loop(lambda i, _: i < 4, lambda i, y: (i + 1, hvd.allreduce(y, op=hvd.Sum)), [0, x])
    assert session_of_either_kind.run(result, {x: 1.0}) == SIZE**4


def test_sessions_in_threads(hvd):
    """Each thread has a graph of its own; ranks start the threads in different orders."""
    wrong = []

    def work(number):
        with tf.Graph().as_default(), v1.Session() as session:
            x = v1.placeholder(tf.float32, [100])
            total = hvd.allreduce(x, op=hvd.Sum, name=f"thread{number}")
            for step in range(30):
                result = session.run(total, {x: np.full(100, 10.0 * number + step + RANK)})
                if (result != SIZE * (10.0 * number + step) + RANKS).any():
                    wrong.append((number, step, result))

    threads = [threading.Thread(target=work, args=[number]) for number in np.roll(range(3), RANK)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_sessions_of_one_graph(hvd):
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [])
        total = hvd.allreduce(x, op=hvd.Sum)
        for _ in range(2):
            with v1.Session() as session:
                assert session.run(total, {x: RANK}) == RANKS


def test_imported_meta_graph(hvd):
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float64, [], name="x")
        y = hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.1, name="named")
        tf.identity(hvd.broadcast(hvd.allreduce(y), SIZE - 1), name="y")
        saved = v1.train.export_meta_graph(graph=graph)
    with tf.Graph().as_default(), v1.Session() as session:
        v1.train.import_meta_graph(saved)
        np.testing.assert_allclose(session.run("y:0", {"x:0": RANK + 1.0}), 0.1 * (RANKS + SIZE), rtol=1e-14)


def test_a_graph_written_by_horovod(hvd):
    """Its nodes have none of the attributes that are ours."""
    graph_def = v1.GraphDef()
    graph_def.node.add(name="x", op="Placeholder").attr["dtype"].type = tf.float32.as_datatype_enum
    reduce = graph_def.node.add(name="r/HorovodAllreduce_x_0", op="HorovodAllreduce", input=["x"])
    reduce.attr["T"].type = tf.float32.as_datatype_enum
    reduce.attr["reduce_op"].i = 1
    reduce.attr["prescale_factor"].f = 2.0
    reduce.attr["postscale_factor"].f = 1.0
    reduce.attr["ignore_name_scope"].b = True
    reduce.attr["process_set_id"].i = 0
    send = graph_def.node.add(name="HorovodBroadcast_0", op="HorovodBroadcast", input=["x"])
    send.attr["T"].type = tf.float32.as_datatype_enum
    send.attr["root_rank"].i = 0
    with tf.Graph().as_default(), v1.Session() as session:
        x, total, sent = v1.import_graph_def(
            graph_def, name="", return_elements=["x:0", "r/HorovodAllreduce_x_0:0", "HorovodBroadcast_0:0"]
        )
        gradient = tf.gradients(total, x)[0]
        result = session.run([total, sent, gradient], {x: RANK + 1.0})
    assert result == [2 * (RANKS + SIZE), 1.0, 2.0 * SIZE]


def test_more_of_a_graph_written_by_horovod(hvd):
    graph_def = v1.GraphDef()
    graph_def.node.add(name="x", op="Placeholder").attr["dtype"].type = tf.float32.as_datatype_enum
    graph_def.node.add(name="splits", op="Placeholder").attr["dtype"].type = tf.int32.as_datatype_enum

    def add(kind, inputs, **attributes):
        node = graph_def.node.add(name=kind, op=f"Horovod{kind}", input=inputs)
        node.attr["T"].type = tf.float32.as_datatype_enum
        for name, value in {"process_set_id": 0, **attributes}.items():
            setattr(node.attr[name], "f" if isinstance(value, float) else "i", value)
        node.attr["ignore_name_scope"].b = False

    reduction = {"reduce_op": 1, "prescale_factor": 2.0, "postscale_factor": 1.0}
    add("GroupedAllreduce", ["x", "x"], num_tensors=2, **reduction)
    add("GroupedAllgather", ["x"], num_tensors=1)
    add("Reducescatter", ["x"], **reduction)
    add("GroupedReducescatter", ["x"], num_tensors=1, **reduction)
    add("Alltoall", ["x", "splits"])
    graph_def.node.add(name="Join", op="HorovodJoin")
    outputs = ["GroupedAllreduce:1", "GroupedAllgather:0", "Reducescatter:0", "GroupedReducescatter:0", "Alltoall:0"]
    with tf.Graph().as_default(), v1.Session() as session:
        *collectives, join = v1.import_graph_def(graph_def, name="", return_elements=[*outputs, "Join:0"])
        feed = {"x:0": [RANK + 1.0] * SIZE, "splits:0": [1] * SIZE}
        group, gathered, scattered, scattered_group, swapped = session.run(collectives, feed)
        assert session.run(join) in range(SIZE)
    total = 2 * (RANKS + SIZE)
    assert group.tolist() == [total] * SIZE
    assert gathered.tolist() == [rank + 1 for rank in range(SIZE) for _ in range(SIZE)]
    assert (scattered.tolist(), scattered_group.tolist()) == ([total], [total])
    assert swapped.tolist() == [rank + 1 for rank in range(SIZE)]
