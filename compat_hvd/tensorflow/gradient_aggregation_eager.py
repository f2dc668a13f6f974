"""The aggregation of gradients in eager mode and in ``tf.function``, under the names that Horovod has for it."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import tensorflow as tf

from compat_hvd.common.process_sets import ProcessSet, global_process_set
from compat_hvd.tensorflow.aggregation import Accumulators, averaged, checked_passes, densified
from compat_hvd.tensorflow.gradient_aggregation import ReduceFunction, reduced_apart
from compat_hvd.tensorflow.gradients import Gradient, LocalVariables


class LocalGradientAggregationHelperEager:
    """Sums gradients over several backward passes in eager mode, or within a ``tf.function``.

    Args:
        backward_passes_per_step: how many passes are summed.
        allreduce_func: called with the sums and their variables, gives the reduced ones.
        sparse_as_dense: turn IndexedSlices into dense gradients, which alone can be summed.
        average_aggregated_gradients: divide by ``backward_passes_per_step`` after the reduction.
        process_set: by whose size gradients of local variables are divided.
        scale_local_gradients: whether they are divided.

    Raises:
        ValueError: ``backward_passes_per_step`` is not positive.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: ReduceFunction,
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        self._passes = checked_passes(backward_passes_per_step)
        self._allreduce = allreduce_func
        self._sparse_as_dense = sparse_as_dense
        self._average = average_aggregated_gradients
        self._local = LocalVariables(process_set, scale_local_gradients)
        self._accumulators: Accumulators | None = None
        self._present: list[int] = []

    def register_local_var(self, var: Any) -> None:
        """Leaves the gradient of a variable unreduced."""
        self._local.register(var)

    def compute_gradients(self, grads: Sequence[Gradient], vars: Sequence[Any]) -> list[Gradient]:
        """Gives the reduced sums in the last of the passes and the sums so far in others; None stays None.

        Raises:
            ValueError: there are IndexedSlices and ``sparse_as_dense`` is false; or other gradients than in the first
                call are None.
        """
        results = densified(grads, self._sparse_as_dense)
        present = [i for i, gradient in enumerate(results) if gradient is not None]
        if not present:
            return results
        gradients, variables = [results[i] for i in present], [vars[i] for i in present]
        if self._accumulators is None:
            self._accumulators, self._present = Accumulators(gradients, self._passes), present
        if present != self._present:
            raise ValueError(
                f"in the first pass gradients {self._present} of the list were not None, now {present}; use one "
                "LocalGradientAggregationHelperEager for each list of variables"
            )

        def finish(sums: list[tf.Tensor]) -> list[tf.Tensor]:
            reduced = reduced_apart(self._local, self._allreduce, sums, variables)
            return averaged(reduced, self._passes) if self._average else reduced

        aggregated, _ = self._accumulators.add(gradients, finish, otherwise=lambda sums: sums)
        for i, gradient in zip(present, aggregated):
            results[i] = gradient
        return results

    def apply_gradients(
        self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any
    ) -> tf.Tensor:
        """Calls ``apply_grads_closure`` if the pass counted last was the last one of a step.

        Args:
            apply_grads_closure: applies the gradients.
            optimizer: where it has ``iterations``, they count every pass.
            *args, **kwargs: those of the optimizer's ``apply_gradients``; not looked at.

        Returns:
            A bool scalar, whether the gradients were applied.
        """

        def update() -> tf.Tensor:
            apply_grads_closure()
            return tf.constant(True)

        def count() -> tf.Tensor:
            iterations = getattr(optimizer, "iterations", None)
            if iterations is not None:
                iterations.assign_add(1)
            return tf.constant(False)

        if self._accumulators is None:
            return update()
        return tf.cond(self._accumulators.between_steps(), update, count)
