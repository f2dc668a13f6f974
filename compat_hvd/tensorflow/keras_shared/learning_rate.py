"""Callbacks that move the learning rate, without their base class, and how each Keras lets it be moved."""

from __future__ import annotations

from typing import Any, Callable

from compat_hvd.common import basics
from compat_hvd.tensorflow.keras_shared.sessions import fetch


class Hyperparameters:
    """The learning rate and momentum of an optimizer of any Keras, or of the one inside a LossScaleOptimizer."""

    def __init__(self, optimizer: Any) -> None:
        while getattr(optimizer, "inner_optimizer", None) is not None:
            optimizer = optimizer.inner_optimizer
        self._optimizer = optimizer

    @property
    def learning_rate(self) -> float:
        """The learning rate.

        Raises:
            ValueError: the optimizer has a schedule of its own instead.
        """
        rate = self._optimizer.learning_rate
        raw = getattr(self._optimizer, "_learning_rate", rate)
        if any(callable(one) and hasattr(one, "get_config") for one in (rate, raw)):
            raise ValueError(
                f"{type(self._optimizer).__name__} has the schedule {type(raw).__name__} for its learning rate; "
                "give it a number if a callback is to change it"
            )
        return float(fetch(rate, self._optimizer))

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._optimizer.learning_rate = value

    def correct_momentum(self, ratio: float) -> Callable[[], None]:
        """Multiplies what the momentum adds to the next step; the result undoes it after that step.

        Where momentum is a hyperparameter that can be set, it is multiplied. Elsewhere it is a number that a traced
        step has built in, and the velocities are multiplied instead, which gives the same step.
        """
        optimizer = self._optimizer
        if "momentum" in getattr(optimizer, "_hyper", {}):
            before = float(fetch(optimizer.momentum, optimizer))
            optimizer.momentum = before * ratio
            return lambda: setattr(optimizer, "momentum", before)
        if isinstance(getattr(optimizer, "momentum", None), (int, float)):
            for velocity in getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or ():
                velocity.assign(velocity * ratio)
        return lambda: None


class LearningRateSchedule:
    """Sets the learning rate to ``initial_lr`` times a multiplier from ``start_epoch`` to before ``end_epoch``.

    Args:
        initial_lr: the learning rate that is multiplied.
        multiplier: a function of the epoch, or a number m for ``m ** (epoch - start_epoch)``.
        start_epoch, end_epoch: where it is in charge; None for no end.
        staircase: move at the start of epochs only; otherwise at every batch, with fractions of epochs.
        momentum_correction: scale momentum by new / old learning rate for one batch (Goyal et al., Accurate, Large
            Minibatch SGD, 2017).
        steps_per_epoch: how many batches an epoch has, where Keras does not know.

    Raises:
        ValueError: no ``initial_lr``; (when training begins) no number of steps.
    """

    model: Any
    params: Any

    def __init__(
        self,
        initial_lr: float,
        multiplier: Any,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier ** (epoch - start_epoch)
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self._restore_momentum: Callable[[], None] | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Finds out the number of steps, if it is needed."""
        if self.staircase or self.steps_per_epoch:
            return
        known = {name: value or 0 for name, value in (self.params or {}).items()}
        # Keras in a session knows the numbers of samples in an epoch and in a batch instead.
        batches = -(-known.get("samples", 0) // (known.get("batch_size", 0) or 1))
        self.steps_per_epoch = known.get("steps", 0) or batches
        if not self.steps_per_epoch:
            raise ValueError(
                f"{type(self).__name__}: Keras does not know the number of batches of an epoch; give steps_per_epoch"
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the learning rate."""
        if self.current_epoch < self.start_epoch or (
            self.end_epoch is not None and self.current_epoch >= self.end_epoch
        ):
            return
        if not self.staircase:
            assert self.steps_per_epoch
            self._adjust(self.current_epoch + float(batch) / self.steps_per_epoch)
        elif batch == 0:
            self._adjust(self.current_epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Restores the momentum."""
        if self._restore_momentum is not None:
            self._restore_momentum()
            self._restore_momentum = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes the learning rate into ``logs["lr"]``."""
        if logs is not None:
            logs["lr"] = Hyperparameters(self.model.optimizer).learning_rate

    def _adjust(self, epoch: float) -> None:
        hyperparameters = Hyperparameters(self.model.optimizer)
        before = hyperparameters.learning_rate
        after = float(self.initial_lr * self.multiplier(epoch))
        hyperparameters.learning_rate = after
        if self.momentum_correction and before > 0 and after != before:
            self._restore_momentum = hyperparameters.correct_momentum(after / before)


class LearningRateWarmup(LearningRateSchedule):
    """Raises the learning rate batch by batch from ``initial_lr / size()`` to ``initial_lr`` (Goyal et al., 2017).

    In epoch e, a fraction counted in, it is ``initial_lr / size * (e * (size - 1) / warmup_epochs + 1)``.

    Args:
        initial_lr: the learning rate at the end, that is, already multiplied for the number of ranks.
        warmup_epochs: how long it takes.
        momentum_correction, steps_per_epoch: as in LearningRateScheduleCallback.
        verbose: with 1, rank 0 prints the learning rate that was reached.

    Raises:
        ValueError: as LearningRateScheduleCallback.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            assert self.steps_per_epoch
            # The whole range is used: the last batch of the warmup runs with initial_lr.
            epoch += 1.0 / self.steps_per_epoch
            size = basics.size()
            return 1.0 / size * (epoch * (size - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes the learning rate into ``logs["lr"]`` and says when the warmup is over."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0 and basics.rank() == 0:
            rate = Hyperparameters(self.model.optimizer).learning_rate
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.", flush=True)
