"""``import compat_hvd.keras as hvd``: Horovod's interface for standalone ``keras``."""

from __future__ import annotations

from compat_hvd.keras import callbacks, elastic
from compat_hvd.keras.models import broadcast_global_variables, load_model
from compat_hvd.keras.optimizer import DistributedOptimizer
from compat_hvd.tensorflow.keras_shared import door
from compat_hvd.tensorflow.keras_shared.door import *  # noqa: F403

__all__ = [*door.__all__, "DistributedOptimizer", "broadcast_global_variables", "callbacks", "elastic", "load_model"]
