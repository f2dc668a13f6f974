"""Feeding values through placeholders, so that nothing about them is known when the graph is built."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

REDUCIBLE = [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.uint8, tf.int8, tf.int32, tf.int64]
TRANSFERABLE = [*REDUCIBLE, tf.uint16, tf.int16, tf.bool]


class Feed:
    """Makes placeholders and remembers what to feed them."""

    def __init__(self):
        self.values = {}

    def __call__(self, value, dtype=None, shape="like value", name=None):
        array = np.asarray(value, dtype.as_numpy_dtype if dtype else None)
        if shape == "like value":
            shape = array.shape
        placeholder = tf.compat.v1.placeholder(dtype or array.dtype, shape, name=name)
        self.values[placeholder] = array
        return placeholder


def run(build, session=None):
    """Builds tensors with ``build(feed)`` and returns their values from one run."""
    feed = Feed()
    fetches = build(feed)
    session = session or tf.compat.v1.get_default_session()
    return session.run(fetches, feed.values)
