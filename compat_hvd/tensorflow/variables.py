"""Variables of any make: Keras 3 wraps those of TensorFlow, Keras 2 and TensorFlow 1 use them as they are."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def native(variable: Any) -> Any:
    """The ``tf.Variable`` behind a variable of Keras 3; any other variable itself."""
    return variable if isinstance(variable, tf.Variable) or not hasattr(variable, "path") else variable.value


def key(variable: Any) -> Any:
    """What identifies a variable in dicts and sets, the same for a Keras variable and the one behind it."""
    return native(variable).ref()
