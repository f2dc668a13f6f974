"""Collectives of values: what they return is a value as well, in eager and in graph mode."""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

from compat_hvd.tensorflow import ops
from compat_hvd.tensorflow.compression import Compression, Compressor
from compat_hvd.tensorflow.ops import Average
from compat_hvd.tensorflow.reducescatter import reducescatter as reducescatter_op
from compat_hvd.tensorflow.reduction import allreduce as allreduce_op
from compat_hvd.tensorflow.reduction import handle_average_backwards_compatibility
from compat_hvd.tensorflow.sessions import session_config


def _evaluated(build: Callable[[], Any]) -> Any:
    """An eager tensor; in graph mode an array, from a graph of its own, so that the user's does not grow."""
    if tf.executing_eagerly():
        return build()
    with tf.Graph().as_default(), tf.compat.v1.Session(config=session_config()) as session:
        return session.run(build())


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: type[Compressor] = Compression.none,
) -> Any:
    """Reduces a value over all ranks.

    Args:
        value: whatever ``tf.constant`` takes, of the same shape and dtype on every rank.
        name: the name by which ranks match this call.
        average: older form of ``op``: True for Average, False for Sum.
        prescale_factor, postscale_factor: multiply the value before, and the result after the reduction.
        op: Average (default), Sum, Min, Max or Product.
        compression: how the value is sent.

    Returns:
        The result: an eager tensor, in graph mode a NumPy array.

    Raises:
        ValueError, TypeError, tf.errors.FailedPreconditionError: as ``compat_hvd.tensorflow.allreduce``.
    """
    op = handle_average_backwards_compatibility(op, average)

    def build() -> Any:
        return allreduce_op(
            tf.constant(value),
            op=op,
            name=name,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            compression=compression,
        )

    return _evaluated(build)


def allgather(value: Any, name: str | None = None) -> Any:
    """Concatenates the values of all ranks along their first dimension, which may differ between ranks.

    Args:
        value: whatever ``tf.constant`` takes, with at least one dimension.
        name: the name by which ranks match this call.

    Returns:
        The result: an eager tensor, in graph mode a NumPy array.

    Raises:
        ValueError, TypeError, tf.errors.FailedPreconditionError: as ``compat_hvd.tensorflow.allgather``.
    """
    return _evaluated(lambda: ops.allgather(tf.constant(value), name=name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Returns the root's value on every rank.

    Args:
        value: whatever ``tf.constant`` takes, of the same shape and dtype on every rank.
        root_rank: the rank whose value is sent.
        name: the name by which ranks match this call.

    Returns:
        The result: an eager tensor, in graph mode a NumPy array.

    Raises:
        ValueError, TypeError, tf.errors.OpError: as ``compat_hvd.tensorflow.broadcast``.
    """
    return _evaluated(lambda: ops.broadcast(tf.constant(value), root_rank, name=name))


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Reduces a value over all ranks and returns this rank's share of the rows.

    Args:
        value: whatever ``tf.constant`` takes, with at least one dimension, of the same shape and dtype on every rank.
        name: the name by which ranks match this call.
        op: Average, Sum, Min, Max or Product.

    Returns:
        The result: an eager tensor, in graph mode a NumPy array.

    Raises:
        ValueError, TypeError, tf.errors.FailedPreconditionError: as ``compat_hvd.tensorflow.reducescatter``.
    """
    return _evaluated(lambda: reducescatter_op(tf.constant(value), op=op, name=name))
