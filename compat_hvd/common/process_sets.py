"""Process sets: subsets of ranks that run collectives of their own."""

from __future__ import annotations

from typing import Any, Iterable, Sequence

from compat_hvd.common import mpi, native


class ProcessSet:
    """A set of ranks. It can be used once ``init(process_sets=[…])`` or ``add_process_set`` has registered it.

    Args:
        ranks_or_comm: the global ranks of the members, in any order, or an mpi4py communicator of them. Ranks may give
            different communicators in the same place of ``init``'s list: each gets the set that it belongs to.

    Attributes:
        process_set_id: None until it is registered; the set of all ranks has id 0.
        ranks: the members in ascending order; None for a communicator that is not registered yet.
        mpi_comm: the communicator, or None for a set given by ranks.

    Raises:
        ValueError: an element is not an integer.
    """

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        if hasattr(ranks_or_comm, "Get_rank"):
            self.mpi_comm = ranks_or_comm
            return
        ranks = list(ranks_or_comm)
        if any(isinstance(rank, bool) or not isinstance(rank, int) for rank in ranks):
            raise ValueError(f"ProcessSet takes integers as ranks, got {ranks}")
        self.ranks = sorted(ranks)

    def _members(self) -> list[int]:
        # The table is asked as well: the object may be a copy made before its set was removed and the id given anew.
        if self.process_set_id is None or self.ranks is None or _registered.get(self.process_set_id) != self.ranks:
            raise ValueError(f"{self} has not been registered; pass it to init(process_sets=[…]) or add_process_set")
        return self.ranks

    def size(self) -> int:
        """Returns the number of members. Raises ValueError before init or if the set is not registered."""
        from compat_hvd.common import basics

        basics.size()
        return len(self._members())

    def rank(self) -> int:
        """Returns this process's position among the members. Raises ValueError if it is none of them."""
        from compat_hvd.common import basics

        rank = basics.rank()
        if rank not in self._members():
            raise ValueError("Process is not part of provided process set.")
        return self._members().index(rank)

    def included(self) -> bool | None:
        """Returns whether this process is a member; None while the members are not known."""
        from compat_hvd.common import basics

        return None if not self.ranks else basics.rank() in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


global_process_set = ProcessSet([])
"""All ranks; its ``ranks`` are known after init."""
global_process_set.process_set_id = 0

_registered: dict[int, list[int]] = {}
"""The members of every set in use, by id."""
_objects: list[ProcessSet] = []
"""The objects that have an id."""


def _check_ranks(what: str, ranks: Sequence[int], size: int) -> None:
    if not ranks or len(set(ranks)) != len(ranks) or min(ranks) < 0 or max(ranks) >= size:
        raise ValueError(f"{what} must hold different ranks from 0 to {size - 1}, got {list(ranks)}")


def as_process_sets(given: Sequence[ProcessSet | Sequence[int]] | str | None) -> list[ProcessSet]:
    """Returns ``init``'s argument as ProcessSet objects.

    Raises:
        ValueError: it is neither a list nor "dynamic".
    """
    if given is None or (isinstance(given, str) and given.lower() == "dynamic"):
        return []
    if isinstance(given, str):
        raise ValueError(f"process_sets is a list of ProcessSet or 'dynamic', got {given!r}")
    return [one if isinstance(one, ProcessSet) else ProcessSet(one) for one in given]


def resolve(sets: Sequence[ProcessSet], comm: Any) -> list[list[int]]:
    """Returns the members of the sets to register, in the order of their ids from 1; collective over ``comm``.

    A place that holds communicators expands to the distinct groups of all ranks, in ascending order. A set that is
    there already is left out.

    Raises:
        ValueError: a member does not exist or is named twice, or a set is empty.
    """
    seen = [list(range(comm.Get_size()))]
    for number, process_set in enumerate(sets):
        if process_set.mpi_comm is None:
            groups = [list(process_set.ranks or [])]
        else:
            groups = _groups(process_set.mpi_comm, comm)
            process_set.ranks = next(group for group in groups if comm.Get_rank() in group)
        for ranks in groups:
            _check_ranks(f"process_sets entry number {number}", ranks, comm.Get_size())
            if ranks not in seen:
                seen.append(ranks)
    return seen[1:]


def _groups(mine: Any, comm: Any) -> list[list[int]]:
    """The distinct groups of ``comm``'s ranks that the communicators ``mine`` of all of them make."""
    members = sorted(mpi.ranks_within(mine, comm))
    size = comm.Get_size()
    rows = mpi.allgather_int64(comm, members + [-1] * (size - len(members)))
    return sorted([list(group) for group in {tuple(rank for rank in row if rank >= 0) for row in rows}])


def register(groups: Sequence[Sequence[int]], size: int, mpi_comm: Any) -> None:
    """Notes the sets that the engine was started with: the world, and ``groups`` as ``resolve`` returns them."""
    global_process_set.ranks = list(range(size))
    global_process_set.mpi_comm = mpi_comm
    _registered.clear()
    _registered.update({0: list(range(size)), **{i + 1: list(ranks) for i, ranks in enumerate(groups)}})


def assign(sets: Sequence[ProcessSet], comm: Any) -> None:
    """Gives the sets of one ``init`` call their ids; one that is not registered yet is added, on every rank.

    Raises:
        ValueError: a set equals an earlier one or the world. Those before it keep their ids, and the engine goes on.
    """
    taken = {0}
    for number, process_set in enumerate(sets):
        if process_set.mpi_comm is not None:
            process_set.ranks = sorted(mpi.ranks_within(process_set.mpi_comm, comm))
        known = next((i for i, ranks in _registered.items() if ranks == process_set.ranks), None)
        if known in taken:
            raise ValueError(
                f"Horovod could not be initialized because process_sets entry number {number} is a duplicate: "
                f"{process_set.ranks}. Call init() again with a list in which each set is there once and none is that "
                "of all ranks"
            )
        if known is None:
            add_process_set(process_set)
        else:
            process_set.process_set_id = known
            _objects.append(process_set)
        taken.add(process_set.process_set_id or 0)


def unregister_all() -> None:
    """Takes all ids away, at shutdown. Objects of the caller keep their ranks and may be registered again."""
    global_process_set.ranks = []
    global_process_set.mpi_comm = None
    _registered.clear()
    for process_set in _objects:
        process_set.process_set_id = None
    _objects.clear()


def ids_and_ranks() -> dict[int, list[int]]:
    """Returns the members of every set in use by id, the world with id 0 included."""
    return {number: list(ranks) for number, ranks in _registered.items()}


def with_id(process_set_id: int) -> ProcessSet:
    """Returns an object for the registered set of this id.

    Raises:
        ValueError: there is none.
    """
    if process_set_id not in _registered:
        raise ValueError(f"there is no process set with the id {process_set_id}")
    found = ProcessSet(_registered[process_set_id])
    found.process_set_id = process_set_id
    return found


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a set while the job runs. Every rank of the world calls it, with the same ranks; it waits for them.

    Returns:
        The set, with its id.

    Raises:
        ValueError: before init; a member does not exist; the set is registered already; the ranks disagree.
        NotImplementedError: the set was given by a communicator; pass it to ``init`` instead.
        HorovodInternalError: a rank failed or left.
    """
    from compat_hvd.common import basics

    size = basics.size()
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if added.mpi_comm is not None or added.ranks is None:
        raise NotImplementedError(
            "a process set made from a communicator is registered by the first init(process_sets=[…])"
        )
    _check_ranks("a process set", added.ranks, size)
    added.process_set_id = native.add_process_set(added.ranks)
    _registered[added.process_set_id] = list(added.ranks)
    _objects.append(added)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Takes a set away. Every rank of the world calls it; it waits for them. The object has no id afterwards.

    Returns:
        False for a set that is not registered and for the global set, which stays.

    Raises:
        ValueError: before init; the ranks disagree.
        HorovodInternalError: a rank failed or left.
    """
    from compat_hvd.common import basics

    basics.size()
    number = process_set.process_set_id
    if number is None or number == 0 or number not in _registered:
        return False
    native.remove_process_set(number)
    del _registered[number]
    process_set.process_set_id = None
    return True
