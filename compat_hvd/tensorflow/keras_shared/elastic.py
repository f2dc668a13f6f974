"""Elastic training with ``fit``: the state of a model, and callbacks that keep it up to date."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from compat_hvd.tensorflow.elastic import TensorFlowKerasState
from compat_hvd.tensorflow.keras_shared.sessions import keras_backend


class KerasState(TensorFlowKerasState):
    """The weights of a Keras model, the variables of its optimizer, and further objects as attributes.

    Args:
        model: a built model of Keras 2 or 3; in graph mode its values are those of the session of Keras.
        optimizer: by default that of the compiled model.
        kwargs: the attributes and their first values, such as ``batch=0, epoch=0``.

    Raises:
        ValueError: the model is not built.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        backend = None if tf.executing_eagerly() else keras_backend(model)
        super().__init__(model, optimizer=optimizer, backend=backend, **kwargs)


class CommitState:
    """Commits the state after every so many batches, and after every epoch.

    Put it behind the callbacks that update the state.

    Args:
        state: an elastic state.
        batches_per_commit: how many batches; a commit costs a copy of the model.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._batches = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Counts from here."""
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commits if it is time to."""
        self._batches += 1
        if self._batches % self.batches_per_commit == 0:
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commits."""
        self.state.commit()


class UpdateBatchState:
    """Keeps ``state.batch``, the batch of the present epoch that was trained last; 0 between epochs.

    Give ``fit`` so many steps fewer when it goes on within an epoch: ``steps_per_epoch=steps - state.batch``.

    Args:
        state: an elastic state with an attribute ``batch``.
    """

    params: Any

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._steps: int | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Forgets the number of steps of an earlier ``fit``."""
        self._steps = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Lets other callbacks know that the rest of an epoch is shorter."""
        if self.params and self.params.get("steps"):
            self._steps = self._steps or self.params["steps"]
            self.params["steps"] = self._steps - self.state.batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the batch."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Begins again."""
        self.state.batch = 0


class UpdateEpochState:
    """Keeps ``state.epoch``, the number of epochs that have been trained.

    Give ``fit`` so many epochs fewer when it goes on: ``epochs=epochs - state.epoch``.

    Args:
        state: an elastic state with an attribute ``epoch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._before = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Notes how many epochs there were before."""
        self._before = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Counts the epoch."""
        self.state.epoch = self._before + epoch + 1
