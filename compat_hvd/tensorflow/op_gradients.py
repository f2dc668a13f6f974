"""Gradients of the collectives, registered with TensorFlow.

They follow Horovod's conventions: the gradient of a sum is the sum of the ranks' gradients, that of an average, of an
allgather and of a broadcast their average. A reducescatter followed by an allgather has the gradient of an allreduce.
Min, Max, Product and Adasum have the gradient of what they compute.
"""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

from compat_hvd.common import basics, process_sets
from compat_hvd.tensorflow import ops
from compat_hvd.tensorflow.adasum_gradient import adasum_gradient
from compat_hvd.tensorflow.alltoall import alltoall_op
from compat_hvd.tensorflow.names import CollectiveName, collective_name, normalized


class _Forward:
    """What the gradient of a collective needs to know of it."""

    def __init__(self, op: Any) -> None:
        self._op = op
        self._process_set_id: int = op.get_attr("process_set_id")
        self._ignore_name_scope: bool = op.get_attr("ignore_name_scope")

    def _name(self, op_type: str, role: str) -> CollectiveName:
        """Names a collective of the backward pass after the forward one.

        The names of gradient tensors depend on static shapes, which may differ between ranks.
        """
        agreed = tf.compat.as_str(self._op.get_attr("tensor_name"))
        if agreed:
            return collective_name(op_type, None, f"{normalized(agreed)}_{role}", self._ignore_name_scope)
        forward = getattr(self._op.outputs[0], "op", None)
        if forward is None:
            return CollectiveName(None, "")
        return CollectiveName(f"{op_type}_{normalized(forward.name)}_{role}", "")

    def size(self) -> int:
        """The number of members of the process set."""
        return int(process_sets.with_id(self._process_set_id).size())

    def allreduce(
        self, tensor: Any, op: int, role: str, prescale_factor: float = 1.0, postscale_factor: float = 1.0
    ) -> tf.Tensor:
        """Reduces within the process set of the forward op."""
        tensor = tf.convert_to_tensor(tensor)
        factors = prescale_factor, postscale_factor
        name = self._name("HorovodAllreduce", role)
        return ops.reduce_op(tensor, name, op, *factors, self._ignore_name_scope, self._process_set_id)

    def grouped_allreduce(
        self, tensors: list[tf.Tensor], op: int, role: str, prescale_factor: float, postscale_factor: float
    ) -> list[tf.Tensor]:
        """Reduces several tensors within the process set of the forward op."""
        factors = prescale_factor, postscale_factor
        name = self._name("HorovodGroupedAllreduce", role)
        scope_and_set = self._ignore_name_scope, self._process_set_id
        return list(ops.reduce_op(tensors, name, op, *factors, *scope_and_set, "grouped_allreduce"))

    def allgather(self, tensor: Any, role: str) -> tf.Tensor:
        """Gathers within the process set of the forward op."""
        tensor = tf.convert_to_tensor(tensor)
        name = self._name("HorovodAllgather", role)
        return ops.gather_op(tensor, name, self._ignore_name_scope, self._process_set_id)

    def alltoall(self, tensor: Any, splits: tf.Tensor, role: str) -> tf.Tensor:
        """Sends rows within the process set of the forward op."""
        tensor = tf.convert_to_tensor(tensor)
        name = self._name("HorovodAlltoall", role)
        return alltoall_op(tensor, splits, name, self._ignore_name_scope, self._process_set_id)[0]


class _Reduction:
    """The arithmetic of a forward reduction, grouped or not."""

    def __init__(self, op: Any) -> None:
        self.op: int = op.get_attr("reduce_op")
        self.prescale = _factor(op, "prescale")
        self.postscale = _factor(op, "postscale")

    def spread(self, tensor: tf.Tensor, total: tf.Tensor, forward: _Forward) -> tf.Tensor:
        """The gradient of this rank's ``tensor``, given the sum of the ranks' gradients of the reduced tensor."""
        factor = tf.cast(self.prescale * self.postscale, total.dtype)
        if self.op == ops.Sum:
            return total * factor
        if self.op == ops.Average:
            return total * factor / forward.size()
        if self.op in (ops.Min, ops.Max):
            return self._share_of_extremum(tensor, total, forward) * factor
        if self.op == ops.Product:
            return total * self._other_factors(tensor, forward) * factor
        if self.op == ops.Adasum:
            return self._pulled_back(tensor, total, forward) * factor
        raise LookupError(f"a reduction with op={ops.REDUCE_OP_NAMES[self.op]} has no gradient")

    def _share_of_extremum(self, tensor: tf.Tensor, total: tf.Tensor, forward: _Forward) -> tf.Tensor:
        """Gives the gradient to the ranks that held the extremum, in equal parts."""
        # A negative factor turns the smallest into the largest. Comparing before scaling avoids its rounding.
        smallest = (self.op == ops.Min) == (self.prescale >= 0)
        extremum = forward.allreduce(tensor, ops.Min if smallest else ops.Max, "extremum")
        held = tf.equal(tensor, extremum)
        holders = forward.allreduce(tf.cast(held, total.dtype), ops.Sum, "holders")
        return tf.where(held, total / holders, tf.zeros_like(total))

    def _pulled_back(self, tensor: tf.Tensor, total: tf.Tensor, forward: _Forward) -> tf.Tensor:
        """The gradient through Adasum; its derivative is the same for vectors multiplied with the prescale factor."""
        gathered = tf.cast(forward.allgather(tf.expand_dims(tensor, 0), "vectors"), tf.float64)
        vectors = [gathered[i] for i in range(forward.size())]
        gradient = adasum_gradient(vectors, basics.rank(), tf.cast(total, tf.float64))
        return tf.cast(gradient, total.dtype)

    def _other_factors(self, tensor: tf.Tensor, forward: _Forward) -> tf.Tensor:
        """The product of the other ranks' factors; right also where some of them are zero."""
        factors = forward.allgather(tf.expand_dims(tensor, 0), "factors") * tf.cast(self.prescale, tensor.dtype)
        mine = tf.reshape(_own_row(forward), tf.concat([[-1], tf.ones(tf.rank(tensor), tf.int32)], 0))
        return tf.reduce_prod(tf.where(mine, tf.ones_like(factors), factors), axis=0)


def _factor(op: Any, which: str) -> float:
    """A scale factor of a reduction, exact where its bits were given."""
    bits: int = op.get_attr(f"{which}_bits")
    return ops.factor_from_bits(bits) if bits else float(op.get_attr(f"{which}_factor"))


def _own_row(forward: _Forward) -> tf.Tensor:
    """A vector with one bool per member of the process set, in its order: is it this rank?"""
    rank = basics.rank()
    return tf.equal(forward.allgather(tf.constant([rank]), "ranks"), rank)


def _each(op: Any, grads: Any, gradient: Callable[[_Forward, tf.Tensor, tf.Tensor], tf.Tensor]) -> list[tf.Tensor]:
    """Calls ``gradient(forward, input, grad)`` for each tensor of a grouped op."""
    forward = _Forward(op)
    return [gradient(forward, tensor, grad) for tensor, grad in zip(op.inputs, _complete(op, grads))]


def _complete(op: Any, grads: Any) -> list[tf.Tensor]:
    """The gradients as tensors of the outputs' dtype: for an unused output TensorFlow gives None or float32 zeros."""
    pairs = zip(op.outputs, grads)
    return [tf.zeros_like(output) if grad is None else tf.cast(grad, output.dtype) for output, grad in pairs]


@tf.RegisterGradient("HorovodAllreduce")
def _allreduce_grad(op: Any, grad: tf.Tensor) -> tf.Tensor:
    """The same allreduce for Sum and Average; else the gradient of what was computed."""
    return _reduced_grad(_Reduction(op), _Forward(op), op.inputs[0], grad)


def _reduced_grad(how: _Reduction, forward: _Forward, tensor: tf.Tensor, grad: tf.Tensor) -> tf.Tensor:
    if how.op in (ops.Sum, ops.Average):
        return forward.allreduce(grad, how.op, "grad", how.prescale, how.postscale)
    return how.spread(tensor, forward.allreduce(grad, ops.Sum, "grad"), forward)


@tf.RegisterGradient("HorovodGroupedAllreduce")
@tf.RegisterGradient("CompatHvdGroupedAllreduce")
def _grouped_allreduce_grad(op: Any, *grads: tf.Tensor) -> list[tf.Tensor]:
    """As of an allreduce of each tensor."""
    how = _Reduction(op)
    if how.op in (ops.Sum, ops.Average):
        return _Forward(op).grouped_allreduce(_complete(op, grads), how.op, "grad", how.prescale, how.postscale)
    return _each(op, grads, lambda forward, tensor, grad: _reduced_grad(how, forward, tensor, grad))


@tf.RegisterGradient("HorovodReducescatter")
def _reducescatter_grad(op: Any, grad: tf.Tensor) -> tf.Tensor:
    """The gathered gradient times the number of ranks for Sum, times one for Average."""
    return _scattered_grad(_Reduction(op), _Forward(op), op.inputs[0], grad)


def _scattered_grad(how: _Reduction, forward: _Forward, tensor: tf.Tensor, grad: tf.Tensor) -> tf.Tensor:
    total = forward.allgather(grad, "grad") * forward.size()
    return tf.ensure_shape(how.spread(tensor, total, forward), tensor.shape)


@tf.RegisterGradient("HorovodGroupedReducescatter")
@tf.RegisterGradient("CompatHvdGroupedReducescatter")
def _grouped_reducescatter_grad(op: Any, *grads: tf.Tensor) -> list[tf.Tensor]:
    """As of a reducescatter of each tensor."""
    how = _Reduction(op)
    return _each(op, grads, lambda forward, tensor, grad: _scattered_grad(how, forward, tensor, grad))


@tf.RegisterGradient("HorovodAllgather")
def _allgather_grad(op: Any, grad: tf.Tensor) -> tf.Tensor:
    """Averages the gradient and takes the rows that this rank contributed."""
    return _gathered_grad(_Forward(op), op.inputs[0], grad)


def _gathered_grad(forward: _Forward, tensor: tf.Tensor, grad: tf.Tensor) -> tf.Tensor:
    averaged = forward.allreduce(grad, ops.Average, "grad")
    rows = tf.shape(tensor, out_type=tf.int64)[0]
    counts = forward.allgather(tf.expand_dims(rows, 0), "rows")
    first = tf.boolean_mask(tf.cumsum(counts, exclusive=True), _own_row(forward))[0]
    return tf.ensure_shape(averaged[first : first + rows], tensor.shape)


@tf.RegisterGradient("HorovodGroupedAllgather")
@tf.RegisterGradient("CompatHvdGroupedAllgather")
def _grouped_allgather_grad(op: Any, *grads: tf.Tensor) -> list[tf.Tensor]:
    """As of an allgather of each tensor."""
    return _each(op, grads, _gathered_grad)


@tf.RegisterGradient("HorovodAlltoall")
def _alltoall_grad(op: Any, grad: tf.Tensor, _: Any) -> tuple[tf.Tensor, None]:
    """Sends the gradient's rows back to where the rows came from."""
    sent_back = _Forward(op).alltoall(grad, op.outputs[1], "grad")
    return tf.ensure_shape(sent_back, op.inputs[0].shape), None


@tf.RegisterGradient("HorovodBroadcast")
def _broadcast_grad(op: Any, grad: tf.Tensor) -> tf.Tensor:
    """Gives the root the averaged gradient and the other ranks zeros."""
    averaged = _Forward(op).allreduce(grad, ops.Average, "grad")
    if basics.rank() == op.get_attr("root_rank"):
        return averaged
    # The average is kept in the graph, so that this rank takes part in it, but not in the value: 0 * inf is not 0.
    with tf.control_dependencies([averaged]):
        return tf.zeros_like(grad)


for _op_type in (
    "HorovodBarrier",
    "HorovodJoin",
    "HorovodSize",
    "HorovodLocalSize",
    "HorovodRank",
    "HorovodLocalRank",
    "HorovodProcessSetIncluded",
):
    tf.no_gradient(_op_type)
