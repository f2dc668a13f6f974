"""Where Keras 3 decides before a distributed optimizer is asked: XLA, and the loss scale.

Keras has no hook for either, so methods of two of its classes are replaced, once, when the first optimizer is wrapped.
They do what they did before unless the optimizer concerned is distributed.
"""

from __future__ import annotations

import functools
import inspect
import logging
from typing import Any, Callable, Sequence

import tensorflow as tf

from compat_hvd.tensorflow.keras_shared.distributed import DistributedKerasOptimizer, is_distributed
from compat_hvd.tensorflow.keras_shared.reducing import GradientReducer

_logger = logging.getLogger("compat_hvd.keras")
_PREPARED = "_compat_hvd_prepared"
_ASKED = "_compat_hvd_jit_compile"


def prepare() -> None:
    """Makes Keras 3 fit for distributed optimizers.

    Raises:
        ValueError: Keras runs on another backend than TensorFlow.
    """
    import keras

    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"compat_hvd reduces gradients with TensorFlow, but Keras runs on {keras.backend.backend()}; set "
            "KERAS_BACKEND=tensorflow"
        )
    if getattr(keras.Model, _PREPARED, False):
        return
    setattr(keras.Model, _PREPARED, True)
    _replace(keras.Model, "compile", _compile)
    _replace(keras.Model, "make_train_function", _make_train_function)
    _replace(keras.optimizers.LossScaleOptimizer, "apply", _apply_scaled)


def _replace(cls: type, name: str, replacement: Callable[..., Any]) -> None:
    owner = next(one for one in cls.__mro__ if name in vars(one))
    original = vars(owner)[name]

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return replacement(original, self, *args, **kwargs)

    setattr(owner, name, method)


def _compile(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Remembers what was asked for, because Keras keeps only what it made of it."""
    given = inspect.signature(original).bind(model, *args, **kwargs)
    given.apply_defaults()
    result = original(model, *args, **kwargs)
    object.__setattr__(model, _ASKED, given.arguments.get("jit_compile", "auto"))
    return result


def _make_train_function(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Keeps XLA away from training with a distributed optimizer: there are no XLA kernels for collectives.

    Raises:
        ValueError: the model was compiled with jit_compile=True.
    """
    if model.jit_compile and any(is_distributed(value) for value in list(vars(model).values())):
        if getattr(model, _ASKED, "auto") != "auto":
            raise ValueError(
                f"{model.name} was compiled with jit_compile=True, but XLA cannot compile the collectives of a "
                "DistributedOptimizer; use model.compile(..., jit_compile=False)"
            )
        _logger.info("%s: jit_compile='auto' means False here, because XLA cannot compile collectives", model.name)
        model.jit_compile = False
    return original(model, *args, **kwargs)


def forget_what_was_asked(model: Any) -> None:
    """For a model that was loaded: what it was saved with is what Keras had made of the argument there."""
    object.__setattr__(model, _ASKED, "auto")


def _apply_scaled(original: Callable[..., Any], optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
    """Reduces before the LossScaleOptimizer looks for infinities, so that all ranks skip a step or none does."""
    inner = optimizer.inner_optimizer
    if not isinstance(inner, DistributedKerasOptimizer):
        return original(optimizer, grads, trainable_variables)
    variables = optimizer._trainable_variables if trainable_variables is None else list(trainable_variables)
    grads = take_scaled(optimizer, inner._reducer, list(grads), variables)
    with inner._reducer.suspended():
        return original(optimizer, grads, None if trainable_variables is None else variables)


def take_scaled(optimizer: Any, reducer: GradientReducer, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Reduces gradients that are multiplied by the scale of a LossScaleOptimizer.

    When they are summed up over several passes, it is without the scale, which may change in between. It is a power of
    two, so that this changes no digit.
    """
    if reducer.aggregation is None:
        return reducer.take(grads, variables)
    if not optimizer.built:
        optimizer.build(list(variables))
    scale = optimizer.dynamic_scale
    unscaled = [None if gradient is None else gradient / scale for gradient in map(_dense, grads)]
    return [None if gradient is None else gradient * scale for gradient in reducer.take(unscaled, variables)]


def _dense(gradient: Any) -> Any:
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def publish(cls: type, base: type) -> None:
    """Has Keras save ``cls`` under the public name of ``base``, so that a model loads where this package is missing."""
    try:
        from keras.src import api_export

        names = api_export.REGISTERED_OBJS_TO_NAMES
    except (ImportError, AttributeError):
        return
    if base in names:
        names[cls] = names[base]
