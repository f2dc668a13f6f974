"""Collectives leave nothing behind in memory, good ones and those with an error."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from children import LAUNCHER, bare_environment, run

PROGRAM = Path(__file__).with_name("program_memory.py")
LIMIT = 5_000_000
CASES = [
    "in_graph",
    "in_eager_mode",
    "of_many_names",
    "of_mismatches",
    "of_mismatches_in_eager_mode",
    "of_groups_and_gathers",
]


@pytest.mark.parametrize("case", CASES)
def test_three_thousand_collectives(case: str) -> None:
    env = bare_environment(TF_CPP_MIN_LOG_LEVEL="3")
    ended = run([*LAUNCHER, "-np", 2, "--", sys.executable, PROGRAM, case], timeout=200, env=env)
    assert ended.returncode == 0, ended
    growth = [int(number) for number in re.findall(r"grew by (-?\d+) bytes", ended.stdout)]
    assert len(growth) == 2, ended
    assert max(growth) <= LIMIT, growth
