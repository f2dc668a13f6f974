"""Rank 0 restores, the others get its bytes; a run that starts at its limit makes one step (BR-06)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from children import LAUNCHER, run

PROGRAM = Path(__file__).with_name("program_restore.py")
RANKS = 2


def train(folder):
    """Runs the program once; returns for each rank what it reported: (start, end, number of steps)."""
    ended = run([*LAUNCHER, "-np", RANKS, "--", sys.executable, PROGRAM, folder], timeout=120)
    assert ended.returncode == 0, ended
    output = ended.stdout
    return [
        (
            re.search(rf"rank {rank} start: (step .*)", output).group(1),
            re.search(rf"rank {rank} end: (step .*)", output).group(1),
            int(re.search(rf"rank {rank} made (\d+) steps", output).group(1)),
        )
        for rank in range(RANKS)
    ]


def test_restore_on_rank_0_then_broadcast_then_retrain_at_the_limit(tmp_path):
    first = train(tmp_path)
    assert first[0] == first[1]
    start, end, steps = first[0]
    assert start.startswith("step 0, 6 globals")
    assert end.startswith("step 5, 6 globals")
    assert steps == 5

    second = train(tmp_path)
    assert second[0] == second[1]
    restart, last, more = second[0]
    assert restart == end
    assert last.startswith("step 6, 6 globals")
    assert more == 1

    assert sorted(path.name for path in tmp_path.iterdir()) == ["cwd0", "cwd1", "saved"]
    assert list((tmp_path / "cwd0").iterdir()) == list((tmp_path / "cwd1").iterdir()) == []
    assert (tmp_path / "saved" / "checkpoint").exists()
