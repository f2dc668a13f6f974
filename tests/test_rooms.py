"""The layout of docs/developing.md, kept by reading imports and includes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from graphlib import TopologicalSorter

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "compat_hvd"
NATIVE = PACKAGE / "csrc"

# Each room of the package may import itself and the rooms before it.
ROOMS = ("", "common", "tensorflow", "_keras", "keras", "launcher", "legacy")

# Each floor of the native code may include itself and the floors before it.
FLOORS = (
    {"status", "dtype", "collective", "futex", "thread", "byte_mover", "topology", "wire", "pieces", "json"},
    {"message", "reduce_kernels", "adasum_kernels", "node_memory", "mpi_mover", "timeline_file"},
    {
        "entry",
        "agreement",
        "channel",
        "slots",
        "negotiation",
        "negotiation_table",
        "cache_ids",
        "stall_inspector",
        "fusion",
        "timeline",
    },
    {"coordinator", "control_plane", "execution", "reduction", "adasum", "distribution", "completion"},
    {"engine"},
    {"runtime"},
    {"blocking", "c_api", "tensorflow"},
)

# The only modules that may import what leads out of the package.
GATES = {"mpi4py": {"common/mpi.py"}, "ctypes": {"common/mpi.py", "common/native.py"}}


def python_files(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def imports(path):
    """Full names of the modules that a Python file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports inside the package are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(module):
    """The room of a module of the package, None for a foreign module."""
    parts = module.split(".")
    if parts[0] != "compat_hvd":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else ""


@pytest.mark.parametrize("path", python_files("compat_hvd"), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    here = path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else ""
    allowed = ROOMS[: ROOMS.index(here) + 1]
    wrong = [name for name in imports(path) if room(name) is not None and room(name) not in allowed]
    assert not wrong, f"a module of {here!r} may not import {wrong}"


def test_no_framework_or_mpi_below_its_room():
    roots = {"compat_hvd/common": {"tensorflow", "keras"}, "compat_hvd/launcher": {"tensorflow", "keras", "mpi4py"}}
    for folder, forbidden in roots.items():
        for path in python_files(folder):
            assert not {name.split(".")[0] for name in imports(path)} & forbidden, path


@pytest.mark.parametrize("module", sorted(GATES))
def test_one_gate_per_outside_world(module):
    users = {
        str(path.relative_to(PACKAGE))
        for path in python_files("compat_hvd")
        if module in {name.split(".")[0] for name in imports(path)}
    }
    assert users <= GATES[module]


def test_one_reader_of_the_environment():
    reading = re.compile(r"\bos\.(environ|getenv)\b|\bgetenv\(")
    files = [*python_files("compat_hvd"), *native_files()]
    readers = {str(path.relative_to(PACKAGE)) for path in files if reading.search(path.read_text(encoding="utf-8"))}
    outside_the_launcher = {name for name in readers if not name.startswith("launcher/")}
    assert outside_the_launcher == {"common/config.py"}


@pytest.mark.parametrize("path", python_files("compat_hvd", "legacy_examples"), ids=lambda path: path.name)
def test_the_oldest_python_understands_the_syntax(path):
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))


def native_files():
    return sorted(path for path in NATIVE.rglob("*") if path.suffix in (".h", ".cc"))


def unit(path):
    """A header and its source are one unit; all that touches TensorFlow is one, too."""
    return "tensorflow" if path.parent.name == "tensorflow" else path.stem


def included_units(path):
    names = re.findall(r'^#include "([^"]+)"', path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    targets = [path.parent / name if (path.parent / name).exists() else NATIVE / name for name in names]
    return {unit(target) for target in targets} - {unit(path)}


def floor(name):
    levels = [level for level, names in enumerate(FLOORS) if name in names]
    assert levels, f"{name} stands on no floor of tests/test_rooms.py"
    return levels[0]


@pytest.mark.parametrize("path", native_files(), ids=lambda path: path.name)
def test_includes_go_down(path):
    wrong = {name for name in included_units(path) if floor(name) > floor(unit(path))}
    assert not wrong, f"{unit(path)} may not include {wrong}"


def test_headers_do_not_include_each_other_in_circles():
    headers = [path for path in native_files() if path.suffix == ".h" and unit(path) != "tensorflow"]
    TopologicalSorter({unit(path): included_units(path) for path in headers}).prepare()


def test_neither_tensorflow_nor_mpi_nor_python_headers_are_included():
    foreign = re.compile(r'^#include [<"](tensorflow/|mpi\.h|Python\.h)', flags=re.MULTILINE)
    assert not [path for path in native_files() if foreign.search(path.read_text(encoding="utf-8"))]
