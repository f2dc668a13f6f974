"""Reducing lists of gradients: the one place that decides what happens to None, dense and sparse ones."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Sequence, Union

import tensorflow as tf

from compat_hvd.common.process_sets import ProcessSet
from compat_hvd.tensorflow.names import variable_names
from compat_hvd.tensorflow.ops import Average
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
    how: Reduction,
    sparse_as_dense: bool,
    prefix: str,
    groups: Groups = None,
) -> list[Gradient]:
    """Reduces gradients over the ranks.

    Args:
        gradients: dense ones keep their kind; IndexedSlices keep theirs unless ``sparse_as_dense``; None stays None
            and is not sent.
        variables: what each gradient belongs to. Ranks match gradients by ``prefix`` and the variable's name.
        how: the reduction.
        sparse_as_dense: turn IndexedSlices into dense tensors before the reduction.
        prefix: distinguishes this list from others that may be reduced at the same time.
        groups: which gradients are submitted together; this changes no result.
    """
    if not exchanges(how.process_set):
        return list(gradients)
    reduced = [_dense(gradient) if sparse_as_dense else gradient for gradient in gradients]
    names = variable_names(variables)
    for members in _grouped(reduced, variables, groups):
        agreed = f"{prefix}/{names[members[0]]}"
        if len(members) == 1:
            reduced[members[0]] = how.apply(reduced[members[0]], agreed=agreed)
            continue
        for i, one in zip(members, how.apply_to_group([reduced[i] for i in members], agreed=agreed)):
            reduced[i] = one
    return reduced


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
class GradientReduction:
    """What becomes of the gradients of one optimizer or tape: all are reduced but those of local variables."""

    how: Reduction
    sparse_as_dense: bool = False
    groups: Groups = None
    scale_local: bool = True
    _local: dict[int, Any] = field(default_factory=dict)

    def register_local(self, variable: Any) -> None:
        """Leaves the gradient of a variable unreduced; with ``scale_local`` it is divided by the number of ranks."""
        self._local[id(variable)] = variable

    def is_local(self, variable: Any) -> bool:
        """Whether ``register_local`` has been called for the variable."""
        return id(variable) in self._local

    def apply(self, gradients: Sequence[Gradient], variables: Sequence[Any], prefix: str) -> list[Gradient]:
        """Reduces the gradients or scales them, in their order; ``prefix`` as in ``reduce_gradients``."""
        shared = [(g, v) for g, v in zip(gradients, variables) if not self.is_local(v)]
        shared_gradients, shared_variables = [g for g, _ in shared], [v for _, v in shared]
        reduced = iter(
            reduce_gradients(shared_gradients, shared_variables, self.how, self.sparse_as_dense, prefix, self.groups)
        )
        return [self._scaled(g) if self.is_local(v) else next(reduced) for g, v in zip(gradients, variables)]

    def _scaled(self, gradient: Gradient) -> Gradient:
        if self.scale_local and exchanges(self.how.process_set):
            return scale_locally(gradient, self.how.process_set)
        return gradient
