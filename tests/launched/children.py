"""Runs what may hang or die: in a session of its own, with a time limit, in surroundings that are given to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Mapping, NamedTuple, Sequence

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = (sys.executable, "-m", "compat_hvd.launcher")


class Ended(NamedTuple):
    """What is left of a child."""

    returncode: int
    stdout: str
    stderr: str

    def __str__(self) -> str:
        return f"status {self.returncode}\n--- stdout:\n{self.stdout}\n--- stderr:\n{self.stderr}"


def bare_environment(**more: str) -> dict[str, str]:
    """The environment of ``env -i PATH=… HOME=…``, with the way to this package and ``more``."""
    base = {"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/"), "PYTHONPATH": str(ROOT)}
    return {**base, **more}


def start(command: Sequence[object], env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Starts ``command`` in a session of its own; its streams are pipes of text."""
    return subprocess.Popen(
        [str(word) for word in command],
        env=bare_environment() if env is None else env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="backslashreplace",
        start_new_session=True,
    )


def finish(child: subprocess.Popen[str], *, timeout: float, stdin: str | None = None) -> Ended:
    """Waits for ``child``; after ``timeout`` seconds kills its process group and fails with what it had printed."""
    try:
        stdout, stderr = child.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGTERM)
        try:
            stdout, stderr = child.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            stdout, stderr = child.communicate()
        pytest.fail(f"{child.args} took longer than {timeout} s: {Ended(child.returncode, stdout, stderr)}")
    return Ended(child.returncode, stdout, stderr)


def run(
    command: Sequence[object], *, timeout: float, env: Mapping[str, str] | None = None, stdin: str | None = None
) -> Ended:
    """Runs ``command`` to its end; see ``start`` and ``finish``."""
    return finish(start(command, env), timeout=timeout, stdin=stdin)
