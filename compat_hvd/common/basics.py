"""init, shutdown and who this process is. Names and errors are Horovod's."""

from __future__ import annotations

import os
from typing import Any, Sequence

from compat_hvd.common import bootstrap, config, ending, mpi, native
from compat_hvd.common import process_sets as table
from compat_hvd.common.exceptions import HorovodInternalError
from compat_hvd.common.process_sets import ProcessSet

# All ranks have left the old world when they begin to wait for each other, so nobody who comes is far.
_RESTART_SECONDS = 15.0

_place: bootstrap.Place | None = None
_comm: Any = None
_timeline_allowed = False
_arguments: tuple[Any, Any] = None, None


def init(
    comm: Sequence[int] | Any | None = None,
    process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None,
) -> None:
    """Forms the world and starts the engine. Collective over the ranks that take part.

    A second call only looks the process sets up and adds those that are new.

    Args:
        comm: None for all ranks of MPI_COMM_WORLD, a list of its ranks, or an mpi4py communicator; a duplicate of it
            is used.
        process_sets: list of ProcessSet, or of lists of ranks, the same on all ranks; sets given by communicators may
            differ. "dynamic", which Horovod needs before ``add_process_set``, is accepted and changes nothing.

    Raises:
        ValueError: this rank is not in ``comm``, the list or the sets are not valid, the ranks disagree, or the
            launcher does not fit the MPI that mpi4py loads (LaunchError). When the sets are valid but one is there
            twice, the engine runs all the same; call it again with another list.
        ImportError: mpi4py or an MPI library is missing.
        HorovodInternalError: the ranks could not be connected.
    """
    global _place, _comm, _timeline_allowed, _arguments
    if native.running():
        table.assign(table.as_process_sets(process_sets), _comm)
        return
    if _place is not None:
        raise ValueError(
            "Horovod initialization failed: this process was forked from one that had called init(); MPI does not "
            "survive a fork, so call init() only in the children, or use the 'spawn' start method"
        )
    mpi.start()
    ending.watch()
    chosen = _communicator(comm)
    sets = table.as_process_sets(process_sets)
    _comm = mpi.dup(chosen)
    groups = table.resolve(sets, _comm)
    _place = bootstrap.form_world(_comm, groups)
    _timeline_allowed = config.get("HOROVOD_TIMELINE") is not None
    table.register(groups, _place.size, comm if hasattr(comm, "Get_rank") else None)
    table.assign(sets, _comm)
    _arguments = comm, process_sets


def _communicator(comm: Sequence[int] | Any | None) -> Any:
    world = mpi.start().COMM_WORLD
    if comm is None:
        return world
    if hasattr(comm, "Get_rank"):
        return comm
    ranks = list(comm)
    if not ranks:
        return world
    if any(isinstance(rank, bool) or not isinstance(rank, int) for rank in ranks):
        raise ValueError(f"init(comm=…) takes a list of ranks or an mpi4py communicator, got {comm!r}")
    chosen = mpi.from_ranks(ranks)
    if chosen is None:
        raise ValueError(
            f"Horovod initialization failed: rank {world.Get_rank()} is not among the ranks {ranks} of init(comm=…); "
            "only the ranks of the list may call it"
        )
    return chosen


def shutdown() -> None:
    """Ends the engine: returns when every rank has called it or ended. ``init`` may be called again afterwards."""
    if native.running():
        native.goodbye()
        ending.mark_orderly()
        _leave_world()


def _leave_world() -> None:
    global _place, _comm
    table.unregister_all()
    _comm.Free()
    _place, _comm = None, None


def restart() -> None:
    """Ends the engine and starts another with the arguments of the last ``init``; every rank calls it.

    A rank that has not called it yet gets errors from its collectives until it does. Process sets added while the job
    ran are gone.

    Raises:
        ValueError: before ``init``.
        HorovodInternalError: a rank has ended meanwhile. Nothing more can be communicated, and if the error is not
            caught, the job is aborted.
    """
    _current()
    native.goodbye()
    if not mpi.all_arrive(_comm, _RESTART_SECONDS):
        raise HorovodInternalError(
            f"rank {rank()} wants to start anew, but another rank has ended and will not come. Ranks cannot be "
            "replaced: start the whole job again, for example with compat-hvdrun --restarts, and let it read a "
            "checkpoint"
        )
    _leave_world()
    init(*_arguments)


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Records the collectives in a file that chrome://tracing and Perfetto show, from now on.

    Rank 0 writes it; on the other ranks nothing happens. A timeline that is being written to another file ends there.
    If the file cannot be written, rank 0 warns on stderr and the job goes on.

    Args:
        file_path: the file; it is overwritten.
        mark_cycles: also record the moment of each response of the coordinator.

    Raises:
        ValueError: before ``init``, or if HOROVOD_TIMELINE was not set when ``init`` was called.
    """
    _check_running()
    if not _timeline_allowed:
        raise ValueError("Set HOROVOD_TIMELINE=DYNAMIC to enable dynamic timeline usage.")
    native.start_timeline(file_path, mark_cycles)


def stop_timeline() -> None:
    """Ends the timeline, if there is one; returns when its file is complete.

    Raises:
        ValueError: before ``init``.
    """
    _check_running()
    native.stop_timeline()


def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Returns the members of every registered set by id, under the name that Horovod's tests use."""
    return table.ids_and_ranks()


def is_initialized() -> bool:
    """Returns whether the engine runs in this process."""
    return native.running()


_NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


def _current() -> bootstrap.Place:
    if _place is None:
        raise ValueError(_NOT_INITIALIZED)
    return _place


def _check_running() -> None:
    if not native.running():
        raise ValueError(_NOT_INITIALIZED)


def rank() -> int:
    """Returns this process's number in the world, from 0. Raises ValueError before init, as all of these do."""
    return _current().rank


def size() -> int:
    """Returns the number of processes in the world."""
    return _current().size


def local_rank() -> int:
    """Returns this process's number among those on its host, from 0."""
    return _current().local_rank


def local_size() -> int:
    """Returns the number of processes on this host."""
    return _current().local_size


def cross_rank() -> int:
    """Returns this host's number among those that have a process with this local rank."""
    return _current().cross_rank


def cross_size() -> int:
    """Returns the number of hosts that have a process with this local rank."""
    return _current().cross_size


def is_homogeneous() -> bool:
    """Returns whether every host has equally many processes."""
    return _current().homogeneous


def mpi_threads_supported() -> bool:
    """Returns whether any thread may call MPI at any time."""
    _current()
    return mpi.thread_multiple()


def mpi_enabled() -> bool:
    """Returns True: processes always find each other through MPI."""
    return True


def mpi_built() -> bool:
    """Returns True."""
    return True


def gloo_enabled() -> bool:
    """Returns False: there is no Gloo here."""
    return False


def gloo_built() -> bool:
    """Returns False."""
    return False


def nccl_built() -> int:
    """Returns 0: no NCCL version."""
    return 0


def ddl_built() -> bool:
    """Returns False."""
    return False


def ccl_built() -> bool:
    """Returns False."""
    return False


def cuda_built() -> bool:
    """Returns False: GPU tensors are communicated through host memory."""
    return False


def rocm_built() -> bool:
    """Returns False."""
    return False
