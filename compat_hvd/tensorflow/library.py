"""The native op library: loaded once, and its pure collectives kept unordered inside ``tf.function``."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from compat_hvd.common import native
from compat_hvd.tensorflow import old_graphs

# Collectives without a side effect besides their result. Barrier and join are not among them: they exist to be ordered.
PURE_COLLECTIVES = (
    "HorovodAllreduce",
    "HorovodGroupedAllreduce",
    "HorovodAllgather",
    "HorovodGroupedAllgather",
    "HorovodBroadcast",
    "HorovodAlltoall",
    "HorovodReducescatter",
    "HorovodGroupedReducescatter",
    "CompatHvdGroupedAllreduce",
    "CompatHvdGroupedAllgather",
    "CompatHvdGroupedReducescatter",
)


def _load_library() -> Any:
    return tf.load_op_library(native.tensorflow_library_path())


def leave_unordered(op_types: tuple[str, ...]) -> bool:
    """Takes stateful ops off the chain that ``tf.function`` draws through all stateful ops in program order.

    On the chain two collectives never travel together, and ranks that trace them in different orders wait for each
    other forever. The set belongs to TensorFlow's internals, hence the guard.

    Returns:
        Whether this TensorFlow has such a set.
    """
    try:
        from tensorflow.python.framework import auto_control_deps

        known = auto_control_deps.ASYNC_STATEFUL_OPS
    except (ImportError, AttributeError):
        return False
    auto_control_deps.ASYNC_STATEFUL_OPS = frozenset(known) | frozenset(op_types)
    return True


LIBRARY = _load_library()
leave_unordered(PURE_COLLECTIVES)
old_graphs.install()
