"""The collectives as single TensorFlow ops, and the scalar ops that tell a rank who it is.

Every collective returns what its native op computes; mismatches between ranks, bad roots and foreign process sets are
reported by the op when it runs, on every rank, so that nobody waits for a rank that raised while building its graph.
"""

from __future__ import annotations

import functools
import struct
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from compat_hvd.common.process_sets import ProcessSet, global_process_set
from compat_hvd.tensorflow.library import LIBRARY
from compat_hvd.tensorflow.names import CollectiveName, collective_name
from compat_hvd.tensorflow.util import check_num_rank_power_of_2

Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5
REDUCE_OP_NAMES = ("Average", "Sum", "Adasum", "Min", "Max", "Product")

REDUCIBLE = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.uint8, tf.int8, tf.int32, tf.int64)
FLOATING = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
TRANSFERABLE = (*REDUCIBLE, tf.uint16, tf.int16, tf.bool)


def as_tensor(verb: str, value: Any, allowed: tuple[tf.DType, ...]) -> tf.Tensor:
    """Converts an argument of a collective.

    Raises:
        TypeError: the collective does not take this dtype; the message names it.
    """
    tensor = tf.convert_to_tensor(value)
    dtype = tensor.dtype.base_dtype
    if dtype not in allowed:
        names = ", ".join(one.name for one in allowed)
        raise TypeError(f"hvd.{verb} does not take tensors of dtype {dtype.name}; it takes {names}")
    return tensor


def as_rows(verb: str, value: Any, allowed: tuple[tf.DType, ...]) -> tf.Tensor:
    """Converts an argument of a collective that joins or divides tensors along their first dimension.

    Raises:
        TypeError: as ``as_tensor``.
        ValueError: the tensor is a scalar.
    """
    tensor = as_tensor(verb, value, allowed)
    if tensor.shape.rank == 0:
        raise ValueError(f"hvd.{verb} works along the first dimension, but the tensor has none (shape [])")
    return tensor


def registered_id(verb: str, process_set: ProcessSet) -> int:
    """The id of a process set.

    Raises:
        ValueError: ``init()`` has not been called, or the set has not been registered.
    """
    process_set.size()
    if process_set.process_set_id is None:
        raise ValueError(f"hvd.{verb}: process set {process_set} has not been registered with hvd.init()")
    return int(process_set.process_set_id)


def as_reducible(verb: str, value: Any, op: int) -> tf.Tensor:
    """Converts an argument of a reduction.

    Raises:
        TypeError: as ``as_tensor``; Adasum takes only floating-point dtypes.
    """
    if op == Adasum:
        return as_tensor(f"{verb} with op=hvd.Adasum", value, FLOATING)
    return as_tensor(verb, value, REDUCIBLE)


def checked_reduce_op(op: int, process_set: ProcessSet) -> int:
    """Returns ``op`` if it is a reduce op that the ranks of the process set can do.

    Raises:
        ValueError: it is no reduce op at all; for Adasum, before ``init()``.
        NotImplementedError: Adasum within a process set, or with a number of ranks that is not a power of two.
    """
    if op not in range(len(REDUCE_OP_NAMES)):
        names = ", ".join(f"hvd.{name}" for name in REDUCE_OP_NAMES)
        raise ValueError(f"op={op!r} is not a reduce op; use one of {names}")
    if op == Adasum:
        if registered_id("allreduce", process_set) != 0:
            raise NotImplementedError(f"op=hvd.Adasum takes all ranks, not process set {process_set}")
        if not check_num_rank_power_of_2(process_set.size()):
            raise NotImplementedError(
                f"op=hvd.Adasum needs a number of ranks that is a power of two, not {process_set.size()}"
            )
    return int(op)


def _exact_bits(factor: float) -> int:
    """The bits of a factor that the op's 32-bit attribute would round; 0 if it holds the factor exactly."""
    with np.errstate(over="ignore"):
        if float(np.float32(factor)) == factor:
            return 0
    bits: int = struct.unpack("<q", struct.pack("<d", factor))[0]
    return bits


def factor_from_bits(bits: int) -> float:
    """The inverse of what an op's ``prescale_bits`` and ``postscale_bits`` hold."""
    factor: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return factor


def _native_op(verb: str, tensor: Any, name: CollectiveName) -> Callable[..., Any]:
    """The native op of a verb, named: of a group of several dtypes, which Horovod's does not take, one of our own."""
    agreed = name.agreed
    if not verb.startswith("grouped_") or len({one.dtype.base_dtype for one in tensor}) == 1:
        return functools.partial(getattr(LIBRARY, f"horovod_{verb}"), tensor, tensor_name=agreed, name=name.node)
    if name.node is None:
        # Eagerly, what has no name has that of its op: here the one that a group of one dtype has.
        agreed = agreed or f"HorovodGrouped{verb.split('_')[1].capitalize()}"
    native = getattr(LIBRARY, f"compat_hvd_{verb}")
    return functools.partial(native, tensor, num_tensors=len(tensor), tensor_name=agreed, name=name.node)


def reduce_op(
    tensor: Any,
    name: CollectiveName,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    ignore_name_scope: bool,
    process_set_id: int,
    verb: str = "allreduce",
) -> Any:
    """Creates the op itself; all arguments have been checked.

    ``verb`` is allreduce or reducescatter, or grouped_allreduce or grouped_reducescatter, which take and return lists.
    """
    return _native_op(verb, tensor, name)(
        reduce_op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        prescale_bits=_exact_bits(prescale_factor),
        postscale_bits=_exact_bits(postscale_factor),
        ignore_name_scope=ignore_name_scope,
        process_set_id=process_set_id,
    )


def gather_op(
    tensor: Any, name: CollectiveName, ignore_name_scope: bool, process_set_id: int, verb: str = "allgather"
) -> Any:
    """Creates the op itself, allgather or grouped_allgather, which takes and returns lists; arguments are checked."""
    return _native_op(verb, tensor, name)(ignore_name_scope=ignore_name_scope, process_set_id=process_set_id)


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Reduces a dense tensor over the ranks of a process set; shape and dtype are those of the input.

    ``allreduce`` is the public form, with averaging by default, sparse tensors and compression.

    Raises:
        ValueError, NotImplementedError, TypeError: as ``allreduce``.
    """
    process_set_id = registered_id("allreduce", process_set)
    op = checked_reduce_op(op, process_set)
    tensor = as_reducible("allreduce", tensor, op)
    chosen = collective_name("HorovodAllreduce", tensor, name, ignore_name_scope)
    return reduce_op(
        tensor, chosen, op, float(prescale_factor), float(postscale_factor), ignore_name_scope, process_set_id
    )


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Concatenates the ranks' tensors along the first dimension, in the order of ranks.

    Args:
        tensor: of at least one dimension; the first may differ between ranks and may be 0.
        name: the name by which ranks match this collective; by default made from the tensor's name.
        ignore_name_scope: leave name scopes out of that name.
        process_set: the ranks taking part.

    Returns:
        A tensor of the input's dtype, equal on all ranks.

    Raises:
        ValueError: before ``init()``, or for a scalar.
        TypeError: the dtype is not numeric or bool.
        tf.errors.FailedPreconditionError: (when run) ranks disagree.
    """
    process_set_id = registered_id("allgather", process_set)
    tensor = as_rows("allgather", tensor, TRANSFERABLE)
    chosen = collective_name("HorovodAllgather", tensor, name, ignore_name_scope)
    return gather_op(tensor, chosen, ignore_name_scope, process_set_id)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Gives every rank the root's tensor.

    Args:
        tensor: same shape and dtype on every rank.
        root_rank: the sender's global rank, also within a process set.
        name, ignore_name_scope, process_set: as in ``allgather``.

    Returns:
        A tensor of the input's shape and dtype.

    Raises:
        ValueError: before ``init()``.
        TypeError: the dtype is not numeric or bool.
        tf.errors.InvalidArgumentError: (when run) no such root; on every rank.
        tf.errors.FailedPreconditionError: (when run) ranks disagree.
    """
    process_set_id = registered_id("broadcast", process_set)
    tensor = as_tensor("broadcast", tensor, TRANSFERABLE)
    chosen = collective_name("HorovodBroadcast", tensor, name, ignore_name_scope)
    return LIBRARY.horovod_broadcast(
        tensor,
        root_rank=int(root_rank),
        ignore_name_scope=ignore_name_scope,
        process_set_id=process_set_id,
        tensor_name=chosen.agreed,
        name=chosen.node,
    )


def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> tf.Operation | None:
    """Waits until every rank of the process set has come here.

    Returns:
        In graph mode the op to run; in eager mode None, after the wait.

    Raises:
        ValueError: before ``init()``.
    """
    process_set_id = registered_id("barrier", process_set)
    chosen = collective_name("HorovodBarrier", None, name or "HorovodBarrier", False)
    return LIBRARY.horovod_barrier(process_set_id=process_set_id, tensor_name=chosen.agreed, name=chosen.node)


def join() -> tf.Tensor:
    """Tells the other ranks that this one has no more steps, and waits until every rank has said so.

    Until then the others go on: this rank takes part in their allreduces without a contribution. Sums, minima, maxima
    and products leave it out, and an average divides by the number of ranks that did contribute. Other collectives of
    the others are errors meanwhile. It can be called any number of times.

    Returns:
        An int32 scalar, the rank that joined last; the same on all ranks.

    Raises:
        ValueError: before ``init()``.
    """
    registered_id("join", global_process_set)
    return LIBRARY.horovod_join()


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """An int32 scalar, read when it runs: the number of ranks in the process set."""
    return LIBRARY.horovod_size(process_set_id=process_set_id, name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """An int32 scalar, read when it runs: 1 if this rank is in the set, 0 if not, -1 before init, -3 if unknown."""
    return LIBRARY.horovod_process_set_included(process_set_id=process_set_id, name=name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """An int32 scalar, read when it runs: the number of ranks on this node."""
    return LIBRARY.horovod_local_size(name=name)


def rank_op(name: str | None = None) -> tf.Tensor:
    """An int32 scalar, read when it runs: this process's rank."""
    return LIBRARY.horovod_rank(name=name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """An int32 scalar, read when it runs: this process's rank on its node."""
    return LIBRARY.horovod_local_rank(name=name)
