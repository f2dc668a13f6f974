"""Process sets: subsets of ranks that run collectives of their own."""

from __future__ import annotations

from typing import Any, Iterable, Sequence


class ProcessSet:
    """A set of ranks. It can be used once ``init(process_sets=[…])`` has registered it.

    Args:
        ranks_or_comm: the global ranks of the members, in any order.

    Attributes:
        process_set_id: None until it is registered; the set of all ranks has id 0.
        ranks: the members in ascending order.
        mpi_comm: None, for sets given by ranks.

    Raises:
        ValueError: an element is not an integer.
        NotImplementedError: an MPI communicator was given.
    """

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        if hasattr(ranks_or_comm, "Get_rank"):
            raise NotImplementedError("process sets are given by ranks; communicators are not supported yet")
        ranks = list(ranks_or_comm)
        if any(isinstance(rank, bool) or not isinstance(rank, int) for rank in ranks):
            raise ValueError(f"ProcessSet takes integers as ranks, got {ranks}")
        self.ranks = sorted(ranks)

    def _members(self) -> list[int]:
        if self.process_set_id is None or self.ranks is None:
            raise ValueError(f"{self} has not been registered; pass it to init(process_sets=[…])")
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


def resolve(process_sets: Sequence[ProcessSet | Sequence[int]] | None, size: int) -> list[ProcessSet]:
    """Checks the sets given to ``init`` and returns them as ProcessSet objects, not yet registered.

    Raises:
        ValueError: a member does not exist or is named twice, or a set is empty or there already.
    """
    sets = [given if isinstance(given, ProcessSet) else ProcessSet(given) for given in process_sets or []]
    seen = [list(range(size))]
    for number, process_set in enumerate(sets):
        ranks = process_set.ranks or []
        if not ranks or len(set(ranks)) != len(ranks) or ranks[0] < 0 or ranks[-1] >= size:
            raise ValueError(
                f"process_sets entry number {number} must hold different ranks from 0 to {size - 1}, got {ranks}"
            )
        if ranks in seen:
            raise ValueError(
                f"Horovod could not be initialized because process_sets entry number {number} is a duplicate: {ranks}"
            )
        seen.append(ranks)
    return sets


def register(sets: Sequence[ProcessSet], size: int) -> None:
    """Gives the sets their ids, 1, 2, … in the order of the list, and the global set its members."""
    global_process_set.ranks = list(range(size))
    for number, process_set in enumerate(sets):
        process_set.process_set_id = number + 1


def unregister(sets: Sequence[ProcessSet]) -> None:
    """Takes the ids away again, at shutdown."""
    global_process_set.ranks = []
    for process_set in sets:
        process_set.process_set_id = None
