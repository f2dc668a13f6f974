"""The engine's C++ tests under the sanitizers for addresses, undefined behaviour and threads."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from test_engine import HERE, PACKAGE, cases

# These need a process of their own; the tests drive the engine without them.
PROCESS_WIDE = {"c_api.cc", "runtime.cc", "blocking.cc", "completion.cc"}
# TSan does not model fences (-Wno-tsan): the wake-up of sleepers, which uses one, is not part of these tests.
SANITIZERS = {"address,undefined": [], "thread": ["-Wno-tsan"]}
LIMIT_S = 600

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", params=SANITIZERS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds every test program, built with the sanitizer."""
    built = tmp_path_factory.mktemp("sanitized")
    compiler = [*shlex.split(os.environ.get("CXX", "g++")), "-std=c++17", "-O1", "-g", "-pthread"]
    flags = [f"-fsanitize={request.param}", "-fno-sanitize-recover=all", *SANITIZERS[request.param]]
    objects = []
    for source in sorted((PACKAGE / "csrc").glob("*.cc")):
        if source.name not in PROCESS_WIDE:
            objects.append(str(built / f"{source.stem}.o"))
            subprocess.run([*compiler, *flags, "-c", str(source), "-o", objects[-1]], check=True)
    for source in sorted(HERE.glob("*.cc")):
        subprocess.run([*compiler, *flags, str(source), *objects, "-o", str(built / source.stem)], check=True)
    return built


@pytest.mark.parametrize(("program", "case"), cases())
def test_case(folder: Path, program: str, case: str) -> None:
    outcome = subprocess.run([folder / program, case], timeout=LIMIT_S, stderr=subprocess.PIPE, text=True)
    assert outcome.returncode == 0, outcome.stderr
