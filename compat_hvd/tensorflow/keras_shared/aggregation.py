"""Local gradient aggregation for Keras optimizers: communicate on every Nth backward pass only."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import tensorflow as tf

from compat_hvd.tensorflow.keras_shared.sessions import have_initialised
from compat_hvd.tensorflow.variables import key, native

Exchange = Callable[[Sequence[Any], Sequence[Any]], "list[Any]"]


class LocalAggregation:
    """Sums up the gradients of N passes and reduces the sums on the Nth.

    The collectives stand in a branch that depends on ``counter``. That is safe only because the counter is the same on
    all ranks: it starts at zero and changes with the calls, never with data.

    Args:
        passes: N.
        average: divide the reduced sums by N.
        sparse_as_dense: turn IndexedSlices into dense gradients, without which they cannot be summed up.
        owner: the class of the optimizer; its Keras initialises the variables in graph mode.
    """

    def __init__(self, passes: int, average: bool, sparse_as_dense: bool, owner: type) -> None:
        self._owner = owner
        self._passes = passes
        self._average = average
        self._sparse_as_dense = sparse_as_dense
        self._counter: Any = None
        self._sums: dict[Any, Any] = {}

    @property
    def counter(self) -> tf.Variable:
        """An int32 scalar: how many passes have been summed up since the last reduction, 0 to N - 1."""
        if self._counter is None:
            self._counter = self._local_variable([], tf.int32, "aggregation_counter")
        return self._counter

    def add(self, gradients: Sequence[Any], variables: Sequence[Any], exchange: Exchange) -> list[Any]:
        """Adds one pass.

        Returns:
            The reduced sums on the Nth pass, which also empties them; on the others zeros, which nobody may apply. None
            stays None.

        Raises:
            ValueError: there are IndexedSlices, and ``sparse_as_dense`` is False.
        """
        chosen = [i for i, gradient in enumerate(gradients) if gradient is not None]
        dense = [self._dense(gradients[i]) for i in chosen]
        sums = [self._sum(variables[i], gradient) for i, gradient in zip(chosen, dense)]
        counter = self.counter
        added = [total.assign_add(gradient, read_value=False) for total, gradient in zip(sums, dense)]
        with tf.control_dependencies(_operations(added)):
            counted = counter.assign_add(1, read_value=False)
        with tf.control_dependencies(_operations([counted])):
            passed = counter.read_value()

        def reduce() -> list[tf.Tensor]:
            reduced = exchange([total.read_value() for total in sums], [variables[i] for i in chosen])
            if self._average:
                reduced = [gradient / tf.cast(self._passes, gradient.dtype) for gradient in reduced]
            with tf.control_dependencies(reduced):
                # Zeros, not a difference: inf - inf would stay in the sum forever.
                emptied = [total.assign(tf.zeros_like(total), read_value=False) for total in sums]
                restarted = counter.assign(0, read_value=False)
            with tf.control_dependencies(_operations([*emptied, restarted])):
                return [tf.identity(gradient) for gradient in reduced]

        def wait() -> list[tf.Tensor]:
            return [tf.zeros_like(gradient) for gradient in dense]

        results = tf.cond(tf.equal(passed, self._passes), reduce, wait) if chosen else []
        returned: list[Any] = [None] * len(gradients)
        for i, result in zip(chosen, results):
            returned[i] = result
        return returned

    def apply(self, apply: Callable[[], Any], gradients: Sequence[Any], iterations: Any) -> Any:
        """Calls ``apply`` on the Nth pass; on the others only counts the iteration.

        Args:
            apply: applies the gradients.
            gradients: what was made of the results of ``add``; they tell in graphs that the pass has been counted.
            iterations: the variable that counts all passes.

        Returns:
            In graphs the operation.
        """

        def really() -> tf.Tensor:
            with tf.control_dependencies(_operations([apply()])):
                return tf.identity(iterations)

        def count_only() -> tf.Tensor:
            with tf.control_dependencies(_operations([native(iterations).assign_add(1, read_value=False)])):
                return tf.identity(iterations)

        values = [one.values if isinstance(one, tf.IndexedSlices) else one for one in gradients]
        with tf.control_dependencies(_operations(values)):
            last = tf.equal(self.counter.read_value(), 0)
        return tf.group(tf.cond(last, really, count_only))

    def _dense(self, gradient: Any) -> tf.Tensor:
        if isinstance(gradient, tf.IndexedSlices) and not self._sparse_as_dense:
            raise ValueError(
                "IndexedSlices are not supported when `backward_passes_per_step` > 1 and `sparse_as_dense` is False."
            )
        return tf.convert_to_tensor(gradient)

    def _sum(self, variable: Any, gradient: tf.Tensor) -> tf.Variable:
        if key(variable) not in self._sums:
            shape = native(variable).shape
            self._sums[key(variable)] = self._local_variable(shape, gradient.dtype, "aggregated_gradient")
        return self._sums[key(variable)]

    def _local_variable(self, shape: Any, dtype: tf.DType, name: str) -> tf.Variable:
        """A variable of zeros that is neither trained, nor saved, nor broadcast."""
        with tf.init_scope():
            variable = tf.compat.v1.Variable(
                tf.zeros(shape, dtype),
                trainable=False,
                name=name,
                collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
                use_resource=True,
            )
            have_initialised(variable, self._owner)
        return variable


def _operations(values: Sequence[Any]) -> list[Any]:
    """What of ``values`` control edges can start from; eagerly nothing needs any."""
    return [] if tf.executing_eagerly() else [v for v in values if isinstance(v, (tf.Operation, tf.Tensor))]
