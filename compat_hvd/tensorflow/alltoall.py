"""alltoall: every rank sends rows to every other."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from compat_hvd.common.process_sets import ProcessSet, global_process_set
from compat_hvd.tensorflow.library import LIBRARY
from compat_hvd.tensorflow.names import CollectiveName, collective_name
from compat_hvd.tensorflow.ops import TRANSFERABLE, as_rows, registered_id


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Sends consecutive rows of a tensor to the ranks, in their order, and joins the rows received.

    Args:
        tensor: of at least one dimension; the first may differ between ranks and may be 0.
        splits: how many rows each member of the process set gets: a vector of int32, or integers in a list or NumPy
            array; not negative, and their sum is the first dimension. None for equally many.
        name: the name by which ranks match this collective; by default made from the tensor's name.
        ignore_name_scope: leave name scopes out of that name.
        process_set: the ranks taking part.

    Returns:
        A tensor of the input's dtype, the rows in the order of the ranks they come from; if ``splits`` is given, that
        tensor and how many rows came from each, an int32 vector.

    Raises:
        ValueError: before ``init()``; for a scalar; for a tensor of splits that is not int32.
        TypeError: the dtype is not numeric or bool, or splits are not integers.
        tf.errors.InvalidArgumentError: (when run) wrong splits, or none and the rows cannot be divided equally; on
            every rank.
        tf.errors.FailedPreconditionError: (when run) ranks disagree on dtype or other dimensions.
    """
    process_set_id = registered_id("alltoall", process_set)
    tensor = as_rows("alltoall", tensor, TRANSFERABLE)
    chosen = collective_name("HorovodAlltoall", tensor, name, ignore_name_scope)
    output, received = alltoall_op(tensor, _as_splits(splits), chosen, ignore_name_scope, process_set_id)
    return output if splits is None else (output, received)


def _as_splits(splits: Any) -> tf.Tensor:
    if splits is None:
        return tf.constant([], tf.int32)
    if isinstance(splits, np.ndarray) and splits.dtype.kind not in "iu":
        raise TypeError(f"hvd.alltoall takes integers as splits, not {splits.dtype}")
    return tf.convert_to_tensor(splits, tf.int32)


def alltoall_op(
    tensor: tf.Tensor, splits: tf.Tensor, name: CollectiveName, ignore_name_scope: bool, process_set_id: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Creates the op itself; all arguments have been checked, and empty splits are equal ones."""
    output, received = LIBRARY.horovod_alltoall(
        tensor,
        splits,
        ignore_name_scope=ignore_name_scope,
        process_set_id=process_set_id,
        tensor_name=name.agreed,
        name=name.node,
    )
    return output, received
