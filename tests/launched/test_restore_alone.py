"""A checkpoint of aggregated training is read by a program that does not have this package, and the other way round."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from children import LAUNCHER, run

PROGRAM = Path(__file__).with_name("program_aggregated.py")
NAMES = "w global_step beta1_power beta2_power w/Adam w/Adam_1"


def train(folder, last_step, passes, launcher=(*LAUNCHER, "-np", 2, "--")):
    """Returns what each rank had at the start and at the end."""
    ended = run([*launcher, sys.executable, PROGRAM, folder, last_step, passes], timeout=120)
    assert ended.returncode == 0, ended
    found = {when: re.findall(rf"rank \d {when}: (.*)", ended.stdout) for when in ("start", "end")}
    return found["start"], found["end"]


def alone(folder, last_step):
    (start,), (end,) = train(folder, last_step, "alone", launcher=())
    return start, end


def test_checkpoints_go_back_and_forth(tmp_path):
    start, end = train(tmp_path, 4, 2)
    assert len(end) == 2
    assert end[0] == end[1]
    assert end[0].endswith(f" of {NAMES}")
    restored, trained = alone(tmp_path, 6)
    assert restored == end[0] != trained
    start, end = train(tmp_path, 8, 2)
    assert start == [trained, trained]
    assert end[0] == end[1] != trained
