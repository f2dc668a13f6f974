"""Runs the engine's C++ tests: many engines in one process, without threads and MPI, on the library as it was built."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "compat_hvd"
LIMIT_S = 120


def cases() -> list[tuple[str, str]]:
    """The (program, case) pairs, read from the table in each program's main."""
    found = []
    for source in sorted(HERE.glob("*.cc")):
        table = source.read_text().split("int main(", 1)[1]
        found += [(source.stem, name) for name in re.findall(r'\{"(\w+)",', table)]
    return found


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("engine")
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    flags = ["-std=c++17", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror"]
    library = [str(PACKAGE / "_engine.so"), f"-Wl,-rpath,{PACKAGE}"]
    built = {}
    for source in sorted(HERE.glob("*.cc")):
        built[source.stem] = folder / source.stem
        subprocess.run([*compiler, *flags, str(source), *library, "-o", str(built[source.stem])], check=True)
    return built


def test_every_case_is_listed(programs: dict[str, Path]) -> None:
    for name, program in programs.items():
        listed = subprocess.run([program, "list"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
        assert listed == [case for source, case in cases() if source == name]


@pytest.mark.parametrize(("program", "case"), cases())
def test_case(programs: dict[str, Path], program: str, case: str) -> None:
    outcome = subprocess.run([programs[program], case], timeout=LIMIT_S, stderr=subprocess.PIPE, text=True)
    assert outcome.returncode == 0, outcome.stderr
