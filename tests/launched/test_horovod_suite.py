""".ci/test-horovod with a small suite of our own: what it counts, and what it does with a test that hangs."""

from __future__ import annotations

import sys
import textwrap
import time

import pytest
from children import ROOT, bare_environment, run

SCRIPT = ROOT / ".ci" / "test-horovod"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="only in a checkout")

ENDINGS = """
    import os
    import pytest
    import horovod.common.util
    from common import RANK

    def test_passes():
        assert horovod.common.util.__name__ == "compat_hvd.common.util"

    def test_fails_on_one_rank():
        assert RANK == 0, "rank one is wrong"

    def test_is_skipped():
        pytest.skip("not today")

    @pytest.fixture
    def broken():
        yield
        raise RuntimeError("teardown is broken")

    def test_fails_afterwards(broken):
        pass
"""
HANGS = """
    import time
    from common import RANK

    def test_before():
        pass

    def test_hangs():
        if RANK == 1:
            time.sleep(1000)
"""
DYNAMIC = "import os\n\ndef test_knob():\n    assert os.environ['HOROVOD_DYNAMIC_PROCESS_SETS'] == '1'\n"


@pytest.fixture
def suite(tmp_path):
    """Makes the folders of a checkout of Horovod from the given files; returns what runs the script on it."""
    for name in ("parallel", "utils"):
        (tmp_path / "test" / name).mkdir(parents=True)
    (tmp_path / "test/utils/common.py").write_text("import os\nRANK = int(os.environ['OMPI_COMM_WORLD_RANK'])\n")

    def judge(files, *options):
        for name, body in files.items():
            (tmp_path / "test" / "parallel" / name).write_text(textwrap.dedent(body))
        return run([sys.executable, SCRIPT, tmp_path, *options], timeout=120, env=bare_environment())

    return judge


def table(ended):
    """Passed, skipped and failed tests by file and number of ranks."""
    words = [line.split() for line in ended.stdout.split("\nfile ", 1)[1].splitlines()[1:]]
    return {(row[0], int(row[1])): tuple(map(int, row[2:])) for row in words if row[0].endswith(".py")}


def test_outcomes_are_joined_over_the_ranks(suite):
    ended = suite({"test_tensorflow.py": ENDINGS}, "--ranks", "2")
    assert ended.returncode == 1, ended
    assert table(ended) == {("test_tensorflow.py", 2): (1, 1, 2)}
    reasons = [line for line in ended.stdout.splitlines() if line.startswith("at 2 ranks: ")]
    assert len(reasons) == 3, reasons
    assert "test_fails_on_one_rank on rank 1 in call: AssertionError: rank one is wrong" in ended.stdout
    assert "test_fails_afterwards on rank 0 in teardown: RuntimeError: teardown is broken" in ended.stdout


def test_what_passes_is_a_success_at_each_number_of_ranks(suite):
    ended = suite({"test_tensorflow_process_sets_dynamic.py": DYNAMIC}, "--ranks", "1", "2")
    assert ended.returncode == 0, ended
    assert set(table(ended).values()) == {(1, 0, 0)}
    assert len(table(ended)) == 2


def test_a_hanging_test_is_ended_and_named(suite):
    began = time.monotonic()
    ended = suite({"test_process_sets_static.py": HANGS}, "--ranks", "2", "--limit", "15")
    assert time.monotonic() - began < 60
    assert ended.returncode == 1
    assert table(ended) == {("test_process_sets_static.py", 2): (1, 0, 1)}
    assert "test_hangs on rank 1 did not end" in ended.stdout


@pytest.mark.parametrize("body", ["import missing_module\n", "import os\nos._exit(3)\n"])
def test_a_file_that_cannot_be_loaded_has_failed(suite, body):
    ended = suite({"test_tensorflow.py": body}, "--ranks", "2")
    assert ended.returncode == 1, ended
    assert table(ended)["test_tensorflow.py", 2][2] == 1


def test_usage(suite):
    ended = run([sys.executable, SCRIPT], timeout=60, env=bare_environment())
    assert ended.returncode == 2
    assert ended.stderr.startswith("usage: make test-horovod SUITE=DIR")
    assert suite({}).returncode == 2
