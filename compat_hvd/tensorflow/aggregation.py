"""Local aggregation: the gradients of several backward passes are summed, and the ranks reduce the sums once."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator, Sequence
from weakref import WeakKeyDictionary

import tensorflow as tf

from compat_hvd.tensorflow.gradients import Gradient

CPU = "/device:CPU:0"


class Accumulators:
    """A counter of passes and a sum for each of some gradients, in variables that are no part of the model.

    In a graph they are local variables: neither saved nor broadcast. They need no initializer.

    The counter starts at 0 on every rank and moves on by one in each run that computes the gradients, whatever the
    data. Ranks that make the same runs hence agree on it, and this alone makes it safe that collectives stand in a
    conditional: nothing but the counter may decide it. A rank that makes a run less than the others is late for the
    next reduction, but never enters another one than they do.
    """

    def __init__(self, gradients: Sequence[tf.Tensor], passes: int) -> None:
        self._passes = passes
        with tf.init_scope():
            self._counter = local_variable("aggregation_counter", tf.int64, CPU)
            # The first pass assigns, so that no NaN is kept.
            self._sums = [
                local_variable("aggregated", g.dtype, g.device, ["aggregating_collection"]) for g in gradients
            ]

    def add(
        self,
        gradients: Sequence[tf.Tensor],
        finish: Callable[[list[tf.Tensor]], list[tf.Tensor]],
        otherwise: Callable[[list[tf.Tensor]], list[tf.Tensor]],
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Adds the gradients of one pass.

        Args:
            gradients: as many as were given to the constructor, of the same dtypes.
            finish: called with the sums, gives the results in the last pass.
            otherwise: the same for the other passes.

        Returns:
            The results, with the shapes of the gradients; and a bool scalar, whether this is the last pass. In a graph,
            a run that fetches any of the results is one pass of all.
        """
        count = read_count(self._counter)
        with tf.device(CPU):
            first, last = tf.equal(count, 0), tf.equal(count, self._passes - 1)
        sums = tf.cond(first, lambda: list(gradients), lambda: self._added_to(gradients), name="sum")
        results = tf.cond(last, lambda: finish(sums), lambda: self._kept(sums, otherwise), name="finish")
        # Only after the results: when a reduction fails, it does so on every rank, and all count the pass as not made.
        with tf.control_dependencies(results), tf.device(CPU):
            counted = self._counter.assign((count + 1) % self._passes, read_value=False)
        with tf.control_dependencies([counted]):
            results = [tf.identity(result) for result in results]
        for result, gradient in zip(results, gradients):
            result.set_shape(gradient.shape)
        return results, last

    def _added_to(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [total.read_value() + gradient for total, gradient in zip(self._sums, gradients)]

    def _kept(self, sums: list[tf.Tensor], otherwise: Callable[[list[tf.Tensor]], list[tf.Tensor]]) -> list[tf.Tensor]:
        kept = [variable.assign(total, read_value=False) for variable, total in zip(self._sums, sums)]
        with tf.control_dependencies(kept):
            return [tf.identity(result) for result in otherwise(sums)]

    def between_steps(self) -> tf.Tensor:
        """A bool scalar: whether the pass counted last was the last one of a step."""
        return tf.equal(read_count(self._counter), 0)


def local_variable(name: str, dtype: tf.DType, device: str, collections: Sequence[str] = ()) -> Any:
    """Makes a local variable for values of any shape, to be written before they are read; until then it is tiny."""
    with tf.device(device):
        return tf.compat.v1.Variable(
            tf.zeros([], dtype),
            trainable=False,
            collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES, *collections],
            name=name,
            use_resource=True,
            shape=tf.TensorShape(None),
        )


def read_count(counter: Any) -> tf.Tensor:
    """The value of an int64 local variable that counts: 0 as long as it has not been written or initialised."""
    with tf.device(CPU):
        count = tf.cond(counter.is_initialized(), counter.read_value, lambda: tf.zeros([], tf.int64), name="count")
        count.set_shape([])
        return count


def densified(gradients: Sequence[Gradient], sparse_as_dense: bool) -> list[Gradient]:
    """Turns IndexedSlices into dense tensors.

    Raises:
        ValueError: there are IndexedSlices and ``sparse_as_dense`` is false.
    """
    if not sparse_as_dense and any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
        raise ValueError(
            "IndexedSlices cannot be aggregated over several backward passes (backward_passes_per_step > 1); "
            "give sparse_as_dense=True"
        )
    return [gradient if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]


def checked_passes(passes: int) -> int:
    """Returns a number of passes.

    Raises:
        ValueError: it is not positive.
    """
    if passes <= 0:
        raise ValueError(f"backward_passes_per_step must be > 0, not {passes}")
    return passes


def averaged(sums: Sequence[tf.Tensor], passes: int) -> list[tf.Tensor]:
    """The sums divided by the number of passes."""
    return [total / tf.cast(passes, total.dtype) for total in sums]


def finite(gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The gradients with zeros in place of infinities and NaN."""
    return [tf.where(tf.math.is_finite(gradient), gradient, tf.zeros_like(gradient)) for gradient in gradients]


class LocalAggregation:
    """Aggregates in session graphs, for an optimizer; each ``aggregate`` call has accumulators of its own.

    Args:
        passes: how many backward passes are summed.
        average: divide the reduced sums by that number.

    Raises:
        ValueError: ``passes`` is not positive.
    """

    def __init__(self, passes: int, average: bool) -> None:
        self._passes = checked_passes(passes)
        self._average = average
        # By graph: of the op of each result the name of the tensor that tells the last pass. Names instead of ops,
        # because an op keeps its graph alive.
        self._last_by_result: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()

    def aggregate(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Any],
        reduce: Callable[[list[tf.Tensor], list[Any]], list[tf.Tensor]],
    ) -> list[Gradient]:
        """Sums dense gradients and, in the last of the passes, gives what ``reduce`` makes of the sums.

        In the other passes the results are those of this pass alone, with zeros in place of infinities and NaN: what a
        rank decides on them (a loss scale, for example) must not part it from the ranks that saw finite ones.

        Args:
            gradients: None stays None.
            variables: what the gradients belong to.
            reduce: called once, with those gradients and variables that are not None.
        """
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        results = list(gradients)
        if not present:
            return results
        dense, owners = [gradients[i] for i in present], [variables[i] for i in present]

        def finish(sums: list[tf.Tensor]) -> list[tf.Tensor]:
            reduced = reduce(sums, owners)
            return averaged(reduced, self._passes) if self._average else reduced

        aggregated, last = Accumulators(dense, self._passes).add(dense, finish, lambda _: finite(dense))
        known = self._last_by_result.setdefault(last.graph, {})
        for i, result in zip(present, aggregated):
            known[result.op.name] = last.name
            results[i] = result
        return results

    def last_pass_of(self, gradients: Sequence[Gradient]) -> tf.Tensor | None:
        """A bool scalar: whether what these gradients were made of has been reduced in this pass.

        Args:
            gradients: results of ``aggregate``, or computed from them (clipped, for example), or None.

        Returns:
            None if there are no such results among what they were computed from.
        """
        found: dict[str, tf.Tensor] = {}
        todo = [tensor.op for tensor in tf.nest.flatten(list(gradients), expand_composites=True) if tensor is not None]
        seen = set()
        while todo:
            op = todo.pop()
            if id(op) in seen:
                continue
            seen.add(id(op))
            name = self._last_by_result.get(op.graph, {}).get(op.name)
            if name is None:
                todo.extend(tensor.op for tensor in _inputs(op))
            else:
                found[name] = op.graph.get_tensor_by_name(name)
        return tf.reduce_all(tf.stack(list(found.values()))) if found else None


def _inputs(op: tf.Operation) -> list[tf.Tensor]:
    """The inputs of an op; of what a branch's graph captures, the tensor outside."""
    if op.type != "Placeholder":
        return list(op.inputs)
    return [outside for outside, inside in getattr(op.graph, "captures", ()) if inside is op.outputs[0]]


def apply_in_last_pass(
    last: tf.Tensor,
    pairs: Sequence[tuple[Gradient, Any]],
    apply: Callable[[], Any],
    counters: Sequence[Any],
    name: str,
    cond_name: str,
) -> tf.Operation:
    """Builds an op that applies gradients in the last of the passes and otherwise only counts.

    Args:
        last: a bool scalar, from ``LocalAggregation.last_pass_of`` the gradients.
        pairs: gradients and variables. Nothing happens before all gradients are there.
        apply: builds the update.
        counters: variables that the update moves on by one; the other passes do so, too, so that they count all.
        name: of the op that is returned.
        cond_name: of the conditional.
    """
    scope = tf.compat.v1.get_default_graph().get_name_scope()

    def update() -> tf.Tensor:
        # In the scope of the caller instead of the conditional's: variables that the optimizer makes have the names
        # that they have in checkpoints written without aggregation.
        with tf.compat.v1.get_default_graph().name_scope(f"{scope}/" if scope else ""):
            updated = apply()
        with tf.control_dependencies([tf.group(*tf.nest.flatten(updated))]):
            return tf.constant(True)

    def count() -> tf.Tensor:
        counted = [counter.assign_add(tf.cast(1, counter.dtype.base_dtype)) for counter in counters]
        with tf.control_dependencies(counted):
            return tf.constant(False)

    train_ops = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TRAIN_OP)
    outside = list(train_ops)
    gradients = [gradient for gradient, _ in pairs if gradient is not None]
    with tf.control_dependencies(tf.nest.flatten(gradients, expand_composites=True)):
        decided = tf.identity(last)
    with _branches_for([*counters, *(variable for _, variable in pairs)]):
        step = tf.group(tf.cond(decided, update, count, name=cond_name), name=name)
    # Ops within the conditional cannot be run by themselves.
    train_ops[:] = [*outside, step]
    return step


@contextmanager
def _branches_for(variables: Sequence[Any]) -> Iterator[None]:
    """Has conditionals built with the older control flow if there are reference variables: only it can update them."""
    toggles = tf.compat.v1
    if not toggles.control_flow_v2_enabled() or all(hasattr(v, "handle") for v in variables):
        yield
        return
    toggles.disable_control_flow_v2()
    try:
        yield
    finally:
        toggles.enable_control_flow_v2()
