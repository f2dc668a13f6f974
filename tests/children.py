"""Runs what may hang or die: in a session of its own, with a time limit, and with everything it started ended afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Mapping, NamedTuple, Sequence

import pytest


class Outcome(NamedTuple):
    returncode: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def _end_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run(command: Sequence[str], *, timeout: float, env: Mapping[str, str | None] | None = None) -> Outcome:
    """Runs ``command`` to its end, or fails the test with what it has printed after ``timeout`` seconds.

    ``env`` is laid over the environment; None removes a variable.
    """
    environ = {**os.environ, **(env or {})}
    process = subprocess.Popen(
        command,
        env={name: text for name, text in environ.items() if text is not None},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _end_group(process.pid)
        stdout, stderr = process.communicate()
        pytest.fail(f"{list(command)} did not end within {timeout} s; it printed:\n{stdout}\n{stderr}")
    finally:
        _end_group(process.pid)
    return Outcome(process.returncode, stdout, stderr)


def launch(ranks: int, *command: str, timeout: float, env: Mapping[str, str | None] | None = None) -> Outcome:
    """Runs a command of Python's under our launcher."""
    launcher = [sys.executable, "-m", "compat_hvd.launcher", "-np", str(ranks), "--", sys.executable]
    return run([*launcher, *command], timeout=timeout, env=env)
