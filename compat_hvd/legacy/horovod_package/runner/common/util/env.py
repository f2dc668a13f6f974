"""Who this process is, by what its launcher left in the environment."""

from __future__ import annotations

from compat_hvd.common import config

_PAIRS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def get_env_rank_and_size() -> tuple[int, int]:
    """Returns rank and size as the launcher gave them, without ``init()``; (0, 1) for a process of its own."""
    for names in _PAIRS:
        rank, size = (config.get(name) for name in names)
        if rank is not None and size is not None:
            return rank, size
    return 0, 1
