"""Exception classes, named as in ``horovod.common.exceptions``."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """The engine failed: a rank died, left, or raised, so that a collective cannot complete."""


class HostsUpdatedInterrupt(RuntimeError):
    """Asks ``elastic.run`` to connect the ranks anew without going back to the last commit.

    Nothing here raises it; a training function may.

    Args:
        skip_sync: leave out making the states equal afterwards.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync


class LaunchError(ValueError):
    """The processes were started in a way that cannot form the world the user meant.

    A ``ValueError`` because Horovod reports a failed ``init()`` as one.
    """
