"""Nothing hangs silently: mutual waits and stalls end with an error on every rank, long steps and late ranks do not."""

from __future__ import annotations

import sys
from pathlib import Path

from children import LAUNCHER, Ended, bare_environment, run

PROGRAM = Path(__file__).with_name("program_waiting.py")


def ranks(case: str, **env: str) -> Ended:
    command = [*LAUNCHER, "-np", 2, "--", sys.executable, PROGRAM, case]
    return run(command, timeout=100, env=bare_environment(**env))


def lines_of(ended: Ended, rank: int) -> list[str]:
    return [line.split(":", 1)[1] for line in ended.stdout.splitlines() if f"rank {rank} after" in line]


def test_a_step_that_fails_in_another_op_does_not_hang_the_others() -> None:
    ended = ranks("step_fails_elsewhere", COMPAT_HVD_DEADLOCK_SECONDS="5")
    assert ended.returncode == 0, ended
    (first,), (second,) = lines_of(ended, 0), lines_of(ended, 1)
    assert "raised UnknownError" in first
    assert "ranks 0, 1 wait for each other" in first
    assert "on purpose" in second
    assert "ranks 0, 1 wait for each other" in ended.stderr  # the warning that comes before


def test_ranks_that_compute_are_not_taken_for_a_deadlock() -> None:
    ended = ranks("opposite_orders_with_work_between", COMPAT_HVD_DEADLOCK_SECONDS="5")
    assert ended.returncode == 0, ended
    for rank in (0, 1):
        (line,) = lines_of(ended, rank)
        assert "gave [3.0, 3.0]" in line


def test_past_the_stall_limit_every_rank_gets_an_error_and_the_job_goes_on() -> None:
    ended = ranks("limit", HOROVOD_STALL_CHECK_TIME_SECONDS="2", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="6")
    assert ended.returncode == 0, ended
    assert "Missing ranks:" in ended.stderr
    assert "1: [lonely]" in ended.stderr
    for rank in (0, 1):
        lonely, good = lines_of(ended, rank)
        assert "raised UnknownError" in lonely
        assert "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS" in lonely
        assert "gave [3.0]" in good


def test_a_death_is_no_normal_end_for_a_monitored_session() -> None:
    ended = ranks("kill_under_monitored_session")
    assert ended.returncode != 0, ended
    assert "for the end of its work" not in ended.stdout
