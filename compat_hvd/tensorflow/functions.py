"""Synchronising variables: every rank gets the root's values."""

from __future__ import annotations

import warnings
from typing import Any, Iterable

import tensorflow as tf

from compat_hvd.common import basics
from compat_hvd.common.process_sets import ProcessSet, global_process_set
from compat_hvd.tensorflow.names import normalized, variable_names
from compat_hvd.tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from compat_hvd.tensorflow.ops import TRANSFERABLE, broadcast, registered_id
from compat_hvd.tensorflow.variables import native

__all__ = [
    "allgather_object",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]

_OPAQUE = (tf.string, tf.resource, tf.variant)

# Sent as the bits they are: no collective takes these dtypes, but Keras keeps the states of its random numbers in them.
_SENT_AS = {tf.uint32: tf.int32, tf.uint64: tf.int64}


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> tf.Operation | None:
    """Assigns the root's values to variables on every rank of a process set.

    Args:
        variables: resource or reference variables, or variables of Keras, of any numeric or bool dtype and any shape,
            the same on every rank. Variables of strings are left out with a warning.
        root_rank: the global rank whose values are sent.
        process_set: the ranks taking part.
        inplace: accepted for scripts that give it; the result is the same, that of ``broadcast_``.

    Returns:
        In graph mode one ``tf.Operation`` to be run after the initializers; also when there is nothing to send. In
        eager mode None, after the values have arrived.

    Raises:
        ValueError: before ``init()``.
        TypeError: a variable of a dtype that cannot be sent; the message names both.
        tf.errors.InvalidArgumentError: (when run) no such root; on every rank.
        tf.errors.FailedPreconditionError: (when run) ranks disagree.
    """
    alone = process_set.size() == 1 and process_set.included() and root_rank == basics.rank()
    chosen = [] if alone else _sendable(variables)

    if not tf.executing_eagerly():
        return tf.group(*_assign_all(chosen, root_rank, "HorovodBroadcast", process_set))
    _run_all(chosen, root_rank, "HorovodBroadcast", process_set)
    return None


def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Assigns the root's values to variables on every rank of a process set and returns the new values.

    Args:
        variables: all resource or all reference variables, of any numeric or bool dtype and any shape, the same on
            every rank.
        root_rank: the global rank whose values are sent.
        name: with the variable's name the name by which ranks match each of them.
        process_set: the ranks taking part.

    Returns:
        For each variable its value after the assignment; for reference variables in a graph the updated references.

    Raises:
        ValueError: before ``init()``; resource and reference variables are mixed.
        TypeError: a variable of a dtype that cannot be sent; the message names both.
        tf.errors.InvalidArgumentError: (when run) no such root; on every rank.
        tf.errors.FailedPreconditionError: (when run) ranks disagree.
    """
    registered_id("broadcast_", process_set)
    chosen = list(variables)
    kinds = {_is_resource(variable) for variable in chosen}
    if len(kinds) > 1:
        raise ValueError(
            "All variables passed to broadcast_() should be of the same kind, resource or reference; call it once for "
            "each kind"
        )
    _check_dtypes(chosen)
    prefix = name or "HorovodBroadcastInplace"
    if tf.executing_eagerly():
        _run_all(chosen, root_rank, prefix, process_set)
        return [native(variable).read_value() for variable in chosen]
    assigned = _assign_all(chosen, root_rank, prefix, process_set, read_value=True)
    return assigned if kinds == {False} else [variable.read_value() for variable in assigned]


def _is_resource(variable: Any) -> bool:
    return hasattr(variable, "handle")


def _assign_all(
    variables: list[Any], root_rank: int, prefix: str, process_set: ProcessSet, read_value: bool = False
) -> list[Any]:
    names = [f"{prefix}_{normalized(name)}_0" for name in variable_names(variables)]
    natives = [native(variable) for variable in variables]
    values = [_broadcast(v, root_rank, n, process_set) for v, n in zip(natives, names)]
    return [v.assign(value, read_value=read_value) for v, value in zip(natives, values)]


def _broadcast(variable: Any, root_rank: int, name: str, process_set: ProcessSet) -> tf.Tensor:
    dtype = variable.dtype.base_dtype
    if dtype not in _SENT_AS:
        return broadcast(variable, root_rank, name=name, process_set=process_set)
    bits = tf.bitcast(variable, _SENT_AS[dtype])
    return tf.bitcast(broadcast(bits, root_rank, name=name, process_set=process_set), dtype)


def _run_all(variables: list[Any], root_rank: int, prefix: str, process_set: ProcessSet) -> None:
    """In eager mode: has all of them under way at once, in whatever order each rank lists its variables."""

    @tf.function(autograph=False)
    def run() -> None:
        _assign_all(variables, root_rank, prefix, process_set)

    if variables:
        run()


def _sendable(variables: Iterable[Any]) -> list[Any]:
    chosen, left_out = [], []
    for variable in variables:
        dtype = tf.as_dtype(variable.dtype).base_dtype
        if dtype in _OPAQUE:
            left_out.append(f"{variable.name} ({dtype.name})")
        else:
            chosen.append(variable)
    _check_dtypes(chosen)
    if left_out:
        warnings.warn(f"hvd.broadcast_variables leaves out {', '.join(left_out)}: only numbers are sent", stacklevel=4)
    return chosen


def _check_dtypes(variables: list[Any]) -> None:
    for variable in variables:
        dtype = tf.as_dtype(variable.dtype).base_dtype
        if dtype not in TRANSFERABLE and dtype not in _SENT_AS:
            raise TypeError(f"hvd: variable {variable.name} has dtype {dtype.name}, which cannot be broadcast")


def broadcast_global_variables(root_rank: int) -> tf.Operation:
    """Assigns the root's values to all global variables that exist in the default graph at this moment.

    Args:
        root_rank: the rank whose values are sent.

    Returns:
        One ``tf.Operation``; nothing happens until it is run, after the initializers.

    Raises:
        RuntimeError: in eager mode, which has no collection of global variables.
        ValueError: before ``init()``.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution; there, give the variables of the model "
            "and the optimizer to hvd.broadcast_variables()."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)
