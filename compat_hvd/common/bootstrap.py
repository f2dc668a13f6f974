"""How ranks find each other: nodes, shared memory, settings that must agree. Runs on the thread that calls init."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple, Sequence

from compat_hvd.common import config, mpi, native
from compat_hvd.common.exceptions import HorovodInternalError

DYNAMIC_TIMELINE = "DYNAMIC"
"""What HOROVOD_TIMELINE is when the script starts the timeline itself."""


class Place(NamedTuple):
    """Where this rank is in its world; what ``rank()``, ``size()`` and so on return."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool


def _hosts(comm: Any) -> list[int]:
    """Returns for each rank the lowest rank on its host, by MPI's shared-memory split or the override for tests."""
    size, rank = comm.Get_size(), comm.Get_rank()
    split = config.get("COMPAT_HVD_NODE_SPLIT")
    if split is None:
        local = mpi.split_shared(comm)
        first = min(row[0] for row in mpi.allgather_int64(local, [rank]))
        local.Free()
        return [row[0] for row in mpi.allgather_int64(comm, [first])]
    if sum(split) != size:
        raise ValueError(f"COMPAT_HVD_NODE_SPLIT={split} describes {sum(split)} ranks, but there are {size}")
    firsts: list[int] = []
    for count in split:
        firsts += [len(firsts)] * count
    return firsts


def _place(rank: int, hosts: Sequence[int]) -> Place:
    local = [r for r, host in enumerate(hosts) if host == hosts[rank]]
    local_rank = local.index(rank)
    # The ranks with the same local rank, one per host that has so many.
    cross = [r for r, host in enumerate(hosts) if hosts[:r].count(host) == local_rank]
    counts = {hosts.count(host) for host in set(hosts)}
    return Place(rank, len(hosts), local_rank, len(local), cross.index(rank), len(cross), len(counts) == 1)


def _share_memory(comm: Any, place: Place, hosts: Sequence[int]) -> list[int]:
    """Maps the memory of the ranks of this host and returns for each rank the lowest rank it shares memory with.

    Ranks of one host that cannot map each other's memory (other containers or users) count as nodes of their own.
    """
    local = [r for r, host in enumerate(hosts) if host == hosts[place.rank]]
    try:
        address = native.create_segment(
            place.rank, place.local_size, place.local_rank, config.get("COMPAT_HVD_CHUNK_BYTES")
        )
    except OSError as error:
        address = native.SegmentAddress(0, -(error.errno or 1), 0)
    addresses = [native.SegmentAddress(*row) for row in mpi.allgather_int64(comm, list(address))]
    failed = {r: -address.descriptor for r, address in enumerate(addresses) if address.descriptor < 0}
    if failed:
        details = ", ".join(f"rank {r}: errno {number}" for r, number in failed.items())
        raise HorovodInternalError(f"no shared memory could be had ({details}); each rank needs about 2 MiB of it")
    reached = [r == place.rank or native.attach_segment(r, local.index(r), addresses[r]) for r in local]
    most = max(hosts.count(host) for host in set(hosts))
    rows = mpi.allgather_int64(comm, [int(flag) for flag in reached] + [0] * (most - len(reached)))
    return _nodes(hosts, rows)


def _nodes(hosts: Sequence[int], reached: Sequence[Sequence[int]]) -> list[int]:
    """Groups the ranks of each host so that within a group everyone reaches everyone.

    ``reached[r][i]`` tells whether rank r maps the memory of the i-th rank of its host.
    """
    nodes = list(range(len(hosts)))
    for host in set(hosts):
        local = [r for r, other in enumerate(hosts) if other == host]
        for i, rank in enumerate(local):
            for first in sorted({nodes[r] for r in local[:i]}):
                group = [r for r in local[:i] if nodes[r] == first]
                if all(reached[rank][local.index(r)] and reached[r][i] for r in group):
                    nodes[rank] = first
                    break
    return nodes


def _check_settings(comm: Any, process_sets: Sequence[Sequence[int]]) -> None:
    """Raises on every rank when the ranks were given different settings where they must agree."""
    settings = {
        "COMPAT_HVD_CHUNK_BYTES": config.get("COMPAT_HVD_CHUNK_BYTES"),
        "COMPAT_HVD_NODE_SPLIT": config.get("COMPAT_HVD_NODE_SPLIT"),
        "process_sets": [list(ranks) for ranks in process_sets],
    }
    rows = mpi.allgather_int64(comm, [zlib.crc32(repr(value).encode()) for value in settings.values()])
    for number, name in enumerate(settings):
        odd = [rank for rank, row in enumerate(rows) if row[number] != rows[0][number]]
        if odd:
            raise ValueError(
                f"Horovod initialization failed: {name} is not the same on all ranks: ranks {odd} differ from rank 0 "
                f"(this rank, {comm.Get_rank()}, has {settings[name]})"
            )


def _check_slot_size() -> None:
    size = config.get("COMPAT_HVD_CHUNK_BYTES")
    if size < 64 or size % 64:
        raise ValueError(f"COMPAT_HVD_CHUNK_BYTES must be a positive multiple of 64, got {size}")


def form_world(comm: Any, process_sets: Sequence[Sequence[int]]) -> Place:
    """Connects the ranks of ``comm`` and starts the engine; collective over ``comm``, which the engine keeps.

    Raises (on every rank):
        ValueError: the ranks disagree on a setting, or one is out of its range.
        HorovodInternalError: memory or thread support is missing.
    """
    _check_slot_size()
    _check_settings(comm, process_sets)
    hosts = _hosts(comm)
    place = _place(comm.Get_rank(), hosts)
    node_of = _share_memory(comm, place, hosts)
    if len(set(node_of)) > 1 and not all(row[0] for row in mpi.allgather_int64(comm, [int(mpi.thread_multiple())])):
        raise HorovodInternalError(
            "several nodes need an MPI with full thread support: initialise it with MPI_THREAD_MULTIPLE "
            "(mpi4py does so unless mpi4py.rc.thread_level or rc.threads says otherwise)"
        )
    handles = mpi.handles(comm)
    timeline = config.get("HOROVOD_TIMELINE")
    native.start(
        rank=place.rank,
        node_of=node_of,
        local_rank=place.local_rank,
        local_size=place.local_size,
        process_sets=process_sets,
        fusion_threshold=config.get("HOROVOD_FUSION_THRESHOLD"),
        cache_capacity=config.get("HOROVOD_CACHE_CAPACITY"),
        stall_warning=0.0
        if config.get("HOROVOD_STALL_CHECK_DISABLE")
        else config.get("HOROVOD_STALL_CHECK_TIME_SECONDS"),
        stall_limit=config.get("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"),
        deadlock_limit=config.get("COMPAT_HVD_DEADLOCK_SECONDS"),
        timeline=None if timeline == DYNAMIC_TIMELINE else timeline,
        mark_cycles=config.get("HOROVOD_TIMELINE_MARK_CYCLES"),
        functions=handles.functions,
        comm=handles.comm,
        byte=handles.byte,
    )
    return place
