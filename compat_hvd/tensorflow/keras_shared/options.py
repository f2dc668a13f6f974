"""The arguments of a Keras DistributedOptimizer, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compat_hvd.tensorflow.gradients import predivided
from compat_hvd.tensorflow.ops import Adasum, Average, Sum
from compat_hvd.tensorflow.reduction import Reduction


@dataclass(frozen=True)
class Options:
    """What the copies that ``from_config`` makes of a wrapped optimizer have in common with it."""

    name: str
    how: Reduction
    sparse_as_dense: bool = False
    passes: int = 1
    average_aggregated: bool = False
    scale_local: bool = True


def checked_options(
    optimizer: Any,
    name: str | None,
    device_dense: str,
    device_sparse: str,
    compression: Any,
    sparse_as_dense: bool,
    gradient_predivide_factor: float,
    op: int,
    backward_passes_per_step: int,
    average_aggregated_gradients: bool,
    process_set: Any,
    scale_local_gradients: bool,
) -> Options:
    """Checks the arguments that every DistributedOptimizer for Keras has.

    Raises:
        ValueError: an op other than Average and Sum; a predivide factor without Average; fewer passes than 1.
    """
    if op == Adasum:
        raise ValueError("op == Adasum is not supported yet with Keras; use hvd.Average or hvd.Sum")
    if op not in (Average, Sum):
        raise ValueError("op currently only supports Average and Sum with Keras optimizers")
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step must be > 0, not {backward_passes_per_step}")
    prescale, postscale = predivided(op, gradient_predivide_factor)
    how = Reduction(op, prescale, postscale, compression, device_dense, device_sparse, process_set)
    return Options(
        name or f"Distributed{type(optimizer).__name__}",
        how,
        sparse_as_dense,
        int(backward_passes_per_step),
        bool(average_aggregated_gradients),
        bool(scale_local_gradients),
    )
