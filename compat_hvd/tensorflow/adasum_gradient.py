"""The derivative of Adasum, in float64, from everybody's vectors.

With A = a·a, B = b·b and d = a·b the adaptive sum of two vectors is (1 - d / 2A) a + (1 - d / 2B) b. Its differential
with respect to a, multiplied with a gradient g from the left and transposed, is

    (1 - d / 2A) g - (a·g / 2A) b + (d a·g / A²) a - (b·g / 2B) b.

Within the tree over the ranks this is applied at every level from the root down to a rank's leaf. Where a vector is
zero there is no derivative; its factor then counts as the constant 1 that it is.
"""

from __future__ import annotations

import tensorflow as tf


def adasum_gradient(vectors: list[tf.Tensor], member: int, gradient: tf.Tensor) -> tf.Tensor:
    """The gradient of one rank's vector, given that of the adaptive sum.

    Args:
        vectors: float64, those of all ranks, in their order; their number is a power of two.
        member: the position among them of the one whose gradient is wanted.
        gradient: of the adaptive sum, float64.
    """
    if len(vectors) == 1:
        return gradient
    half = len(vectors) // 2
    left, right = vectors[:half], vectors[half:]
    if member < half:
        return adasum_gradient(left, member, _gradient_of_first(_adasum(left), _adasum(right), gradient))
    return adasum_gradient(right, member - half, _gradient_of_first(_adasum(right), _adasum(left), gradient))


def _adasum(vectors: list[tf.Tensor]) -> tf.Tensor:
    if len(vectors) == 1:
        return vectors[0]
    half = len(vectors) // 2
    a, b = _adasum(vectors[:half]), _adasum(vectors[half:])
    return _factor(a, b) * a + _factor(b, a) * b


def _dot(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(a * b)


def _share(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """How much of ``a`` the projection of ``b`` on it is; 0 where ``a`` is zero."""
    return tf.math.divide_no_nan(_dot(a, b), _dot(a, a))


def _factor(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    return 1.0 - _share(a, b) / 2.0


def _gradient_of_first(a: tf.Tensor, b: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    of_a = _share(a, gradient)
    return _factor(a, b) * gradient - (of_a + _share(b, gradient)) / 2.0 * b + _share(a, b) * of_a * a
