"""Counts beyond 2^31."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from children import LAUNCHER, bare_environment, run

PROGRAM = Path(__file__).with_name("program_large.py")
GIB = 1 << 30

# What the two ranks need together: inputs, outputs, and TensorFlow itself.
NEEDED = {"allreduce": 8, "allgather": 8, "broadcast": 7, "reducescatter": 8, "alltoall": 8}  # GiB


def available_memory() -> int:
    (found,) = re.findall(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), flags=re.MULTILINE)
    return int(found) << 10


@pytest.mark.long
@pytest.mark.parametrize("split", ["", "1,1"])
@pytest.mark.parametrize("case", NEEDED)
def test_more_than_two_gib(case: str, split: str) -> None:
    available = available_memory() / GIB
    if available < NEEDED[case]:
        pytest.skip(f"needs {NEEDED[case]} GiB of memory; {available:.1f} GiB are available")
    env = bare_environment(TF_CPP_MIN_LOG_LEVEL="3", COMPAT_HVD_NODE_SPLIT=split)
    ended = run([*LAUNCHER, "-np", 2, "--", sys.executable, PROGRAM, case], timeout=400, env=env)
    assert ended.returncode == 0, ended
    assert len(re.findall(r"bytes of \w+ are right", ended.stdout)) == 2, ended
