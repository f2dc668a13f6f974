"""The public allreduce: dense and sparse tensors, averaging, compression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

import tensorflow as tf

from compat_hvd.common.process_sets import ProcessSet, global_process_set
from compat_hvd.common.util import get_average_backwards_compatibility_fun
from compat_hvd.tensorflow import ops
from compat_hvd.tensorflow.compression import Compression, Compressor
from compat_hvd.tensorflow.names import CollectiveName, collective_name
from compat_hvd.tensorflow.ops import (
    REDUCE_OP_NAMES,
    REDUCIBLE,
    Adasum,
    Average,
    Sum,
    as_reducible,
    as_rows,
    as_tensor,
    checked_reduce_op,
    gather_op,
    reduce_op,
    registered_id,
)

handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(ops)


@dataclass(frozen=True)
class Reduction:
    """How tensors are reduced over the ranks: every argument of ``allreduce`` but the tensor and its name.

    Dense tensors are compressed, reduced by one op, and decompressed.
    """

    op: int = Average
    prescale_factor: float = 1.0
    postscale_factor: float = 1.0
    compression: type[Compressor] = Compression.none
    device_dense: str = ""
    device_sparse: str = ""
    process_set: ProcessSet = global_process_set
    ignore_name_scope: bool = False

    def __post_init__(self) -> None:
        checked_reduce_op(self.op, self.process_set)

    def apply(self, tensor: Any, name: str | None = None, agreed: str = "") -> tf.Tensor | tf.IndexedSlices:
        """Reduces one tensor; ``name`` and ``agreed`` as in ``names.collective_name``."""
        if isinstance(tensor, tf.IndexedSlices):
            with tf.device(self.device_sparse):
                return self._apply_to_slices(tensor, name, agreed)
        with tf.device(self.device_dense):
            return self._apply_to_dense(tensor, name, agreed)

    def _apply_to_dense(self, value: Any, name: str | None, agreed: str) -> tf.Tensor:
        tensor = as_reducible("allreduce", value, self.op)
        compressed, context = self.compression.compress(tensor)
        chosen = collective_name("HorovodAllreduce", compressed, name, self.ignore_name_scope, agreed)
        return self.compression.decompress(self._create(compressed, chosen, "allreduce"), context)

    def _create(self, tensor: Any, name: CollectiveName, verb: str) -> Any:
        if self.op == Adasum and verb.endswith("reducescatter"):
            raise NotImplementedError(f"hvd.{verb} does not support op=hvd.Adasum; hvd.allreduce does")
        process_set_id = registered_id(verb, self.process_set)
        factors = float(self.prescale_factor), float(self.postscale_factor)
        return reduce_op(tensor, name, self.op, *factors, self.ignore_name_scope, process_set_id, verb)

    def apply_to_group(
        self, tensors: Sequence[Any], name: str | None = None, agreed: str = ""
    ) -> list[tf.Tensor | tf.IndexedSlices]:
        """Reduces several tensors, the dense ones submitted together; ``name`` and ``agreed`` as in ``apply``."""
        results: list[Any] = list(tensors)
        sparse = [i for i, one in enumerate(tensors) if isinstance(one, tf.IndexedSlices)]
        for i in sparse:
            member = f"_{i + 1}of{len(tensors)}"
            results[i] = self.apply(tensors[i], name and name + member, agreed and agreed + member)
        dense = [i for i in range(len(tensors)) if i not in sparse]
        values = [as_reducible("grouped_allreduce", tensors[i], self.op) for i in dense]
        for i, reduced in zip(dense, self._group("allreduce", values, name, agreed)):
            results[i] = reduced
        return results

    def _group(self, verb: str, tensors: Sequence[tf.Tensor], name: str | None, agreed: str = "") -> list[tf.Tensor]:
        if not tensors:
            return []
        with tf.device(self.device_dense):
            compressed, contexts = zip(*(self.compression.compress(tensor) for tensor in tensors))
            op_type = f"HorovodGrouped{verb.capitalize()}"
            chosen = collective_name(op_type, list(compressed), name, self.ignore_name_scope, agreed)
            reduced = self._create(list(compressed), chosen, f"grouped_{verb}")
            return [self.compression.decompress(one, context) for one, context in zip(reduced, contexts)]

    def scatter(self, value: Any, name: str | None = None) -> tf.Tensor:
        """Reduces one dense tensor and keeps this rank's rows of the result."""
        with tf.device(self.device_dense):
            compressed, context = self.compression.compress(as_rows("reducescatter", value, REDUCIBLE))
            chosen = collective_name("HorovodReducescatter", compressed, name, self.ignore_name_scope)
            return self.compression.decompress(self._create(compressed, chosen, "reducescatter"), context)

    def scatter_group(self, values: Sequence[Any], name: str | None = None) -> list[tf.Tensor]:
        """Reduces several dense tensors, submitted together, and keeps this rank's rows of each result."""
        tensors = [as_rows("grouped_reducescatter", value, REDUCIBLE) for value in values]
        return self._group("reducescatter", tensors, name)

    def _apply_to_slices(self, slices: tf.IndexedSlices, name: str | None, agreed: str) -> tf.IndexedSlices:
        """Gathers the slices of all ranks; an index may then occur several times, which means the sum of its slices."""
        if self.op not in (Average, Sum):
            raise NotImplementedError(
                f"hvd.allreduce of IndexedSlices supports Average and Sum, not {REDUCE_OP_NAMES[self.op]}"
            )
        if (self.prescale_factor, self.postscale_factor) != (1.0, 1.0):
            raise NotImplementedError(
                "hvd.allreduce of IndexedSlices does not support prescale_factor and postscale_factor "
                "(gradient_predivide_factor of an optimizer); convert to a dense tensor (sparse_as_dense=True)"
            )
        values = self._gather(slices.values, "values", name, agreed)
        indices = self._gather(slices.indices, "indices", name, agreed)
        if self.op == Average:
            values = values / tf.cast(self.process_set.size(), values.dtype)
        return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)

    def _gather(self, part: Any, role: str, name: str | None, agreed: str) -> tf.Tensor:
        process_set_id = registered_id("allreduce", self.process_set)
        tensor = as_tensor("allreduce", part, REDUCIBLE)
        chosen = collective_name(
            "HorovodAllgather",
            tensor,
            name and f"{name}_{role}",
            self.ignore_name_scope,
            agreed and f"{agreed}_{role}",
        )
        return gather_op(tensor, chosen, self.ignore_name_scope, process_set_id)


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> tf.Tensor | tf.IndexedSlices:
    """Reduces a tensor over the ranks.

    Args:
        tensor: the same shape and dtype on every rank; anything that converts to a tensor. ``tf.IndexedSlices`` are
            gathered: the result holds every rank's slices, divided by the number of ranks for an average.
        average: older form of ``op``: True for Average, False for Sum.
        device_dense, device_sparse: the device to place the ops on, for dense tensors and IndexedSlices.
        compression: how dense tensors are sent: ``Compression.none``, ``fp16`` or ``bf16``.
        op: Average (default), Sum, Adasum, Min, Max or Product.
        prescale_factor, postscale_factor: multiply the tensor before, and the result after the reduction.
        name: the name by which ranks match this collective; by default made from the tensor's name.
        process_set: the ranks taking part.
        ignore_name_scope: leave name scopes out of the name.

    Returns:
        The reduced tensor, of the input's shape and dtype.

    Raises:
        ValueError: before ``init()``; for an unknown op; if both ``op`` and ``average`` are given.
        TypeError: the dtype cannot be reduced; the message names it.
        NotImplementedError: Adasum within a process set, or with a number of ranks that is not a power of two; Adasum,
            Min, Max, Product or scale factors for IndexedSlices.
        tf.errors.FailedPreconditionError: (when run) ranks disagree; on every rank.
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
    return how.apply(tensor, name)
