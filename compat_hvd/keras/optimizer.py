"""DistributedOptimizer with its arguments in the order that Horovod has for standalone Keras."""

from __future__ import annotations

from typing import Any

from compat_hvd.common.process_sets import ProcessSet, global_process_set
from compat_hvd.tensorflow.compression import Compression, Compressor
from compat_hvd.tensorflow.gradients import Groups
from compat_hvd.tensorflow.keras_shared import optimizer as optimizer_door
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
    num_groups: int = 0,
    groups: Groups = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps a Keras optimizer like ``compat_hvd.tensorflow.keras.DistributedOptimizer``.

    The arguments are the same; their order is the one that Horovod has for standalone Keras.
    """
    return optimizer_door.DistributedOptimizer(
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
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
