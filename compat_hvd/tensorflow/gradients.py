"""Reducing lists of gradients: the one place that decides what happens to None, dense and sparse ones."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import lru_cache
from numbers import Integral
from typing import Any, Callable, Sequence, Union

import tensorflow as tf

from compat_hvd.common.process_sets import ProcessSet
from compat_hvd.tensorflow.names import variable_names
from compat_hvd.tensorflow.ops import Average
from compat_hvd.tensorflow.provenance import mark_reduced
from compat_hvd.tensorflow.reduction import Reduction
from compat_hvd.tensorflow.util import split_list

Gradient = Any  # tf.Tensor, tf.IndexedSlices or None
Groups = Union[int, Sequence[Sequence[Any]], None]  # a number of consecutive groups, or lists of variables


def predivided(op: int, gradient_predivide_factor: float) -> tuple[float, float]:
    """The factors before and after the sum that split the division of an average in two.

    Raises:
        ValueError: the factor is not 1 and the op is not Average.
    """
    if gradient_predivide_factor == 1.0:
        return 1.0, 1.0
    if op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    return 1.0 / gradient_predivide_factor, gradient_predivide_factor


def checked_groups(num_groups: int, groups: Any) -> Groups:
    """What the arguments ``groups`` and its older form ``num_groups`` of an optimizer or a tape ask for.

    Raises:
        ValueError: ``groups`` is neither a positive number nor a list of lists.
    """
    if num_groups != 0:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`.", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if groups is None:
        return None
    if isinstance(groups, (list, tuple)) and all(isinstance(group, (list, tuple)) for group in groups):
        return groups
    if isinstance(groups, Integral) and int(groups) > 0:
        return int(groups)
    raise ValueError(f"groups={groups!r} is neither a positive number nor a list of lists of tf.Variable")


def exchanges(process_set: ProcessSet) -> bool:
    """Whether gradients of this rank are exchanged with other ranks at all.

    Raises:
        ValueError: before ``init()``.
    """
    return bool(process_set.size() > 1 and process_set.included())


def reduce_gradients(
    gradients: Sequence[Gradient],
    variables: Sequence[Any],
    names: Sequence[str],
    how: Reduction,
    sparse_as_dense: bool,
    groups: Groups = None,
) -> list[Gradient]:
    """Reduces gradients over the ranks.

    Args:
        gradients: dense ones keep their kind; IndexedSlices keep theirs unless ``sparse_as_dense``; None stays None
            and is not sent.
        variables: what each gradient belongs to.
        names: what the ranks match each gradient by.
        how: the reduction.
        sparse_as_dense: turn IndexedSlices into dense tensors before the reduction.
        groups: which gradients are submitted together; this changes no result.
    """
    if not exchanges(how.process_set):
        return list(gradients)
    reduced = [_dense(gradient) if sparse_as_dense else gradient for gradient in gradients]
    together = _grouped(reduced, variables, groups)
    present = [i for members in together for i in members]
    reduce = _at_once if tf.executing_eagerly() else _in_graph
    for i, one in zip(present, reduce([[(names[i], reduced[i]) for i in members] for members in together], how)):
        reduced[i] = one
    mark_reduced(reduced)
    return reduced


def _in_graph(groups: Sequence[Sequence[tuple[str, Gradient]]], how: Reduction) -> list[Gradient]:
    """Reduces groups of named gradients and returns them in one list; a group is named after its first member."""
    reduced: list[Gradient] = []
    for group in groups:
        gradients, agreed = [gradient for _, gradient in group], group[0][0]
        if len(group) == 1:
            reduced.append(how.apply(gradients[0], agreed=agreed))
        else:
            reduced += how.apply_to_group(gradients, agreed=agreed)
    return reduced


def _at_once(groups: Sequence[Sequence[tuple[str, Gradient]]], how: Reduction) -> list[Gradient]:
    """In eager mode: has all of them under way at once, in whatever order each rank lists its variables."""
    names = tuple(tuple(name for name, _ in group) for group in groups)
    if not names:
        return []
    function = _reducing_function(names, how, how.process_set.process_set_id, how.process_set.size())
    return list(function([gradient for group in groups for _, gradient in group]))


# Bounded, and keyed by names instead of variables: it must keep no model alive. The size of the process set is in the
# key because the graph of an average of IndexedSlices holds it, and init() may be called again.
@lru_cache(maxsize=128)
def _reducing_function(names: tuple[tuple[str, ...], ...], how: Reduction, _id: int, _size: int) -> Any:
    @tf.function(autograph=False, reduce_retracing=True)
    def reduce(gradients: list[Gradient]) -> list[Gradient]:
        rest = iter(gradients)
        return _in_graph([[(name, next(rest)) for name in group] for group in names], how)

    return reduce


def _dense(gradient: Gradient) -> Gradient:
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def _grouped(gradients: Sequence[Gradient], variables: Sequence[Any], groups: Groups) -> list[list[int]]:
    """Positions of the gradients that are not None, in lists of those that are submitted together.

    A grouped op takes dense tensors of one dtype, so groups are divided further where that is needed.
    """
    present = [i for i, gradient in enumerate(gradients) if gradient is not None]
    if isinstance(groups, int):
        chunks = enumerate(split_list(present, max(1, min(groups, len(present)))))
        group_of = {i: number for number, chunk in chunks for i in chunk}
    else:
        listed = {id(variable): number for number, group in enumerate(groups or ()) for variable in group}
        group_of = {i: listed[id(variables[i])] for i in present if id(variables[i]) in listed}
    together: dict[Any, list[int]] = {}
    for i in present:
        alone = i not in group_of or isinstance(gradients[i], tf.IndexedSlices)
        key = ("alone", i) if alone else (group_of[i], gradients[i].dtype.base_dtype)
        together.setdefault(key, []).append(i)
    return list(together.values())


def scale_locally(gradient: Gradient, process_set: ProcessSet) -> Gradient:
    """Divides a gradient that is not reduced by the number of ranks; IndexedSlices stay so, None stays None."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            scale_locally(gradient.values, process_set), gradient.indices, dense_shape=gradient.dense_shape
        )
    return gradient / tf.cast(process_set.size(), gradient.dtype)


@dataclass
class LocalVariables:
    """Variables whose gradients are not reduced but, with ``scale``, divided by the number of ranks."""

    process_set: ProcessSet
    scale: bool = True
    _registered: dict[int, Any] = field(default_factory=dict)

    def register(self, variable: Any) -> None:
        """Adds a variable."""
        self._registered[id(variable)] = variable

    def __contains__(self, variable: Any) -> bool:
        return id(variable) in self._registered

    def apart(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Any],
        reduce: Callable[[list[int]], Sequence[Gradient]],
    ) -> list[Gradient]:
        """Gives these variables' gradients together with what ``reduce`` makes of the others at the given positions."""
        reduced = iter(reduce([i for i, variable in enumerate(variables) if variable not in self]))
        return [self._scaled(g) if v in self else next(reduced) for g, v in zip(gradients, variables)]

    def _scaled(self, gradient: Gradient) -> Gradient:
        if not (self.scale and exchanges(self.process_set)):
            return gradient
        scaled = scale_locally(gradient, self.process_set)
        mark_reduced([scaled])
        return scaled


@dataclass
class GradientReduction:
    """What becomes of the gradients of one optimizer or tape: all are reduced but those of local variables."""

    how: Reduction
    sparse_as_dense: bool = False
    groups: Groups = None
    scale_local: bool = True

    def __post_init__(self) -> None:
        self._local = LocalVariables(self.how.process_set, self.scale_local)

    def register_local(self, variable: Any) -> None:
        """Leaves the gradient of a variable unreduced; with ``scale_local`` it is divided by the number of ranks."""
        self._local.register(variable)

    def is_local(self, variable: Any) -> bool:
        """Whether ``register_local`` has been called for the variable."""
        return variable in self._local

    def apply(self, gradients: Sequence[Gradient], variables: Sequence[Any], prefix: str) -> list[Gradient]:
        """Reduces the gradients or scales them, in their order.

        Ranks match them by ``prefix``, which tells lists apart that may be reduced at the same time, and by the
        names of the variables.
        """
        return self.apply_named(gradients, variables, [f"{prefix}/{name}" for name in variable_names(variables)])

    def apply_named(
        self, gradients: Sequence[Gradient], variables: Sequence[Any], names: Sequence[str]
    ) -> list[Gradient]:
        """As ``apply``, with names chosen by the caller."""

        def reduce(shared: list[int]) -> list[Gradient]:
            return reduce_gradients(
                [gradients[i] for i in shared],
                [variables[i] for i in shared],
                [names[i] for i in shared],
                self.how,
                self.sparse_as_dense,
                self.groups,
            )

        return self._local.apart(gradients, variables, reduce)
