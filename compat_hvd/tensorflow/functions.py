"""Synchronising variables: every rank gets the root's values."""

from __future__ import annotations

import warnings
from typing import Any, Iterable

import tensorflow as tf

from compat_hvd.common import basics
from compat_hvd.common.process_sets import ProcessSet, global_process_set
from compat_hvd.tensorflow.names import normalized, variable_names
from compat_hvd.tensorflow.ops import TRANSFERABLE, broadcast

_OPAQUE = (tf.string, tf.resource, tf.variant)


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> tf.Operation | None:
    """Assigns the root's values to variables on every rank of a process set.

    Args:
        variables: resource or reference variables of any numeric or bool dtype and any shape, the same on every rank.
            Variables of strings are left out with a warning.
        root_rank: the global rank whose values are sent.
        process_set: the ranks taking part.
        inplace: accepted for scripts that give it; the result is the same.

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

    def assign_all() -> tf.Operation:
        names = [f"HorovodBroadcast_{normalized(name)}_0" for name in variable_names(chosen)]
        values = [broadcast(v, root_rank, name=n, process_set=process_set) for v, n in zip(chosen, names)]
        return tf.group(*(v.assign(value, read_value=False) for v, value in zip(chosen, values)))

    if not tf.executing_eagerly():
        return assign_all()

    # Inside a function all of them are under way at once, in whatever order each rank lists its variables.
    @tf.function(autograph=False)
    def run() -> None:
        assign_all()

    if chosen:
        run()
    return None


def _sendable(variables: Iterable[Any]) -> list[Any]:
    chosen, left_out = [], []
    for variable in variables:
        dtype = variable.dtype.base_dtype
        if dtype in TRANSFERABLE:
            chosen.append(variable)
        elif dtype in _OPAQUE:
            left_out.append(f"{variable.name} ({dtype.name})")
        else:
            raise TypeError(
                f"hvd.broadcast_variables: variable {variable.name} has dtype {dtype.name}, which cannot be sent"
            )
    if left_out:
        warnings.warn(f"hvd.broadcast_variables leaves out {', '.join(left_out)}: only numbers are sent", stacklevel=4)
    return chosen


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
