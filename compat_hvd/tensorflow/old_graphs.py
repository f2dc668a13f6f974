"""Graphs that Horovod wrote: their in-place broadcasts become broadcasts and assignments when they are imported.

A kernel cannot write a variable through TensorFlow's C interface. So the ops ``HorovodBroadcastInplace`` (of reference
variables) and ``HorovodBroadcastInplaceResource`` are defined, but TensorFlow's own ops around a broadcast take
the place of their nodes. The names of nodes and of their outputs stay.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

_REFERENCE = "HorovodBroadcastInplace"
_RESOURCE = "HorovodBroadcastInplaceResource"


def without_inplace_broadcasts(graph_def: Any) -> Any:
    """Returns ``graph_def``, or if it has in-place broadcasts a copy in which they are replaced.

    A node whose variables are not nodes of the same graph (arguments of a function) is left as it is.
    """
    if not any(node.op in (_REFERENCE, _RESOURCE) for node in graph_def.node):
        return graph_def
    handles = {node.name: node.attr["dtype"].type for node in graph_def.node if node.op == "VarHandleOp"}
    result = type(graph_def)()
    result.CopyFrom(graph_def)
    del result.node[:]
    renamed: dict[str, str] = {}
    for node in graph_def.node:
        variables = [name for name in node.input if not name.startswith("^")]
        if node.op == _REFERENCE:
            renamed.update(_replace_reference(result, node, variables))
        elif node.op == _RESOURCE and all(_producer(name) in handles for name in variables):
            _replace_resource(result, node, variables, [handles[_producer(name)] for name in variables])
        else:
            result.node.add().CopyFrom(node)
    for node in result.node:
        node.input[:] = [renamed.get(_with_position(name), name) for name in node.input]
    return result


def _producer(name: str) -> str:
    return name.partition(":")[0]


def _with_position(name: str) -> str:
    return name if ":" in name or name.startswith("^") else f"{name}:0"


def _control_inputs(node: Any) -> list[str]:
    return [name for name in node.input if name.startswith("^")]


def _add(graph_def: Any, old: Any, op: str, suffix: str, inputs: list[str], dtype: int | None = None) -> Any:
    """Adds a node on the device of ``old`` and under its name."""
    node = graph_def.node.add(name=old.name + suffix, op=op, input=inputs, device=old.device)
    if dtype is not None:
        node.attr["dtype" if op in ("ReadVariableOp", "AssignVariableOp") else "T"].type = dtype
    return node


def _add_broadcast(graph_def: Any, old: Any, position: int, inputs: list[str], dtype: int) -> str:
    node = _add(graph_def, old, "HorovodBroadcast", f"/broadcast_{position}", inputs, dtype)
    node.attr["root_rank"].i = old.attr["root_rank"].i
    node.attr["process_set_id"].i = old.attr["process_set_id"].i
    return str(node.name)


def _replace_resource(graph_def: Any, old: Any, variables: list[str], dtypes: list[int]) -> None:
    assignments = []
    for i, (variable, dtype) in enumerate(zip(variables, dtypes)):
        inputs = [variable, *_control_inputs(old)]
        value = _add(graph_def, old, "ReadVariableOp", f"/read_{i}", inputs, dtype)
        sent = _add_broadcast(graph_def, old, i, [value.name], dtype)
        assignment = _add(graph_def, old, "AssignVariableOp", f"/assign_{i}", [variable, sent], dtype)
        assignments.append(f"^{assignment.name}")
    _add(graph_def, old, "NoOp", "", assignments)


def _replace_reference(graph_def: Any, old: Any, variables: list[str]) -> dict[str, str]:
    """Returns which output of another node is now the reference that an output of ``old`` was."""
    dtype = old.attr["T"].type
    assigned = []
    for i, variable in enumerate(variables):
        sent = _add_broadcast(graph_def, old, i, [variable, *_control_inputs(old)], dtype)
        assigned.append(_add(graph_def, old, "Assign", f"/assign_{i}", [variable, sent], dtype).name)
    _add(graph_def, old, "IdentityN", "", assigned).attr["T"].list.type.extend([dtype] * len(assigned))
    return {f"{old.name}:{i}": name for i, name in enumerate(assigned)}


def install() -> bool:
    """Makes ``tf.import_graph_def``, and what builds on it, replace in-place broadcasts.

    The place belongs to TensorFlow's internals, hence the guard.

    Returns:
        Whether this TensorFlow has such a place. If not, running an in-place broadcast raises an error that says so.
    """
    try:
        from tensorflow.python.framework import importer

        process: Callable[[Any], Any] = importer._ProcessGraphDefParam
    except (ImportError, AttributeError):
        return False

    @functools.wraps(process)
    def process_and_replace(graph_def: Any, *args: Any, **kwargs: Any) -> Any:
        return without_inplace_broadcasts(process(graph_def, *args, **kwargs))

    importer._ProcessGraphDefParam = process_and_replace
    return True
