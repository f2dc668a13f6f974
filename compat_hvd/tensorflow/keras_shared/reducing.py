"""The gradients of one Keras optimizer: reduced once, whichever of its methods they come by."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator, Sequence

import tensorflow as tf

from compat_hvd.tensorflow.gradients import GradientReduction, Groups
from compat_hvd.tensorflow.keras_shared.aggregation import LocalAggregation
from compat_hvd.tensorflow.keras_shared.options import Options
from compat_hvd.tensorflow.layers import trainable_variables
from compat_hvd.tensorflow.names import GradientScope
from compat_hvd.tensorflow.provenance import mark_reduced, may_come_from_elsewhere, reduced_already
from compat_hvd.tensorflow.variables import key


class GradientReducer:
    """Belongs to one wrapped optimizer.

    Gradients reach an optimizer by two ways: it computes them itself (``minimize``, Keras 2), or it is given them
    (``apply_gradients``, ``apply``). The first way ends in the second, so what is given may be reduced already. In a
    graph the ops behind a gradient tell. Eagerly, and for gradients that are passed into a ``tf.function``, the
    optimizer remembers the variables whose reduced gradients it has handed out and not been given back.
    """

    def __init__(self, options: Options, owner: type, groups: Groups = None) -> None:
        self.reduction = GradientReduction(options.how, options.sparse_as_dense, groups, options.scale_local)
        self.aggregation = (
            LocalAggregation(options.passes, options.average_aggregated, options.sparse_as_dense, owner)
            if options.passes > 1
            else None
        )
        self._name = options.name
        self._scope = GradientScope(options.name)
        self._local_layers: list[Any] = []
        self._handed_out: set[Any] = set()
        self._suspended = False

    def register_local_layers(self, layers: Sequence[Any]) -> None:
        """Leaves the gradients of all weights that the layers have, now or once they are built, unreduced."""
        self._local_layers.extend(layers)

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduces gradients, however they came about; counts as one backward pass."""
        if self.aggregation is not None:
            reduced = self.aggregation.add(gradients, variables, self._exchange)
            mark_reduced(reduced)
            return reduced
        return self._exchange(gradients, variables)

    def hand_out(self, pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Reduces pairs (gradient, variable) that the optimizer has just computed."""
        variables = [variable for _, variable in pairs]
        reduced = self.reduce([gradient for gradient, _ in pairs], variables)
        if tf.executing_eagerly():
            self._handed_out |= {key(variable) for variable in variables}
        return list(zip(reduced, variables))

    def take(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns the gradients that the optimizer is given, those reduced that are not yet."""
        gradients = list(gradients)
        if self._suspended:
            return gradients
        done = [
            before or (gradient is not None and self._was_handed_out(gradient, variable))
            for before, gradient, variable in zip(reduced_already(gradients), gradients, variables)
        ]
        if tf.executing_eagerly():
            self.forget(variables)
        if self.aggregation is not None:
            return gradients if any(done) else self.reduce(gradients, variables)
        chosen = [i for i, gradient in enumerate(gradients) if gradient is not None and not done[i]]
        reduced = self.reduce([gradients[i] for i in chosen], [variables[i] for i in chosen])
        for i, gradient in zip(chosen, reduced):
            gradients[i] = gradient
        return gradients

    def _was_handed_out(self, gradient: Any, variable: Any) -> bool:
        if key(variable) not in self._handed_out:
            return False
        return tf.executing_eagerly() or may_come_from_elsewhere(gradient)

    def forget(self, variables: Sequence[Any]) -> None:
        """For gradients that the caller says are reduced."""
        self._handed_out -= {key(variable) for variable in variables}

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """While the gradients that pass through the optimizer are known to be reduced."""
        before, self._suspended = self._suspended, True
        try:
            yield
        finally:
            self._suspended = before

    def apply(self, apply: Callable[[], Any], gradients: Sequence[Any], iterations: Any) -> Any:
        """Calls ``apply``, which applies the reduced gradients; with aggregation only when they are there."""
        with self.suspended():
            return apply() if self.aggregation is None else self.aggregation.apply(apply, gradients, iterations)

    def _exchange(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        for variable in trainable_variables(self._local_layers):
            self.reduction.register_local(variable)
        with tf.name_scope(f"{self._name}_Allreduce"):
            return self.reduction.apply(gradients, variables, self._scope.next_prefix())
