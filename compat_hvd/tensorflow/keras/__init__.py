"""``import compat_hvd.tensorflow.keras as hvd``: Horovod's interface for ``tf.keras``."""

from __future__ import annotations

from compat_hvd.tensorflow.keras import callbacks, elastic
from compat_hvd.tensorflow.keras.models import broadcast_global_variables, load_model
from compat_hvd.tensorflow.keras_shared import door
from compat_hvd.tensorflow.keras_shared.door import *  # noqa: F403
from compat_hvd.tensorflow.keras_shared.optimizer import DistributedOptimizer

__all__ = [*door.__all__, "DistributedOptimizer", "broadcast_global_variables", "callbacks", "elastic", "load_model"]
