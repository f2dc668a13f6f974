"""DistributedOptimizer for Keras optimizers: the arguments of both Keras doors."""

from __future__ import annotations

from typing import Any

from compat_hvd.common.process_sets import ProcessSet, global_process_set
from compat_hvd.tensorflow.compression import Compression, Compressor
from compat_hvd.tensorflow.gradients import Groups, checked_groups
from compat_hvd.tensorflow.keras_shared.options import checked_options
from compat_hvd.tensorflow.keras_shared.wrapping import distributed
from compat_hvd.tensorflow.layers import checked_layers
from compat_hvd.tensorflow.ops import Average


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps a Keras optimizer so that its gradients are reduced over the ranks, each once, before they are applied.

    Keras 2 optimizers, those of ``keras.optimizers.legacy`` and Keras 3 optimizers are taken, with ``model.fit``, in
    ``minimize`` and in loops that call ``apply_gradients`` or ``apply`` with gradients of a tape of their own.

    Args:
        optimizer: the optimizer to wrap, also a LossScaleOptimizer. The wrapped one shares its state: iterations, slots
            and hyperparameters.
        name: part of the names by which ranks match gradients; by default "Distributed" and the optimizer's class name.
        device_dense, device_sparse: the device to place reductions on, for dense gradients and IndexedSlices.
        compression: how dense gradients are sent: ``Compression.none`` or ``Compression.fp16``.
        sparse_as_dense: turn IndexedSlices into dense gradients before the reduction.
        gradient_predivide_factor: with Average, divide by it before the sum and multiply with it after.
        op: Average or Sum.
        backward_passes_per_step: sum up the gradients of so many passes before they are reduced and applied.
        average_aggregated_gradients: divide those sums by ``backward_passes_per_step``.
        num_groups: older form of ``groups``.
        groups: a number of groups, or lists of variables, whose gradients are submitted together.
        process_set: the ranks taking part; on other ranks gradients stay as they are.
        scale_local_gradients: divide gradients of variables given to ``register_local_var`` by the number of ranks.

    Returns:
        An optimizer of a class that has the name of the given one's and is derived from it.

    Raises:
        ValueError: arguments that do not go together; the optimizer is wrapped already.
        TypeError: ``optimizer`` is no Keras optimizer.
    """
    options = checked_options(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        process_set,
        scale_local_gradients,
    )
    return distributed(optimizer, options, checked_groups(num_groups, groups))


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps a Keras optimizer like ``DistributedOptimizer``, but leaves the gradients of some layers unreduced.

    Args:
        local_layers: a layer or a list of layers whose weights every rank trains for itself. They need not be built
            yet. The gradients are divided by size() unless ``scale_local_gradients=False``.
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op,
            backward_passes_per_step, average_aggregated_gradients, groups, process_set, scale_local_gradients: as in
            ``DistributedOptimizer``.

    Raises:
        ValueError: one of ``local_layers`` is no layer; as ``DistributedOptimizer``.
        TypeError: as ``DistributedOptimizer``.
    """
    layers = checked_layers(local_layers)
    wrapped = DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    wrapped._reducer.register_local_layers(layers)
    return wrapped
