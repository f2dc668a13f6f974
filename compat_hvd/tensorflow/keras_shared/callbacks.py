"""What the callbacks do, without the base class, which is that of the Keras whose door they stand in."""

from __future__ import annotations

import logging
from typing import Any, Iterable

import numpy as np
import tensorflow as tf

from compat_hvd.common import basics
from compat_hvd.tensorflow.functions import broadcast_variables
from compat_hvd.tensorflow.keras_shared.sessions import keras_session
from compat_hvd.tensorflow.objects import allgather_object
from compat_hvd.tensorflow.variables import key, native

_logger = logging.getLogger("compat_hvd.keras")


class BroadcastGlobalVariables:
    """Gives every rank the root's weights and the state of its optimizer before the first batch of the first ``fit``.

    A model that is not built yet is built for it, from the shapes of that batch. What a model makes even later gets the
    root's values when the batch has ended.

    Args:
        root_rank: the rank whose values are sent.
        device: the device to place the ops on.
        local_variables: variables that stay as they are on each rank.

    Raises:
        ValueError: one of ``local_variables`` is no variable.
    """

    model: Any

    def __init__(self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._passed_over: set[Any] = set()  # sent already, or local
        for variable in local_variables or ():
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Leaves a variable out of the broadcast.

        Raises:
            ValueError: it is no variable.
        """
        if not isinstance(native(var), tf.Variable):
            raise ValueError("All local variables must be of tf.Variable type.")
        self._passed_over.add(key(var))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Broadcasts, or has the first step do so once it can build the model."""
        if self.broadcast_done:
            return
        if not tf.executing_eagerly():
            self._broadcast_in_graph()
            self.broadcast_done = True
        elif self.model.built:
            self._broadcast()
        else:
            self._broadcast_within_first_step()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts what came into being with the first batch."""
        if not self.broadcast_done:
            self._broadcast()
            self.broadcast_done = True

    def _broadcast_within_first_step(self) -> None:
        model, step = self.model, self.model.train_function

        def first_step(iterator: Any) -> Any:
            model.train_function = step
            try:
                _build(model, iterator.element_spec)
            except Exception as error:
                reason = " ".join(str(error).split())[:200]
                _logger.warning("%s gets the root's weights after its first batch only: %s", model.name, reason)
            else:
                self._broadcast()
            return step(iterator)

        model.train_function = first_step

    def _broadcast(self) -> None:
        _build_optimizer(self.model.optimizer, self.model.trainable_variables)
        self._send([*self.model.weights, *_listed(self.model.optimizer.variables)])

    def _broadcast_in_graph(self) -> None:
        operation = self._send(tf.compat.v1.global_variables())
        keras_session(self.model).run(operation)

    def _send(self, variables: Iterable[Any]) -> Any:
        chosen = {key(variable): native(variable) for variable in variables if key(variable) not in self._passed_over}
        self._passed_over |= set(chosen)
        with tf.device(self.device):
            return broadcast_variables(list(chosen.values()), self.root_rank)


def _listed(variables: Any) -> list[Any]:
    return list(variables() if callable(variables) else variables)


def _build(model: Any, element_spec: Any) -> None:
    """Makes the variables of a model by tracing it for batches like those of a dataset, without running it."""
    inputs = element_spec[0] if isinstance(element_spec, tuple) else element_spec
    tf.function(lambda batch: model(batch), autograph=False).get_concrete_function(inputs)


def _build_optimizer(optimizer: Any, variables: Any) -> None:
    """Makes the variables of an optimizer, if there are none yet."""
    if hasattr(optimizer, "_create_all_weights"):  # Keras up to 2.10
        optimizer._create_all_weights(variables)
    elif not getattr(optimizer, "built", False):
        optimizer.build(variables)


class MetricAverage:
    """Replaces metrics at the end of an epoch by their averages over all ranks, in place.

    Put it before callbacks that read metrics, such as ReduceLROnPlateau, ModelCheckpoint or TensorBoard.

    Args:
        device: accepted for scripts that give it; the averages are made outside of TensorFlow.

    Raises:
        ValueError: (at the end of an epoch, on all ranks) ranks have different metrics; the message names them.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Averages ``logs``."""
        averages = averaged(logs or {})
        if logs is not None:
            logs.update(averages)


def averaged(metrics: dict[str, Any]) -> dict[str, Any]:
    """The averages over all ranks of numbers or arrays, computed as float64 in the order of ranks.

    Raises:
        ValueError: ranks have different names or shapes; on all ranks, naming them.
    """
    mine = {name: np.asarray(value, np.float64) for name, value in metrics.items()}
    everyone = allgather_object(mine, name="metrics")
    shapes = [{name: value.shape for name, value in theirs.items()} for theirs in everyone]
    _check_same_metrics(shapes)
    means = {name: np.mean([theirs[name] for theirs in everyone], axis=0) for name in mine}
    return {name: float(mean) if mean.ndim == 0 else mean for name, mean in means.items()}


def _check_same_metrics(shapes: list[dict[str, Any]]) -> None:
    if all(theirs == shapes[0] for theirs in shapes):
        return
    names = sorted({name for theirs in shapes for name in theirs})
    differing = [name for name in names if len({theirs.get(name) for theirs in shapes}) > 1]
    listed = "; ".join(
        f"rank {rank} has "
        + (", ".join(f"{n} of shape {theirs[n]}" for n in differing if n in theirs) or "none of them")
        for rank, theirs in enumerate(shapes)
    )
    raise ValueError(
        f"MetricAverageCallback: rank {basics.rank()} cannot average {', '.join(differing)}, which not all ranks have "
        f"alike: {listed}. Compute the same metrics on all ranks, validation included."
    )


class BestModel:
    """A ModelCheckpoint that keeps the best model only and whose ``filepath`` is set later.

    Args:
        monitor, verbose, save_weights_only, mode, save_freq: as for Keras' ModelCheckpoint.

    Raises:
        ValueError: (when training begins) ``filepath`` has not been set.
    """

    filepath: Any

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
    ) -> None:
        super().__init__(  # type: ignore[call-arg]
            filepath="best.weights.h5" if save_weights_only else "best.keras",
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Checks that there is a place to save to."""
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint: set its filepath before training")
        super().on_train_begin(logs)  # type: ignore[misc]
