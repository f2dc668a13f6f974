"""Batch normalisation with the statistics of all ranks' batches, for Keras 2 and Keras 3.

Keras is imported when the layer is first asked for, not with this module.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Sequence

import tensorflow as tf

from compat_hvd.common.process_sets import global_process_set
from compat_hvd.tensorflow.gradients import exchanges
from compat_hvd.tensorflow.ops import Sum, _allreduce


def joint_moments(
    inputs: tf.Tensor, axes: Sequence[int], weights: tf.Tensor | None, name: str
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Mean and variance over the elements of all ranks, each element with the same weight wherever it is.

    Each rank contributes its count n, its mean m and its sum of squared deviations s. As in Chan, Golub and LeVeque
    (1979), the joint sum of squares about zero is the sum of s + n m². Sums are float64, so that the difference of
    squares loses nothing that float32 holds. The gradient needs nothing special: that of a sum over the ranks is the
    sum of the ranks' gradients.

    Args:
        inputs: any float tensor; the sizes of ``axes`` may differ between the ranks and may be 0.
        axes: the axes to reduce.
        weights: None, or how often each element counts; of a shape that broadcasts to that of ``inputs``.
        name: what the ranks match the reduction by.

    Returns:
        Mean, variance and count, with dimensions of 1 in place of ``axes``; mean and variance of the dtype of
        ``inputs``, 0 where the count is 0.
    """
    weights = tf.ones_like(inputs) if weights is None else tf.broadcast_to(weights, tf.shape(inputs))
    count = tf.reduce_sum(weights, axes, keepdims=True)
    mean = tf.math.divide_no_nan(tf.reduce_sum(inputs * weights, axes, keepdims=True), count)
    deviations = tf.reduce_sum(weights * tf.math.squared_difference(inputs, mean), axes, keepdims=True)
    count, mean, deviations = (tf.cast(one, tf.float64) for one in (count, mean, deviations))
    sums = tf.stack([count, count * mean, deviations + count * mean**2])
    count, total, squares = tf.unstack(_allreduce(sums, name, Sum, ignore_name_scope=True))
    mean = tf.math.divide_no_nan(total, count)
    variance = tf.maximum(tf.math.divide_no_nan(squares, count) - mean**2, 0.0)
    return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype), count


class _Synchronized:
    """What the layers of both Keras have in common; the other base is ``BatchNormalization``."""

    # Keras 3 then leaves jit_compile="auto" off: XLA knows no collective.
    supports_jit = False

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        if kwargs.get("virtual_batch_size") is not None:
            raise ValueError("SyncBatchNormalization does not support virtual_batch_size.")
        super().__init__(**kwargs)

    def _joint_moments(
        self, inputs: Any, axes: Sequence[int], weights: Any, keep_dims: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        layer: Any = self
        mean, variance, count = joint_moments(inputs, axes, weights, f"SyncBatchNormalization/{layer.name}")
        # Without any element the moving statistics stay as they are.
        seen = count > 0
        mean = tf.where(seen, mean, tf.reshape(tf.cast(layer.moving_mean, mean.dtype), tf.shape(mean)))
        variance = tf.where(seen, variance, tf.reshape(tf.cast(layer.moving_variance, mean.dtype), tf.shape(mean)))
        return (mean, variance) if keep_dims else (tf.squeeze(mean, axes), tf.squeeze(variance, axes))


class _Keras2(_Synchronized):
    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        super().__init__(fused, **kwargs)
        # Keras would choose its fused kernel by itself, which computes its own statistics.
        self.fused = False

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        parent: Any = super()
        outputs = parent.call(inputs, *args, **kwargs)
        # In a TensorFlow 1 graph nobody but the script runs the updates; this is where it looks for them.
        if not tf.compat.v1.executing_eagerly_outside_functions():
            layer: Any = self
            collected = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.UPDATE_OPS)
            collected += [update for update in layer.updates if all(update is not one for one in collected)]
        return outputs

    def _moments(
        self, inputs: Any, reduction_axes: Sequence[int], keep_dims: bool, mask: Any = None, **kwargs: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        if not exchanges(global_process_set):
            parent: Any = super()
            return parent._moments(inputs, reduction_axes, keep_dims, mask=mask, **kwargs)
        weights = None if mask is None else tf.expand_dims(tf.cast(mask, inputs.dtype), -1)
        return self._joint_moments(inputs, list(reduction_axes), weights, keep_dims)


class _Keras3(_Synchronized):
    def _moments(self, inputs: Any, mask: Any) -> tuple[tf.Tensor, tf.Tensor]:
        parent: Any = super()
        if not exchanges(global_process_set):
            return parent._moments(inputs, mask)
        layer: Any = self
        weights = None if mask is None else tf.expand_dims(tf.cast(mask, inputs.dtype), -1)
        return self._joint_moments(inputs, layer._reduction_axes, weights, keep_dims=False)


@lru_cache(maxsize=None)
def layer_class(keras: Any) -> Any:
    """``SyncBatchNormalization`` for a Keras: ``tf.keras``, ``tf_keras``, or ``keras`` with TensorFlow as its backend.

    Raises:
        ValueError: Keras 3 has another backend.
    """
    keras_3 = hasattr(keras, "ops")  # tf.keras has no __version__ in some releases
    if keras_3 and keras.backend.backend() != "tensorflow":
        raise ValueError(f"SyncBatchNormalization needs Keras on TensorFlow, not on {keras.backend.backend()}")
    bases = (_Keras3 if keras_3 else _Keras2, keras.layers.BatchNormalization)
    return type("SyncBatchNormalization", bases, {"__module__": __name__, "__doc__": _DOC})


_DOC = """Batch normalisation that computes mean and variance over the batches of all ranks.

A ``BatchNormalization`` of ``tf.keras``, of Keras 2 or 3. Every element counts the same, so batches may differ in
size between the ranks and be empty on some. Moving statistics, and the gradients that flow through the statistics,
are those of one process that has all batches. In inference nothing is exchanged. All ranks must run it equally often.

Args:
    fused: must be False.
    kwargs: the arguments of ``BatchNormalization``, by keyword.

Raises:
    ValueError: ``fused`` is True or None; ``virtual_batch_size`` is given; in training, before ``init()``.
"""


def __getattr__(name: str) -> Any:
    if name != "SyncBatchNormalization":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Kept, because Keras looks a saved layer's class up among the variables of its module.
    globals()[name] = layer_class(tf.keras)
    return globals()[name]
