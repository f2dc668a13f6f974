"""Random programs of collectives on real ranks against a model: no hang, no wrong value, and the right errors.

hypothesis draws the programs here, in one process; a job of ranks that lives as long as all goes well runs them, so
that all ranks run the same. A failure prints the program and how to run it by itself; ``--hypothesis-seed`` repeats the
draw.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Iterator

import pytest
from children import LAUNCHER, bare_environment
from fuzz_programs import programs
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

PROGRAM = Path(__file__).with_name("program_fuzz.py")
START_SECONDS, PROGRAM_SECONDS = 120, 90

WORLDS: dict[str, tuple[int, dict[str, str]]] = {
    "2": (2, {"HOROVOD_CACHE_CAPACITY": "3"}),
    "3": (3, {"COMPAT_HVD_CHUNK_BYTES": "4096"}),
    "3 as 1,2": (3, {"COMPAT_HVD_NODE_SPLIT": "1,2", "HOROVOD_CACHE_CAPACITY": "3", "COMPAT_HVD_CHUNK_BYTES": "4096"}),
    "4": (4, {"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_CACHE_CAPACITY": "0"}),
    "4 as 2,2": (4, {"COMPAT_HVD_NODE_SPLIT": "2,2", "HOROVOD_FUSION_THRESHOLD": "4096"}),
}


class Job:
    """Ranks that wait for programs in a folder."""

    def __init__(self, folder: Path, world: str) -> None:
        self._folder, (self.ranks, self._variables) = folder, WORLDS[world]
        self._launcher: subprocess.Popen[bytes] | None = None
        self._number = 0

    def run(self, program: list[dict]) -> list[str]:
        """Runs the program; returns what was wrong with it. After a fault the next program finds new ranks."""
        limit = PROGRAM_SECONDS
        if self._launcher is None:
            self._start()
            limit += START_SECONDS
        self._hand_over(program)
        faults = self._outcome(limit)
        self._number += 1
        if faults:
            self._kill()
        return faults

    def reproducer(self, program: list[dict]) -> str:
        variables = [f"{name}={value}" for name, value in self._variables.items()]
        command = [*variables, *self._command("FOLDER", "once")]
        return f"FOLDER/program-0.json:\n{json.dumps(program)}\nrun with:\n{' '.join(command)}"

    def close(self) -> None:
        """Ends the ranks; none may fail at the end."""
        if self._launcher is None:
            return
        self._hand_over(None)
        try:
            assert self._launcher.wait(60) == 0, self._log()
        finally:
            self._kill()

    def _command(self, folder: object, *more: str) -> list[str]:
        return [str(word) for word in (*LAUNCHER, "-np", self.ranks, "--", sys.executable, PROGRAM, folder, *more)]

    def _start(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        self._number = 0
        # A mutual wait is a fault here: the sooner it is found, the sooner the program is made small.
        env = bare_environment(TF_CPP_MIN_LOG_LEVEL="3", COMPAT_HVD_DEADLOCK_SECONDS="15", **self._variables)
        with (self._folder / "log").open("wb") as log:
            self._launcher = subprocess.Popen(
                self._command(self._folder), env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _hand_over(self, program: object) -> None:
        path = self._folder / f"program-{self._number}.json"
        path.with_suffix(".part").write_text(json.dumps(program))
        path.with_suffix(".part").rename(path)

    def _outcome(self, limit: float) -> list[str]:
        assert self._launcher is not None
        outcomes = [self._folder / f"outcome-{self._number}-{rank}.json" for rank in range(self.ranks)]
        until = time.monotonic() + limit
        while not all(path.exists() for path in outcomes):
            told = "".join(path.read_text() for path in outcomes if path.exists())
            if self._launcher.poll() is not None:
                return [f"the job ended with status {self._launcher.returncode}", told, self._log()]
            if time.monotonic() > until:
                return [f"the program did not end within {limit} s", told, self._log()]
            time.sleep(0.01)
        return [fault for path in outcomes for fault in json.loads(path.read_text())]

    def _log(self) -> str:
        return (self._folder / "log").read_text(errors="backslashreplace")[-20000:]

    def _kill(self) -> None:
        # The launcher's guard ends the ranks.
        if self._launcher is not None:
            self._launcher.kill()
            self._launcher.wait()
        self._launcher = None


@pytest.fixture
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path / "job", request.param)
    yield job
    job.close()


def run_random_programs(job: Job, count: int, derandomize: bool) -> None:
    # Explaining a failure would run some hundred programs more.
    phases = (Phase.generate, Phase.shrink)

    @settings(max_examples=count, derandomize=derandomize, database=None, deadline=None, phases=phases)
    @given(program=st.deferred(lambda: programs(job.ranks)))
    def check(program: list[dict]) -> None:
        faults = job.run(program)
        assert not faults, "\n".join([*faults, job.reproducer(program)])

    check()


@pytest.mark.parametrize("job", ["3 as 1,2"], indirect=True)
def test_some_random_programs(job: Job) -> None:
    run_random_programs(job, 15, derandomize=True)


@pytest.mark.long
@pytest.mark.parametrize("job", WORLDS, indirect=True)
def test_many_random_programs(job: Job) -> None:
    run_random_programs(job, 40, derandomize=False)
