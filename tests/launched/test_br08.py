"""Ranks with unequal numbers of steps: the error names the rank that left, and the job fails (BR-08)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from children import LAUNCHER, run

PROGRAM = Path(__file__).with_name("program_unequal.py")


@pytest.mark.parametrize("kind", ["fed", "constant"])
def test_a_rank_that_ends_early_is_an_error_for_the_others(kind):
    ended = run([*LAUNCHER, "-np", 2, "--", sys.executable, PROGRAM, kind], timeout=120)
    assert ended.returncode != 0, ended
    assert "rank 0 done" in ended.stdout, ended
    for number in range(3):
        expected = 2.0 * (1.0 if kind == "constant" else number + 1.0)
        for rank in range(2):
            assert f"rank {rank} reduction {number}: [{expected}]" in ended.stdout, ended
    assert "reduction 3" not in ended.stdout
    assert "rank 1 done" not in ended.stdout
    assert re.search(r"tensorflow\S*\.errors_impl\.\w+Error: .*\brank 0\b", ended.stderr), ended
