"""Callbacks for standalone ``keras``."""

from __future__ import annotations

import keras

from compat_hvd.tensorflow.keras_shared import callbacks, learning_rate

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(callbacks.BroadcastGlobalVariables, keras.callbacks.Callback):
    __doc__ = callbacks.BroadcastGlobalVariables.__doc__


class MetricAverageCallback(callbacks.MetricAverage, keras.callbacks.Callback):
    __doc__ = callbacks.MetricAverage.__doc__


class LearningRateScheduleCallback(learning_rate.LearningRateSchedule, keras.callbacks.Callback):
    __doc__ = learning_rate.LearningRateSchedule.__doc__


class LearningRateWarmupCallback(learning_rate.LearningRateWarmup, keras.callbacks.Callback):
    __doc__ = learning_rate.LearningRateWarmup.__doc__


class BestModelCheckpoint(callbacks.BestModel, keras.callbacks.ModelCheckpoint):
    __doc__ = callbacks.BestModel.__doc__
