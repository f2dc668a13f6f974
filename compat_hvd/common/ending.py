"""How a process ends: the part of the exit protocol that Python has to play.

A rank whose main thread dies of an exception must tell the others before Python joins threads (one may be stuck in a
collective) and must not wait in MPI_Finalize. A rank that ends normally says goodbye after its threads have ended, and
goes on serving the others until all have said so.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from types import TracebackType

from compat_hvd.common import mpi, native

_pid: int | None = None
_failure: str | None = None
_orderly = True


def watch() -> None:
    """Installs the hooks, once per process. Called when MPI has been started."""
    global _pid, _orderly
    _orderly = False
    if _pid == os.getpid():
        return
    _pid = os.getpid()
    _watch_exceptions()
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(_before_threads_are_joined)
    atexit.register(_at_exit)


def mark_orderly() -> None:
    """After shutdown, an exception is this rank's own affair: nobody waits for it any more."""
    global _orderly
    _orderly = True


def _watch_exceptions() -> None:
    previous = sys.excepthook

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        global _failure
        _failure = _summary(kind, value)
        previous(kind, value, trace)

    hook.compat_hvd = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def _summary(kind: type[BaseException] | None, value: BaseException | None) -> str:
    """The exception in one line: TensorFlow's messages run over pages."""
    line = "".join(traceback.format_exception_only(kind, value)).strip().split("\n")[0]
    return line if len(line) <= 200 else line[:200] + "…"


def _uncaught() -> str | None:
    """What the main thread died of, or None. A script may have put an excepthook of its own in the place of ours."""
    if _failure is not None:
        return _failure
    if not getattr(sys.excepthook, "compat_hvd", False) and getattr(sys, "last_value", None) is not None:
        return _summary(sys.last_type, sys.last_value)
    return None


def _before_threads_are_joined() -> None:
    failure = _uncaught()
    if _pid != os.getpid() or failure is None or _orderly:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    native.fail(f"ended because of an uncaught exception ({failure})")
    # Not yet, or no longer, connected to the others: they may be waiting inside MPI.
    mpi.abort(1)


def _at_exit() -> None:
    if _pid != os.getpid():
        return
    _before_threads_are_joined()
    native.goodbye()
    mpi.finalize_if_owned()
