"""Synchronising variables: broadcast_variables, broadcast_global_variables and the session hook."""

from __future__ import annotations

import gc
import warnings
import weakref

import numpy as np
import pytest
import tensorflow as tf
from fed import TRANSFERABLE
from world import RANK, SIZE

v1 = tf.compat.v1
KINDS = pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])

SHAPES = [(), (0, 3), (2, 3)]


def content(rank, dtype, shape):
    return np.full(shape, (rank + 1) % 2 if dtype == tf.bool else rank + 1).astype(dtype.as_numpy_dtype)


def make_variables(use_resource):
    return [
        v1.get_variable(f"{dtype.name}_{i}", initializer=content(RANK, dtype, shape), use_resource=use_resource)
        for dtype in TRANSFERABLE
        for i, shape in enumerate(SHAPES)
    ]


def expected_of(root):
    return [content(root, dtype, shape) for dtype in TRANSFERABLE for shape in SHAPES]


@KINDS
@pytest.mark.parametrize("root", sorted({0, SIZE - 1}))
def test_every_dtype_and_shape(hvd, session, use_resource, root):
    """BR-10, without its string."""
    variables = make_variables(use_resource)
    operation = hvd.broadcast_variables(variables, root)
    assert isinstance(operation, tf.Operation)
    session.run(v1.global_variables_initializer())
    operation.run()
    for value, expected in zip(session.run(variables), expected_of(root)):
        assert np.asarray(value).dtype == expected.dtype
        assert np.array_equal(value, expected)


@KINDS
def test_unsigned_integers_that_no_collective_takes(hvd, session, use_resource):
    contents = [np.array([2**31 + RANK, RANK], np.uint32), np.array(2**63 + RANK, np.uint64)]
    variables = [
        v1.get_variable(f"v{i}", initializer=value, use_resource=use_resource) for i, value in enumerate(contents)
    ]
    operation = hvd.broadcast_variables(variables, SIZE - 1)
    session.run(v1.global_variables_initializer())
    operation.run()
    first, second = session.run(variables)
    assert (first.dtype, second.dtype) == (np.uint32, np.uint64)
    assert (first.tolist(), second.tolist()) == ([2**31 + SIZE - 1, SIZE - 1], 2**63 + SIZE - 1)


def test_variables_of_keras(hvd):
    """Of whatever Keras is installed: layers share names, and the state of random numbers is uint32."""
    layers = [tf.keras.layers.Dense(3, kernel_initializer="ones"), tf.keras.layers.Dropout(0.5, seed=RANK)]
    model = tf.keras.Sequential([tf.keras.Input([2]), *layers, tf.keras.layers.Dense(3)])
    for variable in layers[0].variables:
        variable.assign(variable + RANK)
    values = [variable.numpy() for variable in model.variables]
    expected = hvd.broadcast_object(values, root_rank=SIZE - 1)
    assert hvd.broadcast_variables(model.variables, SIZE - 1) is None
    for variable, value in zip(model.variables, expected):
        np.testing.assert_array_equal(variable.numpy(), value)
    updated = hvd.broadcast_(layers[0].variables, SIZE - 1)
    np.testing.assert_array_equal(updated[0], np.full([2, 3], SIZE))


@KINDS
def test_strings_are_left_out_with_one_warning(hvd, session, use_resource):
    """BR-10, its end."""
    text = v1.get_variable("text", initializer=f"rank {RANK}", use_resource=use_resource)
    more = v1.get_variable("more", initializer=f"rank {RANK}", use_resource=use_resource)
    number = v1.get_variable("number", initializer=RANK + 1.0, use_resource=use_resource)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        operation = hvd.broadcast_variables([text, number, more], 0)
    messages = [str(one.message) for one in caught if "leaves out" in str(one.message)]
    assert len(messages) == (1 if SIZE > 1 else 0)
    assert all("text:0" in message and "more:0" in message for message in messages)
    session.run(v1.global_variables_initializer())
    session.run(operation)
    assert session.run([text, number]) == [f"rank {RANK}".encode(), 1.0]


def test_variables_that_cannot_be_sent_are_named(hvd, session):
    variable = v1.get_variable("waves", initializer=1j, use_resource=True)
    if SIZE == 1:
        assert isinstance(hvd.broadcast_variables([variable], 0), tf.Operation)
    else:
        with pytest.raises(TypeError, match=r"waves.*complex"):
            hvd.broadcast_variables([variable], 0)


@pytest.mark.parametrize("inplace", [False, True])
def test_in_eager_mode(hvd, inplace):
    # Two variables of one name: eager mode does not make names unique. The ranks list them in different orders.
    variables = {name: tf.Variable([10.0 * i + RANK], name=name) for i, name in enumerate(["a", "b", "c", "d"])}
    twins = [tf.Variable(RANK + 0.5, name="same"), tf.Variable(RANK + 0.25, name="same")]
    listed = [variables[name] for name in np.roll(sorted(variables), RANK)]
    assert hvd.broadcast_variables(listed + twins, root_rank=SIZE - 1, inplace=inplace) is None
    assert [variables[name].numpy().item() for name in "abcd"] == [10.0 * i + SIZE - 1 for i in range(4)]
    assert [twin.numpy() for twin in twins] == [SIZE - 0.5, SIZE - 0.75]


def test_broadcast_global_variables_with_adam(hvd, session):
    weights = v1.get_variable("w", initializer=np.full(5, RANK + 1.0, np.float32))
    v1.train.get_or_create_global_step()
    v1.train.AdamOptimizer(0.1 * (RANK + 1), beta1=0.5 + 0.1 * RANK).minimize(tf.reduce_sum(weights))
    operation = hvd.broadcast_global_variables(0)
    assert isinstance(operation, tf.Operation)
    v1.get_variable("later", initializer=float(RANK))
    session.run(v1.global_variables_initializer())
    operation.run()
    assert weights.eval().tolist() == [1.0] * 5
    values = {variable.op.name: session.run(variable) for variable in v1.global_variables()}
    assert values["beta1_power"] == np.float32(0.5)
    assert values["later"] == RANK  # it did not exist when the operation was built


def test_no_collection_in_eager_mode(hvd):
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)


def test_as_a_control_dependency_and_then_a_step(hvd, session):
    """BR-04, its last part."""
    variable = v1.get_variable("v", initializer=[float(RANK)], use_resource=False)
    gradient = v1.placeholder(tf.float32, [1])
    step = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0)).apply_gradients([(gradient, variable)])
    broadcast = hvd.broadcast_global_variables(0)
    with tf.control_dependencies([broadcast]):
        after = tf.identity(variable)
    config = hvd.session_config(device_count={"GPU": 0})
    config.gpu_options.visible_device_list = str(hvd.local_rank())
    with v1.Session(config=config) as session:
        session.run(v1.global_variables_initializer())
        assert session.run(after).tolist() == [0.0]
        session.run(step, {gradient: [3.0]})
        assert variable.eval(session).tolist() == [-3.0]


def hooked_graph():
    graph = tf.Graph()
    with graph.as_default():
        a = v1.get_variable("a", initializer=[10.0 + RANK] * 2, use_resource=False)
        v1.train.get_or_create_global_step()
        train = v1.train.AdamOptimizer().minimize(0.0 * tf.reduce_sum(a), v1.train.get_global_step())
    return graph, a, train


def sends(graph):
    return sum(operation.type == "HorovodBroadcast" for operation in graph.get_operations())


def test_hook_serves_graphs_and_sessions(hvd):
    """BR-05."""
    hook = hvd.BroadcastGlobalVariablesHook(0)
    assert isinstance(hook, v1.train.SessionRunHook)
    graphs = [hooked_graph() for _ in range(2)]
    for graph, a, train in graphs * 2:
        with graph.as_default(), v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            assert session.run(a).tolist() == [10.0, 10.0]
            assert graph.finalized
            session.run(train)
            assert session.run(a).tolist() == [10.0, 10.0]
        assert sends(graph) == (6 if SIZE > 1 else 0)


def test_hook_keeps_no_graph_alive(hvd):
    hook = hvd.BroadcastGlobalVariablesHook(root_rank=0)
    for _ in range(2):
        graph, *_ = hooked_graph()
        with graph.as_default():
            hook.begin()
            ended, operation = weakref.ref(graph), hook.bcast_op
            hook.begin()
            assert hook.bcast_op is operation
            v1.get_variable("b", initializer=1.0)
            hook.begin()
            assert hook.bcast_op is not operation
        del graph, _, operation
    hook.bcast_op = None
    gc.collect()
    assert ended() is None


def test_hook_places_its_ops(hvd):
    graph, _, _ = hooked_graph()
    with graph.as_default():
        hvd.BroadcastGlobalVariablesHook(0, device="/cpu:0").begin()
        devices = {op.device for op in graph.get_operations() if op.type == "HorovodBroadcast"}
    assert devices == ({"/device:CPU:0"} if SIZE > 1 else set())
