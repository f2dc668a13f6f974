"""The native engine as Python sees it: the only user of ctypes beside :mod:`compat_hvd.common.mpi`."""

from __future__ import annotations

import ctypes
import os
import secrets
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Sequence

from compat_hvd.common.exceptions import HorovodInternalError

_FOLDER = Path(__file__).resolve().parent.parent


class SegmentAddress(NamedTuple):
    """Where other ranks of the host find a rank's segment of shared memory."""

    pid: int
    descriptor: int
    nonce: int


class _StartArguments(ctypes.Structure):
    """Mirrors ``compat_hvd_start_arguments`` in csrc/c_api.cc."""

    _fields_ = [
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("node_of", ctypes.POINTER(ctypes.c_int32)),
        ("local_rank", ctypes.c_int32),
        ("local_size", ctypes.c_int32),
        ("process_sets", ctypes.c_int32),
        ("process_set_sizes", ctypes.POINTER(ctypes.c_int32)),
        ("process_set_ranks", ctypes.POINTER(ctypes.c_int32)),
        ("fusion_threshold", ctypes.c_int64),
        ("cache_capacity", ctypes.c_int64),
        ("stall_warning", ctypes.c_double),
        ("stall_limit", ctypes.c_double),
        ("deadlock_limit", ctypes.c_double),
        ("timeline", ctypes.c_char_p),
        ("mark_cycles", ctypes.c_int32),
        ("mpi_isend", ctypes.c_uint64),
        ("mpi_irecv", ctypes.c_uint64),
        ("mpi_test", ctypes.c_uint64),
        ("mpi_abort", ctypes.c_uint64),
        ("mpi_comm", ctypes.c_uint64),
        ("mpi_byte", ctypes.c_uint64),
    ]


@lru_cache(maxsize=None)
def _engine() -> Any:
    path = _library("_engine.so")
    library = ctypes.CDLL(path)
    library.compat_hvd_last_error.restype = ctypes.c_char_p
    library.compat_hvd_create_segment.argtypes = [ctypes.c_int32] * 3 + [ctypes.c_int64, ctypes.c_uint64]
    library.compat_hvd_attach_segment.argtypes = [
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_int64,
        ctypes.c_int32,
        ctypes.c_uint64,
    ]
    library.compat_hvd_start.argtypes = [ctypes.POINTER(_StartArguments)]
    pointer = ctypes.POINTER
    library.compat_hvd_broadcast_bytes.argtypes = [
        ctypes.c_char_p,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_char_p,
        ctypes.c_int64,
    ]
    library.compat_hvd_allgather_bytes.argtypes = [
        ctypes.c_char_p,
        ctypes.c_int32,
        ctypes.c_char_p,
        ctypes.c_int64,
        pointer(ctypes.c_void_p),
        pointer(pointer(ctypes.c_int64)),
        pointer(ctypes.c_int32),
    ]
    library.compat_hvd_add_process_set.argtypes = [
        pointer(ctypes.c_int64),
        ctypes.c_int32,
        pointer(ctypes.c_int64),
    ]
    library.compat_hvd_remove_process_set.argtypes = [ctypes.c_int64]
    library.compat_hvd_goodbye.restype = None
    library.compat_hvd_fail.restype = None
    library.compat_hvd_fail.argtypes = [ctypes.c_char_p]
    library.compat_hvd_start_timeline.restype = None
    library.compat_hvd_start_timeline.argtypes = [ctypes.c_char_p, ctypes.c_int32]
    library.compat_hvd_stop_timeline.restype = None
    return library


def _library(name: str) -> str:
    path = _FOLDER / name
    if not path.exists():
        raise ImportError(
            f"compat_hvd was not built: {path.name} is missing beside the package. Install it with pip, or run "
            "'python setup.py build_ext --inplace' in a checkout; both need g++ or clang++."
        )
    return str(path)


def tensorflow_library_path() -> str:
    """Returns the path of the library that registers the TensorFlow operations.

    Raises:
        ImportError: the package was not built.
    """
    _engine()
    return _library("_tensorflow.so")


def create_segment(rank: int, readers: int, reader_index: int, slot_bytes: int) -> SegmentAddress:
    """Makes this rank's shared memory for ``readers`` ranks of its host.

    Raises:
        OSError: there is not enough memory, or the system refuses memory files.
    """
    nonce = secrets.randbits(62)
    descriptor = _engine().compat_hvd_create_segment(rank, readers, reader_index, slot_bytes, nonce)
    if descriptor < 0:
        raise OSError(-descriptor, f"shared memory of rank {rank}: {os.strerror(-descriptor)}")
    return SegmentAddress(os.getpid(), descriptor, nonce)


def attach_segment(rank: int, reader_index: int, address: SegmentAddress) -> bool:
    """Maps the segment of another rank; False when this process cannot (another user, another PID namespace)."""
    return not _engine().compat_hvd_attach_segment(rank, reader_index, address.pid, address.descriptor, address.nonce)


def _array(values: Sequence[int]) -> Any:
    return (ctypes.c_int32 * max(len(values), 1))(*values)


def start(
    rank: int,
    node_of: Sequence[int],
    local_rank: int,
    local_size: int,
    process_sets: Sequence[Sequence[int]],
    fusion_threshold: int,
    cache_capacity: int,
    stall_warning: float,
    stall_limit: float,
    deadlock_limit: float,
    timeline: str | None,
    mark_cycles: bool,
    functions: dict[str, int],
    comm: int,
    byte: int,
) -> None:
    """Starts the engine once all ranks have attached to each other's segments.

    Args:
        node_of: for each rank a number that the ranks sharing memory have in common.
        process_sets: the members of each set beside the world, which get the ids 1, 2, …
        fusion_threshold: bytes that one response may carry; 0 for no fusion.
        cache_capacity: collectives whose negotiation is remembered; 0 for none.
        stall_warning, stall_limit, deadlock_limit: seconds; 0 turns each off.
        timeline: where rank 0 writes its timeline; None for nowhere.
        mark_cycles: whether the timeline marks each response.
        functions, comm, byte: see :class:`compat_hvd.common.mpi.Handles`.

    Raises:
        RuntimeError: the engine could not be started.
    """
    arguments = _StartArguments(
        rank=rank,
        size=len(node_of),
        node_of=_array(node_of),
        local_rank=local_rank,
        local_size=local_size,
        process_sets=len(process_sets),
        process_set_sizes=_array([len(ranks) for ranks in process_sets]),
        process_set_ranks=_array([member for ranks in process_sets for member in ranks]),
        fusion_threshold=fusion_threshold,
        cache_capacity=cache_capacity,
        stall_warning=stall_warning,
        stall_limit=stall_limit,
        deadlock_limit=deadlock_limit,
        timeline=None if timeline is None else os.fsencode(timeline),
        mark_cycles=mark_cycles,
        mpi_isend=functions["MPI_Isend"],
        mpi_irecv=functions["MPI_Irecv"],
        mpi_test=functions["MPI_Test"],
        mpi_abort=functions["MPI_Abort"],
        mpi_comm=comm,
        mpi_byte=byte,
    )
    if _engine().compat_hvd_start(ctypes.byref(arguments)) != 0:
        raise RuntimeError(f"the engine could not be started: {_engine().compat_hvd_last_error().decode()}")


def running() -> bool:
    """Whether the engine runs in this process; False in a forked child."""
    return bool(_engine().compat_hvd_running())


def goodbye() -> None:
    """Ends the engine of this rank: returns when all ranks have said goodbye, never if the job fails meanwhile."""
    _engine().compat_hvd_goodbye()


def fail(reason: str) -> None:
    """Tells the other ranks that this one has failed and aborts the job; does not return while the engine runs."""
    _engine().compat_hvd_fail(reason.encode())


def start_timeline(path: str | os.PathLike[str], mark_cycles: bool) -> None:
    """Makes rank 0 write its timeline to ``path`` from now on; a warning on stderr says when it cannot."""
    _engine().compat_hvd_start_timeline(os.fsencode(path), mark_cycles)


def stop_timeline() -> None:
    """Returns when the timeline, if any, is completely written."""
    _engine().compat_hvd_stop_timeline()


_INVALID_ARGUMENT = 3
_FAILED_PRECONDITION = 9


def _check(code: int) -> None:
    if code == 0:
        return
    message = _engine().compat_hvd_last_error().decode()
    if code in (_INVALID_ARGUMENT, _FAILED_PRECONDITION):
        raise ValueError(message)
    raise HorovodInternalError(message)


def broadcast_bytes(name: str, process_set_id: int, root_rank: int, data: bytes | None, size: int) -> bytes:
    """Returns the ``size`` bytes that the rank ``root_rank`` gives as ``data``; waits for the other members.

    Raises:
        ValueError: the members disagree, or the root is none of them.
        HorovodInternalError: a rank failed or left.
    """
    buffer = ctypes.create_string_buffer(size) if data is None else ctypes.create_string_buffer(data, size)
    _check(_engine().compat_hvd_broadcast_bytes(name.encode(), process_set_id, root_rank, buffer, size))
    return buffer.raw


def allgather_bytes(name: str, process_set_id: int, data: bytes) -> list[bytes]:
    """Returns what each member gives as ``data``, in the order of the members; waits for them.

    Raises:
        ValueError, HorovodInternalError: as ``broadcast_bytes``.
    """
    gathered = ctypes.c_void_p()
    sizes = ctypes.POINTER(ctypes.c_int64)()
    members = ctypes.c_int32()
    _check(
        _engine().compat_hvd_allgather_bytes(
            name.encode(),
            process_set_id,
            data,
            len(data),
            ctypes.byref(gathered),
            ctypes.byref(sizes),
            ctypes.byref(members),
        )
    )
    parts, start = [], gathered.value or 0
    for size in sizes[: members.value]:
        parts.append(ctypes.string_at(start, size))
        start += size
    return parts


def add_process_set(ranks: Sequence[int]) -> int:
    """Registers a process set and returns its id; every rank of the world calls it with the same ranks.

    Raises:
        ValueError: the ranks disagree, or the set exists already.
        HorovodInternalError: a rank failed or left.
    """
    identity = ctypes.c_int64(-1)
    array = (ctypes.c_int64 * max(len(ranks), 1))(*ranks)
    _check(_engine().compat_hvd_add_process_set(array, len(ranks), ctypes.byref(identity)))
    return identity.value


def remove_process_set(process_set_id: int) -> None:
    """Takes a process set away; every rank of the world calls it. Raises as ``add_process_set``."""
    _check(_engine().compat_hvd_remove_process_set(process_set_id))
