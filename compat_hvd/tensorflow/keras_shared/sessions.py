"""The session of Keras 2 in graph mode."""

from __future__ import annotations

import importlib
from typing import Any

import tensorflow as tf


def keras_session(owner: Any) -> Any:
    """The session in which Keras runs; Keras initialises its variables when it hands the session out.

    Args:
        owner: a module of Keras, a class of Keras or an object of one, which tells which Keras.
    """
    return keras_backend(owner).get_session()


def have_initialised(variable: Any, owner: Any) -> None:
    """In graph mode has Keras initialise a variable like its own."""
    if not tf.executing_eagerly():
        keras_backend(owner).track_variable(variable)


def keras_backend(owner: Any) -> Any:
    """The backend module of the Keras that ``owner`` belongs to."""
    cls = owner if isinstance(owner, type) else type(owner)
    modules = [getattr(owner, "__name__", "")] + [base.__module__ for base in cls.__mro__]
    packages = [name.split(".")[0] for name in modules]
    package = next(name for name in packages if name in ("keras", "tf_keras"))
    return importlib.import_module(f"{package}.src.backend")


def fetch(value: Any, owner: Any) -> Any:
    """The NumPy value of a variable, a tensor or a number, in eager and in graph mode."""
    if not (tf.is_tensor(value) or isinstance(value, tf.Variable)):
        return value.numpy() if hasattr(value, "numpy") else value
    return value.numpy() if tf.executing_eagerly() else keras_session(owner).run(value)
