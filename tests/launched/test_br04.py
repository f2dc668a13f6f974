"""Forming the world: without a launcher, and with 1 and 2 ranks (BR-04)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from children import LAUNCHER, run

PROGRAM = Path(__file__).with_name("program_world.py")


@pytest.mark.parametrize("ranks", [None, 1, 2], ids=["no launcher", "1 rank", "2 ranks"])
def test_each_rank_knows_its_world(ranks):
    launcher = [*LAUNCHER, "-np", ranks, "--"] if ranks else []
    ended = run([*launcher, sys.executable, PROGRAM], timeout=120)
    assert ended.returncode == 0, ended
    size = ranks or 1
    for rank in range(size):
        assert f"rank {rank} of {size}: 4 errors before init, operation True, variable [-3.0]" in ended.stdout, ended
    assert ended.stdout.count("errors before init") == size
