"""Collectives of several tensors that are submitted together: grouped_allreduce and grouped_allgather."""

from __future__ import annotations

from typing import Any, Sequence

import tensorflow as tf

from compat_hvd.common.process_sets import ProcessSet, global_process_set
from compat_hvd.tensorflow.compression import Compression, Compressor
from compat_hvd.tensorflow.names import collective_name
from compat_hvd.tensorflow.ops import TRANSFERABLE, Sum, as_rows, gather_op, registered_id
from compat_hvd.tensorflow.reduction import Reduction, handle_average_backwards_compatibility


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[tf.Tensor | tf.IndexedSlices]:
    """Reduces several tensors over the ranks, submitted together.

    Args:
        tensors: dense ones and ``tf.IndexedSlices`` in any mixture, of any shapes and dtypes, in the same order on
            every rank. May be empty.
        average, device_dense, device_sparse, compression, op, prescale_factor, postscale_factor, process_set,
            ignore_name_scope: as in ``allreduce``.
        name: the name by which ranks match the group; by default made from the names of the first and last tensor.

    Returns:
        The reduced tensors in the same order.

    Raises:
        ValueError, TypeError, NotImplementedError: as ``allreduce``.
        tf.errors.FailedPreconditionError: (when run) ranks disagree on one of the tensors; on every rank.
    """
    how = Reduction(
        op=handle_average_backwards_compatibility(op, average),
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
        device_dense=device_dense,
        device_sparse=device_sparse,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )
    return how.apply_to_group(tensors, name)


def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Reduces several dense tensors; ``grouped_allreduce`` is the public form, with averaging by default."""
    how = Reduction(op, prescale_factor, postscale_factor, process_set=process_set, ignore_name_scope=ignore_name_scope)
    return how.apply_to_group([tf.convert_to_tensor(tensor) for tensor in tensors], name)


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Concatenates each of several tensors over the ranks along its first dimension, submitted together.

    Args:
        tensors: at least one, of any dtypes and shapes, in the same order on every rank; the first dimension may differ
            between ranks.
        name: the name by which ranks match the group; by default made from the names of the first and last tensor.
        ignore_name_scope, process_set: as in ``allgather``.

    Returns:
        The concatenated tensors in the same order.

    Raises:
        ValueError, TypeError: as ``allgather``.
        tf.errors.InvalidArgumentError: the list is empty.
        tf.errors.FailedPreconditionError: (when run) ranks disagree on one of the tensors; on every rank.
    """
    process_set_id = registered_id("grouped_allgather", process_set)
    chosen = [as_rows("grouped_allgather", tensor, TRANSFERABLE) for tensor in tensors]
    if not chosen:
        raise tf.errors.InvalidArgumentError(None, None, "hvd.grouped_allgather takes at least one tensor")

    named = collective_name("HorovodGroupedAllgather", chosen, name, ignore_name_scope)
    return list(gather_op(chosen, named, ignore_name_scope, process_set_id, "grouped_allgather"))
