"""The exit protocol: however a rank ends, the job ends soon, with a true status, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from children import LAUNCHER, Ended, bare_environment, run

PROGRAM = str(Path(__file__).with_name("program_exit.py"))
# What a failed job may take after its start: a start with TensorFlow takes up to 20 s when two share a core.
LIMIT_S = 50


def end(way: str, others: str, ranks: int = 2, **env: str) -> Ended:
    command = [*LAUNCHER, "-np", ranks, "--", sys.executable, PROGRAM, way, others]
    outcome = run(command, timeout=LIMIT_S, env=bare_environment(**env))
    pids = [int(pid) for pid in re.findall(r"pid (\d+)", outcome.stdout)]
    assert len(pids) == ranks, str(outcome)
    left = [pid for pid in pids if os.path.exists(f"/proc/{pid}") and "program_exit" in command_of(pid)]
    assert not left, f"processes {left} are left behind"
    return outcome


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.parametrize("others", ["reduce", "compute"])
@pytest.mark.parametrize("split", ["", "1,1"])
def test_a_rank_that_raises_ends_the_job(others: str, split: str) -> None:
    outcome = end("raise", others, COMPAT_HVD_NODE_SPLIT=split)
    assert outcome.returncode != 0
    assert "KeyError: 'the reason of rank 1'" in str(outcome)  # its own traceback
    assert "Traceback" in str(outcome)
    assert "done" not in str(outcome)


def test_the_others_are_told_who_raised() -> None:
    outcome = end("raise", "compute")
    assert "rank 1 ended because of an uncaught exception (KeyError: 'the reason of rank 1')" in outcome.stderr


def test_an_excepthook_of_the_script_does_not_hide_the_failure() -> None:
    outcome = end("raise_with_own_excepthook", "compute")
    assert outcome.returncode != 0
    assert "own hook saw KeyError" in str(outcome)


def test_a_thread_stuck_in_a_collective_does_not_hold_the_failure_up() -> None:
    outcome = end("raise_with_stuck_thread", "compute")
    assert outcome.returncode != 0
    assert "KeyError: 'the reason of rank 1'" in str(outcome)


@pytest.mark.parametrize("way", ["kill", "os_exit"])
@pytest.mark.parametrize("others", ["reduce", "compute"])
def test_a_rank_that_vanishes_ends_the_job(way: str, others: str) -> None:
    assert end(way, others).returncode != 0


def test_leaving_early_is_an_error_for_those_who_go_on() -> None:
    outcome = end("sys_exit", "reduce")
    assert outcome.returncode != 0
    assert "UnknownError" in str(outcome)
    assert "rank 1 has left the job (it ended normally after 3 collectives)" in str(outcome)


def test_leaving_early_is_no_error_for_those_who_do_not() -> None:
    outcome = end("sys_exit", "stagger", ranks=3)
    assert outcome.returncode == 0, str(outcome)
    assert outcome.stdout.count("done") == 2


@pytest.mark.parametrize("split", ["", "1,2"])
def test_staggered_normal_ends_are_clean(split: str) -> None:
    outcome = end("none", "stagger", ranks=3, COMPAT_HVD_NODE_SPLIT=split)
    assert outcome.returncode == 0, str(outcome)
    assert outcome.stdout.count("done") == 3


def test_a_forked_child_may_end_without_a_word() -> None:
    outcome = end("fork", "reduce")
    assert outcome.returncode == 0, str(outcome)
    assert outcome.stdout.count("done") == 2
