"""In-place broadcasts in graphs that Horovod wrote."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from world import RANK, SIZE

v1 = tf.compat.v1
KINDS = pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
ROOT = SIZE - 1


def written_by_horovod(use_resource):
    """A graph of two variables, their initializers, and what broadcast_ of Horovod added for them."""
    graph = tf.Graph()
    with graph.as_default():
        rank = v1.placeholder(tf.float32, [], name="rank")
        values = [rank * [1.0, 10.0], rank + 5]
        variables = [
            v1.get_variable(f"v{i}", initializer=value, use_resource=use_resource) for i, value in enumerate(values)
        ]
        v1.global_variables_initializer()
    graph_def = graph.as_graph_def()
    node = graph_def.node.add(name="scope/sync", op="HorovodBroadcastInplace" + ("Resource" if use_resource else ""))
    node.input.extend([*("v0", "v1"), "^init_of_another"])
    if not use_resource:
        node.attr["T"].type = variables[0].dtype.base_dtype.as_datatype_enum
        added = graph_def.node.add(name="more", op="AssignAdd", input=["scope/sync:1", "scope/sync:1"])
        added.attr["T"].type = tf.float32.as_datatype_enum
    node.attr["root_rank"].i = ROOT
    node.attr["num_variables"].i = 2
    node.attr["variable_names"].list.s.extend([b"v0:0", b"v1:0"])
    graph_def.node.add(name="init_of_another", op="NoOp")
    return graph_def


@KINDS
@pytest.mark.parametrize("prefix", ["", "imported"])
def test_it_runs(hvd, use_resource, prefix):
    path = f"{prefix}/" if prefix else ""
    with tf.Graph().as_default() as graph, v1.Session() as session:
        v1.import_graph_def(written_by_horovod(use_resource), name=prefix)
        session.run(f"{path}init", {f"{path}rank:0": RANK})
        session.run(f"{path}scope/sync")
        reads = [f"{path}v{i}/Read/ReadVariableOp:0" if use_resource else f"{path}v{i}:0" for i in range(2)]
        first, second = session.run(reads)
        np.testing.assert_array_equal(first, [ROOT, 10.0 * ROOT])
        assert second == ROOT + 5
        waits = graph.get_operation_by_name(f"{path}scope/" + ("sync/read_0" if use_resource else "sync/broadcast_0"))
        assert [op.name for op in waits.control_inputs] == [f"{path}init_of_another"]


def test_the_references_it_returned(hvd):
    with tf.Graph().as_default(), v1.Session() as session:
        v1.import_graph_def(written_by_horovod(False), name="")
        session.run("init", {"rank:0": RANK})
        assert session.run("more:0") == 2 * (ROOT + 5)
        values = session.run(["scope/sync:0", "v1:0"])
        np.testing.assert_array_equal(values[0], [ROOT, 10.0 * ROOT])


def test_a_node_that_cannot_be_replaced_says_so(hvd):
    graph_def = v1.GraphDef()
    graph_def.node.add(name="handle", op="Placeholder").attr["dtype"].type = tf.resource.as_datatype_enum
    node = graph_def.node.add(name="sync", op="HorovodBroadcastInplaceResource", input=["handle"])
    node.attr["root_rank"].i = 0
    node.attr["num_variables"].i = 1
    node.attr["variable_names"].list.s.append(b"v:0")
    with tf.Graph().as_default() as graph, v1.Session() as session:
        variable = v1.get_variable("v", initializer=1.0, use_resource=True)
        v1.import_graph_def(graph_def, name="", input_map={"handle": variable.handle})
        assert graph.get_operation_by_name("sync").type == "HorovodBroadcastInplaceResource"
        session.run(variable.initializer)
        with pytest.raises(tf.errors.FailedPreconditionError, match="'sync' broadcasts variables in place"):
            session.run("sync")
