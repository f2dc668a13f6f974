"""A step whose collectives alternate between overlapping process sets, and what an idle engine costs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from children import LAUNCHER, bare_environment, run

PROGRAM = Path(__file__).with_name("program_sets.py")


@pytest.mark.parametrize("split", ["", "1,2"])
def test_overlapping_sets_are_right_and_idle_engines_are_idle(split: str) -> None:
    env = bare_environment(COMPAT_HVD_NODE_SPLIT=split, COMPAT_HVD_CHUNK_BYTES="65536")
    ended = run([*LAUNCHER, "-np", 3, "--", sys.executable, PROGRAM], timeout=120, env=env)
    assert ended.returncode == 0, ended
    shares = [float(share) for share in re.findall(r"right, idle share (\S+)", ended.stdout)]
    assert len(shares) == 3, ended
    assert max(shares) < 0.05, shares
