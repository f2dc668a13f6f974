"""The aggregation of gradients in session graphs, under the names that Horovod has for it."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

import tensorflow as tf

from compat_hvd.common.process_sets import ProcessSet, global_process_set
from compat_hvd.tensorflow.aggregation import LocalAggregation, apply_in_last_pass, densified
from compat_hvd.tensorflow.gradients import Gradient, LocalVariables

ReduceFunction = Callable[[List[Any], List[Any]], Sequence[Any]]  # of gradients and their variables


def reduced_apart(
    local: LocalVariables, reduce: ReduceFunction, gradients: Sequence[Gradient], variables: Sequence[Any]
) -> list[Gradient]:
    """Reduces the gradients of all but local variables."""
    return local.apart(
        gradients, variables, lambda shared: reduce([gradients[i] for i in shared], [variables[i] for i in shared])
    )


class LocalGradientAggregationHelper:
    """Sums gradients over several backward passes in a session graph; what ``DistributedOptimizer`` does inside.

    The counter and the sums are local variables that need no initializer.

    Args:
        backward_passes_per_step: how many passes are summed.
        allreduce_func: called with the sums and their variables, gives the reduced ones; built within a conditional.
        sparse_as_dense: turn IndexedSlices into dense gradients, which alone can be summed.
        average_aggregated_gradients: divide by ``backward_passes_per_step`` after the reduction.
        rank, optimizer_type, name: taken for the sake of scripts that give them.
        process_set: by whose size gradients of local variables are divided.
        scale_local_gradients: whether they are divided.

    Raises:
        ValueError: ``backward_passes_per_step`` is not positive.
    """

    _OPTIMIZER_TYPE_KERAS = "optimizer_type_keras"
    _OPTIMIZER_TYPE_LEGACY = "optimizer_type_legacy"

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: ReduceFunction,
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int,
        optimizer_type: str,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        self._aggregation = LocalAggregation(backward_passes_per_step, average_aggregated_gradients)
        self._allreduce = allreduce_func
        self._sparse_as_dense = sparse_as_dense
        self._local = LocalVariables(process_set, scale_local_gradients)

    def register_local_var(self, var: Any) -> None:
        """Leaves the gradient of a variable unreduced."""
        self._local.register(var)

    def compute_gradients(self, grads: Sequence[Gradient], vars: Sequence[Any]) -> list[Gradient]:
        """Gives the reduced sums in the last of the passes and the gradients of the pass in others; None stays None.

        Raises:
            ValueError: there are IndexedSlices and ``sparse_as_dense`` is false.
        """
        gradients = densified(grads, self._sparse_as_dense)
        return self._aggregation.aggregate(gradients, vars, self._reduce)

    def _reduce(self, gradients: list[tf.Tensor], variables: list[Any]) -> list[tf.Tensor]:
        return reduced_apart(self._local, self._allreduce, gradients, variables)

    def apply_gradients(
        self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any
    ) -> tf.Operation:
        """Builds an op that runs what ``apply_grads_closure`` builds in the last of the passes.

        Args:
            apply_grads_closure: builds the update; called once.
            optimizer: where it has ``iterations``, they count every pass.
            *args, **kwargs: those of the optimizer's ``apply_gradients``: first the pairs of gradients and variables,
                as a list; a ``global_step`` that is given by keyword counts every pass.
        """
        pairs = list(args[0])
        last = self._aggregation.last_pass_of([gradient for gradient, _ in pairs])
        if last is None:
            return tf.group(*tf.nest.flatten(apply_grads_closure()))
        counters = [kwargs.get("global_step"), getattr(optimizer, "iterations", None)]
        return apply_in_last_pass(
            last,
            pairs,
            apply_grads_closure,
            [counter for counter in counters if counter is not None],
            name="aggregated_step",
            cond_name="aggregated_apply",
        )
