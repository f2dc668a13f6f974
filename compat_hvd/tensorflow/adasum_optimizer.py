"""DistributedOptimizer(op=Adasum): each rank makes its own steps, and what they changed is combined over the ranks."""

from __future__ import annotations

from typing import Any, Callable, Iterable

import tensorflow as tf

from compat_hvd.tensorflow.aggregation import CPU, local_variable, read_count
from compat_hvd.tensorflow.gradients import GradientReduction, exchanges
from compat_hvd.tensorflow.optimizer import _check_session_graph, _DistributedOptimizer


class _DistributedAdasumOptimizer(_DistributedOptimizer):
    """Lets the wrapped optimizer apply this rank's gradients, and reduces the changes of the variables with Adasum.

    Every ``passes`` steps each variable becomes what it was ``passes`` steps ago plus the adaptive sum of the ranks'
    changes since then. The variables must be equal on all ranks at the start (``broadcast_global_variables``); after
    each reduction they are so bit for bit. Slots of the wrapped optimizer stay this rank's own.
    """

    def __init__(self, optimizer: Any, name: str, use_locking: bool, reduction: GradientReduction, passes: int) -> None:
        super().__init__(optimizer, name, use_locking, reduction)
        self._passes = passes

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Computes this rank's gradients with the wrapped optimizer, which gets all arguments; nothing is reduced."""
        return list(self._optimizer.compute_gradients(*args, **kwargs))

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: Any = None, name: str | None = None, **kwargs: Any
    ) -> Any:
        """Applies this rank's gradients with the wrapped optimizer, which gets all arguments, and reduces the changes.

        Gradients may be IndexedSlices: what travels is the change of the whole variable. Variables without a gradient,
        and those given to ``register_local_var``, are not reduced. ``global_step`` counts every step.

        Returns:
            In graph mode the op to run.
        """
        pairs = list(grads_and_vars)
        variables = [v for g, v in pairs if g is not None and not self._reduction.is_local(v)]
        if not exchanges(self._reduction.how.process_set) or not variables:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name, **kwargs)
        if self._passes > 1:
            _check_session_graph()
        train_ops = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TRAIN_OP)
        outside = list(train_ops)
        steps = _Steps(variables, self._passes, self._name)
        with tf.control_dependencies(steps.opening):
            applied = self._optimizer.apply_gradients(pairs, global_step=global_step, **kwargs)
        with tf.name_scope(f"{self._name}_Adasum"), tf.control_dependencies([] if applied is None else [applied]):
            closing = steps.close(lambda changes: self._reduce(changes, variables))
        if tf.executing_eagerly():
            return None
        # Running the wrapped optimizer's op alone would part the ranks.
        step = tf.group(*closing, name=name or f"{self._name}_Step")
        train_ops[:] = [*outside, step]
        return step


class _Steps:
    """The steps between two reductions: the values of variables before the first of them, and a count.

    With several steps both are kept in local variables, which need no initializer: the count is 0 as long as it has not
    been written, and the values are written before they are read. They are neither saved nor broadcast. As values are
    taken before the first step, and not when the graph is built, a broadcast or a restored checkpoint is no change.

    The count moves on by one in each run, whatever the data, and is the same on ranks that make the same runs. Nothing
    else decides the conditional in which the ranks communicate.
    """

    def __init__(self, variables: list[Any], passes: int, name: str) -> None:
        self._variables = variables
        self._passes = passes
        with tf.name_scope(f"{name}_Adasum"):
            # ``opening``: what must have run before the variables change.
            self._before, self.opening = self._open() if passes > 1 else self._open_one()

    def _open_one(self) -> tuple[list[tf.Tensor], list[Any]]:
        before = [_copy(variable) for variable in self._variables]
        return before, before

    def _open(self) -> tuple[list[tf.Tensor], list[Any]]:
        with tf.init_scope():
            self._counter = local_variable("steps", tf.int64, CPU)
            starts = [local_variable("start", v.dtype.base_dtype, v.device) for v in self._variables]
        self._count = read_count(self._counter)
        with tf.device(CPU):
            first = tf.equal(self._count, 0)
        before = tf.cond(
            first,
            lambda: [_copy(variable) for variable in self._variables],
            lambda: [start.read_value() for start in starts],
            name="start",
        )
        for value, variable in zip(before, self._variables):
            value.set_shape(variable.shape)
        return before, [start.assign(value, read_value=False) for start, value in zip(starts, before)]

    def close(self, combine: Callable[[list[tf.Tensor]], list[tf.Tensor]]) -> list[Any]:
        """Reduces the changes in the last of the steps; returns the ops that do so, after the variables have changed.

        Args:
            combine: called with this rank's changes, gives those of all ranks.
        """
        after = [_copy(variable) for variable in self._variables]

        def combined() -> list[tf.Tensor]:
            changes = combine([new - old for new, old in zip(after, self._before)])
            return [old + change for old, change in zip(self._before, changes)]

        if self._passes == 1:
            return self._assign(combined())
        last = tf.equal(self._count, self._passes - 1)
        assigned = self._assign(
            tf.cond(last, combined, lambda: [tf.identity(value) for value in after], name="combine")
        )
        with tf.control_dependencies(assigned):
            return [self._counter.assign((self._count + 1) % self._passes, read_value=False)]

    def _assign(self, values: list[tf.Tensor]) -> list[Any]:
        for value, variable in zip(values, self._variables):
            value.set_shape(variable.shape)
        return [v.assign(value, read_value=False) for v, value in zip(self._variables, values)]


def _copy(variable: Any) -> tf.Tensor:
    """The value as it is now: what a reference variable reads as is its memory, which the next update overwrites."""
    value = variable.read_value()
    return value if hasattr(variable, "handle") else tf.raw_ops.DeepCopy(x=value)
