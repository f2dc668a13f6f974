"""Training that is started anew after an internal error, and that ends clearly where it cannot be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Sequence

import pytest
from children import LAUNCHER, Ended, bare_environment, run

PROGRAM = Path(__file__).with_name("program_elastic.py")
RANKS = 2
# Each of 6 steps, number s, adds the sum over the ranks of r + 1 + s; the weight of rank 0 begins as 0.
TOTAL = float(sum(rank + 1 + step for step in range(6) for rank in range(RANKS)))


def train(way: str, mode: str, options: Sequence[str] = (), **env: str) -> Ended:
    command = [*LAUNCHER, "-np", RANKS, *options, "--", sys.executable, PROGRAM, way, mode]
    return run(command, timeout=100, env=bare_environment(TF_CPP_MIN_LOG_LEVEL="3", **env))


def assert_trained(ended: Ended, resets: int = RANKS) -> None:
    assert ended.returncode == 0, str(ended)
    assert ended.stdout.count(f"trained: {TOTAL} after step 6") == RANKS, str(ended)
    assert ended.stdout.count(" reset") == resets, str(ended)


@pytest.mark.parametrize(("mode", "split"), [("eager", ""), ("session", "1,1")])
def test_the_last_commit_is_where_everybody_goes_on(mode: str, split: str) -> None:
    """The last rank raises at step 3; the others meet its absence in the next collective."""
    ended = train("recover", mode, COMPAT_HVD_NODE_SPLIT=split)
    assert_trained(ended)
    committed = float(sum(rank + 1 + step for step in range(2) for rank in range(RANKS)))
    assert ended.stdout.count(f"starts at step 2 with {committed}") == RANKS, str(ended)


def test_ranks_that_wait_for_each_other_start_anew() -> None:
    assert_trained(train("stuck", "eager", COMPAT_HVD_DEADLOCK_SECONDS="3"))


@pytest.mark.long
def test_an_interrupt_keeps_what_was_not_committed() -> None:
    ended = train("interrupt", "eager")
    assert_trained(ended)
    assert ended.stdout.count("starts at step 3") == RANKS, str(ended)


def test_an_error_that_comes_back_ends_the_job() -> None:
    ended = train("hopeless", "eager")
    assert ended.returncode != 0
    assert "never works" in ended.stdout, str(ended)
    assert "4 failures" in ended.stdout, str(ended)


def test_a_rank_that_has_ended_is_not_waited_for() -> None:
    ended = train("ended", "eager")
    assert ended.returncode != 0, str(ended)
    assert "another rank has ended and will not come" in ended.stdout, str(ended)
    assert "compat-hvdrun --restarts" in ended.stdout


@pytest.mark.long
def test_process_sets_given_to_init_are_there_again() -> None:
    ended = train("set", "eager")
    assert_trained(ended)
    assert ended.stdout.count("finds the set of 1 again") == RANKS, str(ended)


def test_a_job_that_is_started_again_begins_with_the_last_commit() -> None:
    """The last rank is killed; compat-hvdrun starts all again, and rank 0 finds the commit in a file."""
    ended = train("die", "session", ["--restarts", "1"])
    assert_trained(ended, resets=0)
    assert ended.stdout.count("starts at step 2 with") == RANKS, str(ended)
