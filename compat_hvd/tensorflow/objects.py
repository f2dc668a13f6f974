"""Python objects between ranks: pickled, and moved as bytes by the engine itself.

No TensorFlow op takes part, so that no graph grows, a finalised one does as well, and no session is needed.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any, Callable

from compat_hvd.common import basics, native
from compat_hvd.common.process_sets import ProcessSet, global_process_set
from compat_hvd.tensorflow.ops import registered_id

_SIZE = struct.Struct("<q")
_FAILED = -1


def _dumps(obj: Any) -> bytes:
    """Pickles with cloudpickle where it is installed, which knows functions and classes of the main program."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    data: bytes = cloudpickle.dumps(obj)
    return data


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gives every rank the root's object.

    Args:
        obj: what to send; ignored on ranks other than the root, and of any type there.
        root_rank: the sender's global rank, also within a process set.
        session: accepted for scripts that give it; none is needed.
        name: the name by which ranks match this call.
        process_set: the ranks taking part.

    Returns:
        On the root ``obj`` itself, on the other ranks a copy.

    Raises:
        ValueError: before ``init()``; no such root; the root could not pickle its object (on the other ranks; on the
            root its own error).
        HorovodInternalError: a rank failed or left.
    """
    process_set_id = registered_id("broadcast_object", process_set)
    name = name or "broadcast_object"

    def send(data: bytes | None, size: int, part: str) -> bytes:
        return native.broadcast_bytes(f"{name}.{part}", process_set_id, root_rank, data, size)

    if basics.rank() != root_rank:
        (size,) = _SIZE.unpack(send(None, _SIZE.size, "sz"))
        if size == _FAILED:
            raise ValueError(f"hvd.broadcast_object {name!r}: rank {root_rank} could not pickle its object")
        return pickle.loads(send(None, size, "t"))
    try:
        data = _dumps(obj)
    except Exception:
        send(_SIZE.pack(_FAILED), _SIZE.size, "sz")
        raise
    send(_SIZE.pack(len(data)), _SIZE.size, "sz")
    send(data, len(data), "t")
    return obj


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Returns a function of one object that broadcasts it; the arguments are those of ``broadcast_object``."""

    def broadcast(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return broadcast


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Gives every rank the objects of all ranks.

    Args:
        obj: this rank's object, of any type.
        session, name, process_set: as in ``broadcast_object``.

    Returns:
        The objects in the order of ranks.

    Raises:
        ValueError: before ``init()``; a rank could not pickle its object (on the others; on that rank its own error).
        HorovodInternalError: a rank failed or left.
    """
    process_set_id = registered_id("allgather_object", process_set)
    name = name or "allgather_object"
    try:
        data = _dumps(obj)
    except Exception:
        native.allgather_bytes(name, process_set_id, b"")
        raise
    gathered = native.allgather_bytes(name, process_set_id, data)
    ranks = process_set.ranks or []
    failed = [rank for rank, part in zip(ranks, gathered) if not part]
    if failed:
        raise ValueError(f"hvd.allgather_object {name!r}: ranks {failed} could not pickle their objects")
    return [pickle.loads(part) for part in gathered]
