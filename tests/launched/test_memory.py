"""Collectives leave nothing behind in memory, good ones and those with an error."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from children import LAUNCHER, bare_environment, run

PROGRAM = Path(__file__).with_name("program_memory.py")
# Bytes. What rank 0 keeps of a name is small: a leak of it would hide below the limit of the others.
LIMITS = {
    "in_graph": 5_000_000,
    "in_eager_mode": 5_000_000,
    "of_many_names": 400_000,
    "of_mismatches": 5_000_000,
    "of_mismatches_in_eager_mode": 5_000_000,
    "of_groups_and_gathers": 5_000_000,
}


SHORT = ("in_graph", "of_many_names", "of_mismatches")


@pytest.mark.parametrize("case", [one if one in SHORT else pytest.param(one, marks=pytest.mark.long) for one in LIMITS])
def test_three_thousand_collectives(case: str) -> None:
    env = bare_environment(TF_CPP_MIN_LOG_LEVEL="3")
    ended = run([*LAUNCHER, "-np", 2, "--", sys.executable, PROGRAM, case], timeout=200, env=env)
    assert ended.returncode == 0, ended
    growth = [int(number) for number in re.findall(r"grew by (-?\d+) bytes", ended.stdout)]
    assert len(growth) == 2, ended
    assert max(growth) <= LIMITS[case], growth
