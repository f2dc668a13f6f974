"""Exception classes, named as in ``horovod.common.exceptions``."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """The engine failed: a rank died, left, or raised, so that a collective cannot complete."""


class LaunchError(ValueError):
    """The processes were started in a way that cannot form the world the user meant.

    A ``ValueError`` because Horovod reports a failed ``init()`` as one.
    """
