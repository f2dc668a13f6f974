"""Threads in one call."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Starts ``target(*args)`` in a thread and returns the thread.

    Args:
        target: what to run.
        args: its positional arguments.
        name: the thread's name.
        daemon: whether the process may end before the thread does.
        silent: drop exceptions instead of printing them.

    Raises:
        ValueError: ``args`` is no tuple.
    """
    if not isinstance(args, tuple):
        raise ValueError(f"args must be a tuple, not {type(args).__name__}; for a single argument write (arg,)")

    def run() -> None:
        with contextlib.suppress(Exception) if silent else contextlib.nullcontext():
            target(*args)

    thread = threading.Thread(target=run, name=name, daemon=daemon)
    thread.start()
    return thread
