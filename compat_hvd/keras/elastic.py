"""Elastic training with standalone ``keras``."""

from __future__ import annotations

import keras

from compat_hvd.tensorflow.elastic import run
from compat_hvd.tensorflow.keras_shared import elastic
from compat_hvd.tensorflow.keras_shared.elastic import KerasState

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]


class CommitStateCallback(elastic.CommitState, keras.callbacks.Callback):
    __doc__ = elastic.CommitState.__doc__


class UpdateBatchStateCallback(elastic.UpdateBatchState, keras.callbacks.Callback):
    __doc__ = elastic.UpdateBatchState.__doc__


class UpdateEpochStateCallback(elastic.UpdateEpochState, keras.callbacks.Callback):
    __doc__ = elastic.UpdateEpochState.__doc__
