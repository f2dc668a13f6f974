"""A collective inside a py_func that the completion of another one starts must not wait for itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from children import LAUNCHER, bare_environment, run

PROGRAM = Path(__file__).with_name("program_nested.py")


@pytest.mark.parametrize("threads", [-1, 1])
@pytest.mark.parametrize("split", ["", "1,1"])
def test_nested_collectives_complete(threads: int, split: str) -> None:
    command = [*LAUNCHER, "-np", 2, "--", sys.executable, PROGRAM, threads]
    ended = run(command, timeout=60, env=bare_environment(COMPAT_HVD_NODE_SPLIT=split))
    assert ended.returncode == 0, ended
    assert ended.stdout.count("right") == 2
