"""Gradients of the collectives, registered with TensorFlow.

They follow Horovod's conventions: the gradient of a sum is the sum of the ranks' gradients, that of an average, of an
allgather and of a broadcast their average. Min, Max and Product have the gradient of what they compute.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from compat_hvd.common import basics
from compat_hvd.tensorflow import ops
from compat_hvd.tensorflow.names import collective_name, normalized


class _Forward:
    """What the gradient of a collective needs to know of it."""

    def __init__(self, op: Any) -> None:
        self._op = op
        self._process_set_id: int = op.get_attr("process_set_id")
        self._ignore_name_scope: bool = op.get_attr("ignore_name_scope")

    def _name(self, role: str) -> str | None:
        """The name of a collective in the backward pass: agreed on if the forward one's name was, else None."""
        agreed = tf.compat.as_str(self._op.get_attr("tensor_name"))
        return f"{normalized(agreed)}_{role}" if agreed else None

    def allreduce(
        self, tensor: tf.Tensor, op: int, role: str, prescale_factor: float = 1.0, postscale_factor: float = 1.0
    ) -> tf.Tensor:
        """Reduces within the process set of the forward op."""
        tensor = tf.convert_to_tensor(tensor)
        name = collective_name("HorovodAllreduce", tensor, self._name(role), self._ignore_name_scope)
        factors = prescale_factor, postscale_factor
        return ops.reduce_op(tensor, name, op, *factors, self._ignore_name_scope, self._process_set_id)

    def allgather(self, tensor: tf.Tensor, role: str) -> tf.Tensor:
        """Gathers within the process set of the forward op."""
        name = collective_name("HorovodAllgather", tensor, self._name(role), self._ignore_name_scope)
        return ops.gather_op(tensor, name, self._ignore_name_scope, self._process_set_id)


def _factor(op: Any, which: str) -> float:
    """A scale factor of an allreduce op, exact where its bits were given."""
    bits: int = op.get_attr(f"{which}_bits")
    return ops.factor_from_bits(bits) if bits else float(op.get_attr(f"{which}_factor"))


@tf.RegisterGradient("HorovodAllreduce")
def _allreduce_grad(op: Any, grad: tf.Tensor) -> tf.Tensor:
    """Dispatches on the reduce op."""
    reduce_op: int = op.get_attr("reduce_op")
    prescale, postscale = _factor(op, "prescale"), _factor(op, "postscale")
    forward = _Forward(op)
    if reduce_op in (ops.Sum, ops.Average):
        return forward.allreduce(grad, reduce_op, "grad", prescale_factor=prescale, postscale_factor=postscale)
    if reduce_op in (ops.Min, ops.Max):
        return _extremum_grad(op.inputs[0], grad, forward, reduce_op, prescale, postscale)
    if reduce_op == ops.Product:
        return _product_grad(op.inputs[0], grad, forward, prescale, postscale)
    raise LookupError(f"allreduce with op={ops.REDUCE_OP_NAMES[reduce_op]} has no gradient")


def _extremum_grad(
    tensor: tf.Tensor, grad: tf.Tensor, forward: _Forward, reduce_op: int, prescale: float, postscale: float
) -> tf.Tensor:
    """Sends the summed gradient to the ranks that held the extremum, in equal parts."""
    # A negative factor turns the smallest into the largest. Comparing before scaling avoids its rounding.
    if prescale < 0:
        reduce_op = ops.Max if reduce_op == ops.Min else ops.Min
    extremum = forward.allreduce(tensor, reduce_op, "extremum")
    held = tf.equal(tensor, extremum)
    total, holders = tf.unstack(forward.allreduce(tf.stack([grad, tf.cast(held, grad.dtype)]), ops.Sum, "grad"), num=2)
    return tf.where(held, total / holders, tf.zeros_like(total)) * tf.cast(prescale * postscale, grad.dtype)


def _product_grad(
    tensor: tf.Tensor, grad: tf.Tensor, forward: _Forward, prescale: float, postscale: float
) -> tf.Tensor:
    """Multiplies the summed gradient by the other ranks' factors; right also where some of them are zero."""
    factors = forward.allgather(tf.expand_dims(tensor, 0), "factors") * tf.cast(prescale, tensor.dtype)
    mine = tf.reshape(_own_row(forward), tf.concat([[-1], tf.ones(tf.rank(tensor), tf.int32)], 0))
    others = tf.reduce_prod(tf.where(mine, tf.ones_like(factors), factors), axis=0)
    total = forward.allreduce(grad, ops.Sum, "grad")
    return total * others * tf.cast(prescale * postscale, grad.dtype)


def _own_row(forward: _Forward) -> tf.Tensor:
    """A vector with one bool per member of the process set, in its order: is it this rank?"""
    rank = basics.rank()
    return tf.equal(forward.allgather(tf.constant([rank]), "ranks"), rank)


@tf.RegisterGradient("HorovodAllgather")
def _allgather_grad(op: Any, grad: tf.Tensor) -> tf.Tensor:
    """Averages the gradient and takes the rows that this rank contributed."""
    forward = _Forward(op)
    averaged = forward.allreduce(grad, ops.Average, "grad")
    rows = tf.shape(op.inputs[0], out_type=tf.int64)[0]
    counts = forward.allgather(tf.expand_dims(rows, 0), "rows")
    first = tf.boolean_mask(tf.cumsum(counts, exclusive=True), _own_row(forward))[0]
    own = averaged[first : first + rows]
    return tf.ensure_shape(own, op.inputs[0].shape)


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
    "HorovodSize",
    "HorovodLocalSize",
    "HorovodRank",
    "HorovodLocalRank",
    "HorovodProcessSetIncluded",
):
    tf.no_gradient(_op_type)
