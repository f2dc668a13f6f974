"""DistributedOptimizer: an optimizer whose gradients are reduced over the ranks before they are applied."""

from __future__ import annotations

import inspect
from typing import Any, Sequence

import tensorflow as tf

from compat_hvd.common.process_sets import ProcessSet, global_process_set
from compat_hvd.tensorflow.aggregation import LocalAggregation, apply_in_last_pass, densified
from compat_hvd.tensorflow.compression import Compression, Compressor
from compat_hvd.tensorflow.gradients import GradientReduction, Groups, checked_groups, predivided
from compat_hvd.tensorflow.keras_shared import optimizer as keras_optimizer
from compat_hvd.tensorflow.keras_shared.wrapping import is_keras_optimizer
from compat_hvd.tensorflow.names import GradientScope
from compat_hvd.tensorflow.ops import Adasum, Average
from compat_hvd.tensorflow.reduction import Reduction

_LegacyOptimizer = tf.compat.v1.train.Optimizer


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):
    """A ``tf.compat.v1.train.Optimizer`` that wraps another and reduces the gradients it computes.

    Everything else, attributes included, is that of the wrapped optimizer.
    """

    def __init__(
        self,
        optimizer: Any,
        name: str,
        use_locking: bool,
        reduction: GradientReduction,
        aggregation: LocalAggregation | None = None,
    ) -> None:
        self._optimizer = optimizer
        super().__init__(name=name, use_locking=use_locking)
        self._reduction = reduction
        self._aggregation = aggregation
        self._scope = GradientScope(name)

    def __getattr__(self, name: str) -> Any:
        if name == "_optimizer":
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def register_local_var(self, var: Any) -> None:
        """Leaves the gradient of a variable unreduced; it is divided by size() unless scale_local_gradients=False."""
        self._reduction.register_local(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Computes gradients with the wrapped optimizer, which gets all arguments, and reduces them.

        Returns:
            Pairs (gradient, variable) in the wrapped optimizer's order; None gradients stay None. With
            ``backward_passes_per_step`` the gradients are reduced sums in every so many runs that compute any of them,
            and in the others those of that run on this rank alone.
        """
        if self._aggregation:
            _check_session_graph()
        pairs = list(self._optimizer.compute_gradients(*args, **kwargs))
        gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
        with tf.name_scope(f"{self._name}_Allreduce"):
            if self._aggregation:
                gradients = densified(gradients, self._reduction.sparse_as_dense)
                reduced = self._aggregation.aggregate(gradients, variables, self._reduce)
            else:
                reduced = self._reduce(gradients, variables)
        return list(zip(reduced, variables))

    def _reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return self._reduction.apply(gradients, variables, self._scope.next_prefix())

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the wrapped optimizer's ``apply_gradients`` with all arguments.

        With ``backward_passes_per_step`` the op does so in those runs in which the gradients were reduced; in the
        others it only moves ``global_step`` on, if that is given.
        """
        pairs = list(grads_and_vars)
        gradients = [g for g, _ in pairs]
        last = self._aggregation.last_pass_of(gradients) if self._aggregation else None
        if last is None:
            return self._optimizer.apply_gradients(pairs, *args, **kwargs)
        given = inspect.signature(self._optimizer.apply_gradients).bind(pairs, *args, **kwargs)
        name = given.arguments.pop("name", None) or f"{self._name}_Step"
        global_step = given.arguments.get("global_step", kwargs.get("global_step"))
        return apply_in_last_pass(
            last,
            pairs,
            lambda: self._optimizer.apply_gradients(*given.args, **given.kwargs),
            [] if global_step is None else [global_step],
            name,
            cond_name=f"{self._name}_Apply",
        )

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the wrapped optimizer's ``get_slot``."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the wrapped optimizer's ``get_slot_names``."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the wrapped optimizer's ``variables``."""
        return self._optimizer.variables(*args, **kwargs)

    # tf.train.Checkpoint sees the wrapped optimizer in place of this one, so that what one writes the other reads.

    def _trackable_children(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer._trackable_children(*args, **kwargs)

    def _lookup_dependency(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer._lookup_dependency(*args, **kwargs)

    def _create_or_restore_slot_variable(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer._create_or_restore_slot_variable(*args, **kwargs)

    @property
    def _deferred_dependencies(self) -> Any:
        self._optimizer._maybe_initialize_trackable()
        return self._optimizer._deferred_dependencies


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps an optimizer so that its gradients are reduced over the ranks.

    Args:
        optimizer: the optimizer to wrap, of ``tf.compat.v1.train`` or of Keras; it does the applying and holds the
            slots. For one of Keras this is ``compat_hvd.tensorflow.keras.DistributedOptimizer``, which says what the
            arguments mean there.
        name: of the wrapper, and part of the names by which ranks match gradients; by default "Distributed" and the
            class name of the optimizer.
        use_locking: as for any TF1 optimizer.
        device_dense, device_sparse: the device to place reductions on, for dense gradients and IndexedSlices.
        compression: how dense gradients are sent: ``Compression.none``, ``fp16`` or ``bf16``.
        sparse_as_dense: turn IndexedSlices into dense gradients before the reduction.
        backward_passes_per_step: in graphs that a session runs, sum the gradients of so many runs on each rank before
            they are reduced and applied. The sums are kept in local variables.
        op: how gradients are reduced: Average, Sum, Min, Max or Product. With Adasum each rank applies its own
            gradients, and what that changed is reduced, every ``backward_passes_per_step`` steps.
        gradient_predivide_factor: with Average, divide by it before the sum and multiply with it after.
        average_aggregated_gradients: divide by backward_passes_per_step after the reduction.
        num_groups: older form of ``groups``.
        groups: which gradients are submitted together: a number of groups of consecutive ones, or lists of variables.
            This changes no result.
        process_set: the ranks taking part; on other ranks gradients stay as they are.
        scale_local_gradients: divide gradients of variables given to ``register_local_var`` by the number of ranks.

    Returns:
        A ``tf.compat.v1.train.Optimizer``, or an optimizer of a class derived from that of the Keras optimizer.

    Raises:
        ValueError: arguments that do not go together; backward_passes_per_step > 1 in eager mode.
        TypeError: ``optimizer`` is no optimizer.
        NotImplementedError: Adasum within a process set, or with a number of ranks that is not a power of two.
    """
    prescale, postscale = predivided(op, gradient_predivide_factor)
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("Adasum does not support average_aggregated_gradients == True")
    groups = checked_groups(num_groups, groups)
    if is_keras_optimizer(optimizer):
        return keras_optimizer.DistributedOptimizer(
            optimizer,
            name=name,
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            op=op,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
    how = Reduction(op, prescale, postscale, compression, device_dense, device_sparse, process_set)
    _check_optimizer(optimizer)
    reduction = GradientReduction(how, sparse_as_dense, groups, scale_local_gradients)
    aggregation = LocalAggregation(backward_passes_per_step, average_aggregated_gradients)
    if backward_passes_per_step > 1:
        _check_session_graph()
    name = name or f"Distributed{type(optimizer).__name__}"
    if op == Adasum:
        # Imported here because it builds on this module.
        from compat_hvd.tensorflow.adasum_optimizer import _DistributedAdasumOptimizer

        return _DistributedAdasumOptimizer(optimizer, name, use_locking, reduction, backward_passes_per_step)
    aggregates = aggregation if backward_passes_per_step > 1 else None
    return _DistributedOptimizer(optimizer, name, use_locking, reduction, aggregates)


def _check_session_graph() -> None:
    """Gradients are aggregated in variables, of which every trace of a ``tf.function`` would make others."""
    with tf.init_scope():
        eager = tf.executing_eagerly()
    if eager:
        raise ValueError(
            "backward_passes_per_step > 1 of an optimizer of tf.compat.v1.train works in graphs that a session runs, "
            "not in eager mode and not in a tf.function"
        )


def _check_optimizer(optimizer: Any) -> None:
    if isinstance(optimizer, _DistributedOptimizer):
        raise ValueError("this optimizer is a DistributedOptimizer already; its gradients would be reduced twice")
    if isinstance(optimizer, _LegacyOptimizer):
        return
    raise TypeError(
        f"hvd.DistributedOptimizer takes an optimizer of tf.compat.v1.train or of Keras, not {type(optimizer).__name__}"
    )
