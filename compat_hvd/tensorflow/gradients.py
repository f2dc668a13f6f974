"""Reducing lists of gradients: the one place that decides what happens to None, dense and sparse ones."""

from __future__ import annotations

from typing import Any, Sequence

import tensorflow as tf

from compat_hvd.common.process_sets import ProcessSet
from compat_hvd.tensorflow.names import variable_names
from compat_hvd.tensorflow.ops import Average
from compat_hvd.tensorflow.reduction import Reduction

Gradient = Any  # tf.Tensor, tf.IndexedSlices or None


def predivided(op: int, gradient_predivide_factor: float) -> tuple[float, float]:
    """The factors before and after the sum that split the division of an average in two.

    Raises:
        ValueError: the factor is not 1 and the op is not Average.
    """
    if gradient_predivide_factor == 1.0:
        return 1.0, 1.0
    if op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    return 1.0 / gradient_predivide_factor, gradient_predivide_factor


def exchanges(process_set: ProcessSet) -> bool:
    """Whether gradients of this rank are exchanged with other ranks at all.

    Raises:
        ValueError: before ``init()``.
    """
    return bool(process_set.size() > 1 and process_set.included())


def reduce_gradients(
    gradients: Sequence[Gradient],
    variables: Sequence[Any],
    how: Reduction,
    sparse_as_dense: bool,
    prefix: str,
) -> list[Gradient]:
    """Reduces gradients over the ranks.

    Args:
        gradients: dense ones keep their kind; IndexedSlices keep theirs unless ``sparse_as_dense``; None stays None
            and is not sent.
        variables: what each gradient belongs to. Ranks match gradients by ``prefix`` and the variable's name.
        how: the reduction.
        sparse_as_dense: turn IndexedSlices into dense tensors before the reduction.
        prefix: distinguishes this list from others that may be reduced at the same time.
    """
    if not exchanges(how.process_set):
        return list(gradients)
    reduced = []
    for gradient, variable_name in zip(gradients, variable_names(variables)):
        if sparse_as_dense and isinstance(gradient, tf.IndexedSlices):
            gradient = tf.convert_to_tensor(gradient)
        if gradient is not None:
            gradient = how.apply(gradient, agreed=f"{prefix}/{variable_name}")
        reduced.append(gradient)
    return reduced


def scale_locally(gradient: Gradient, process_set: ProcessSet) -> Gradient:
    """Divides a gradient that is not reduced by the number of ranks; IndexedSlices stay so, None stays None."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            scale_locally(gradient.values, process_set), gradient.indices, dense_shape=gradient.dense_shape
        )
    return gradient / tf.cast(process_set.size(), gradient.dtype)
