"""What a user reads when TensorFlow is missing or too old."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIMIT_S = 60

BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "tensorflow":
            raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")

sys.meta_path.insert(0, Blocker())
"""

OLD = """
import sys
import types

old = types.ModuleType("tensorflow")
old.__version__ = "{version}"
sys.modules["tensorflow"] = old
"""


def import_after(preparation):
    """Imports the package in a child whose Python has been prepared; returns the last line of its traceback."""
    code = preparation + "\nimport compat_hvd.tensorflow\n"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 1
    return done.stdout.strip().splitlines()[-1]


def test_a_missing_tensorflow_is_named_with_the_cure():
    message = import_after(BLOCKER)
    assert message.startswith("ImportError: ")
    assert "2.13 or newer" in message
    assert 'pip install "compat_hvd[tensorflow-cpu]"' in message


@pytest.mark.parametrize("version", ["1.15.5", "2.4.0", "2.12.1"])
def test_an_old_tensorflow_is_named_with_the_cure(version):
    message = import_after(OLD.format(version=version))
    assert message.startswith("ImportError: ")
    assert f"found {version}" in message
    assert "2.13 or newer" in message
    assert "pip install" in message


def test_the_package_itself_loads_neither_tensorflow_nor_mpi():
    code = "import sys, compat_hvd; print(compat_hvd.__version__, {'tensorflow', 'mpi4py', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True)
    assert done.stdout.split(maxsplit=1)[1].strip() == "set()"
