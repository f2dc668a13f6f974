"""Nothing of a job stays behind on this host, not even if the launcher is killed."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Iterator

JOB_VARIABLE = "COMPAT_HVD_JOB"
"""Each process of a job inherits it; its value is the job's mark."""


def kill_marked(mark: str) -> None:
    """Kills every process on this host that carries the job's mark; again, for those that were being started."""
    for _ in range(3):
        for pid in _carrying(f"{JOB_VARIABLE}={mark}"):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def guarded(mark: str) -> Iterator[None]:
    """While the block runs, a process beside this one waits to kill the job if this one is killed."""
    watched, held = os.pipe()
    guard = os.fork()
    if guard == 0:
        try:
            os.close(held)
            _watch(watched, mark)
        finally:
            os._exit(0)
    os.close(watched)
    try:
        yield
    finally:
        with contextlib.suppress(BrokenPipeError):
            os.write(held, b".")
        os.close(held)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(guard, 0)


def _watch(watched: int, mark: str) -> None:
    """Waits for the launcher's word that all is well; an end of the pipe without it means that the launcher is dead."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    if not os.read(watched, 1):
        kill_marked(mark)


def _carrying(entry: str) -> Iterator[int]:
    """Yields the processes whose environment holds ``entry``, the caller's own excepted."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if entry.encode() in file.read().split(b"\0"):
                    yield int(name)
