"""reducescatter: reduces tensors and leaves each rank a part of the result."""

from __future__ import annotations

from typing import Any, Sequence

import tensorflow as tf

from compat_hvd.common.process_sets import ProcessSet, global_process_set
from compat_hvd.tensorflow.compression import Compression, Compressor
from compat_hvd.tensorflow.ops import Average, Sum
from compat_hvd.tensorflow.reduction import Reduction


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduces a tensor over the ranks and gives each rank consecutive rows of the result, in the order of ranks.

    Args:
        tensor: of at least one dimension, the same shape and dtype on every rank. Where its rows cannot be divided
            equally, the first ranks get one more; there may be fewer rows than ranks.
        device_dense: the device to place the op on.
        compression: how the tensor is sent: ``Compression.none``, ``fp16`` or ``bf16``.
        op: Average (default), Sum, Min, Max or Product.
        name: the name by which ranks match this collective; by default made from the tensor's name.
        process_set: the ranks taking part.
        ignore_name_scope: leave name scopes out of the name.
        prescale_factor, postscale_factor: multiply the tensor before, and the result after the reduction.

    Returns:
        This rank's rows, of the input's dtype.

    Raises:
        ValueError: before ``init()``; for a scalar or an unknown op.
        TypeError: the dtype cannot be reduced; the message names it.
        NotImplementedError: Adasum.
        tf.errors.FailedPreconditionError: (when run) ranks disagree; on every rank.
    """
    how = Reduction(
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
        device_dense=device_dense,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )
    return how.scatter(tensor, name)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """Reduces several tensors, submitted together, and gives each rank its rows of each result.

    Args:
        tensors: of any dtypes and shapes, in the same order on every rank. May be empty.
        device_dense, compression, op, process_set, prescale_factor, postscale_factor: as in ``reducescatter``.

    Returns:
        This rank's rows of each tensor, in the same order.

    Raises:
        ValueError, TypeError, NotImplementedError, tf.errors.FailedPreconditionError: as ``reducescatter``.
    """
    how = Reduction(
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
        device_dense=device_dense,
        process_set=process_set,
    )
    return how.scatter_group(tensors)


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduces and scatters a dense tensor; ``reducescatter`` is the public form, with averaging by default."""
    how = Reduction(op, prescale_factor, postscale_factor, process_set=process_set, ignore_name_scope=ignore_name_scope)
    return how.scatter(tensor, name)


def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """Reduces and scatters several dense tensors; ``grouped_reducescatter`` is the public form, with averaging."""
    how = Reduction(op, prescale_factor, postscale_factor, process_set=process_set, ignore_name_scope=ignore_name_scope)
    return how.scatter_group(tensors, name)
