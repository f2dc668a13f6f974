"""The kinds of Keras that may be installed side by side: Keras 3, and Keras 2 with new and with legacy optimizers."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from world import RANK

FLAVORS = ("keras3", "keras2", "legacy")


class Kind(NamedTuple):
    """One kind of Keras and what belongs to it."""

    name: str
    keras: Any
    optimizers: Any
    hvd: Any

    def callback(self, mixin: type) -> type:
        """A callback of ours on the base class of this Keras, whichever Keras the doors stand for."""
        base = self.keras.callbacks.ModelCheckpoint if mixin.__name__ == "BestModel" else self.keras.callbacks.Callback
        return type(mixin.__name__, (mixin, base), {})

    def dense(self, units: int = 1, kernel: Any = "zeros", use_bias: bool = False, **more: Any) -> Any:
        return self.keras.layers.Dense(units, use_bias=use_bias, kernel_initializer=kernel, **more)

    def model(self, *layers: Any, inputs: Any = (1,)) -> Any:
        """A Sequential model that is built, or with ``inputs=None`` not."""
        first = [] if inputs is None else [self.keras.Input(inputs)]
        return self.keras.Sequential([*first, *layers])

    def variable(self, value: Any) -> Any:
        """A trainable variable as this Keras would make it."""
        return self.keras.Variable(value) if self.name == "keras3" else tf.Variable(value)


def _module(name: str) -> Any:
    try:
        keras = importlib.import_module("keras")
        if (keras.__version__ >= "3") == (name == "keras3"):
            return keras
        if name != "keras3":
            return importlib.import_module("tf_keras")
    except ImportError:
        pass
    return pytest.skip(f"{'Keras 3' if name == 'keras3' else 'tf_keras'} is not installed")


def kind(name: str) -> Kind:
    """The kind of Keras of one flavor; skips the test if it is not installed."""
    keras = _module(name)
    hvd = importlib.import_module("compat_hvd.tensorflow.keras_shared.optimizer")
    return Kind(name, keras, keras.optimizers.legacy if name == "legacy" else keras.optimizers, hvd)


class Slope:
    """One variable w whose gradient on rank r is ``factor * (r + 1)``; a step of SGD(1.0) subtracts it."""

    def __init__(self, kind, length=1):
        self.kind = kind
        self.w = kind.variable(np.zeros(length, np.float32))
        self.factor = tf.Variable(1.0)

    def loss(self):
        return tf.reduce_sum(self.w * (self.factor * (RANK + 1.0)))

    def gradient(self, scale=1.0):
        with tf.GradientTape() as tape:
            loss = self.loss() * scale
        return tape.gradient(loss, [self.w])

    @property
    def value(self):
        return np.asarray(self.w.numpy()).tolist()


def eagerly(function):
    return function


def traced(function):
    def run():
        function()

    return tf.function(run, autograph=False)
