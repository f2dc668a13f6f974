"""compat-hvdrun --restarts: a job that lost a rank is started again."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
from children import LAUNCHER, bare_environment, finish, run, start

LIMIT_S = 120
PROGRAM = Path(__file__).with_name("program_restart.py")
SAY = "import os, sys; print('attempt', os.environ['COMPAT_HVD_RESTART'], flush=True)"


def restarted(count, *words, ranks=2, **keywords):
    return run([*LAUNCHER, "-np", ranks, "--restarts", count, *words], timeout=LIMIT_S, **keywords)


def python(body, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(f"{SAY}\n{body}\n")
    return path


def attempts(text, rank):
    return re.findall(rf"\[{rank}\]<stdout>:attempt (\d+)", text)


def test_until_it_ends_well(tmp_path):
    body = "sys.exit(5 if os.environ['COMPAT_HVD_RESTART'] != '2' and os.environ['OMPI_COMM_WORLD_RANK'] == '1' else 0)"
    ended = restarted(4, python(body, tmp_path))
    assert ended.returncode == 0, ended
    assert attempts(ended.stdout, 1) == ["0", "1", "2"]
    assert "rank 1 ended with status 5" in ended.stderr
    assert re.findall(r"restart (\d) of 4", ended.stderr) == ["1", "2"]


def test_at_most_so_many_times(tmp_path):
    ended = restarted(1, python("sys.exit(7)", tmp_path), ranks=1)
    assert (ended.returncode, attempts(ended.stdout, 0)) == (7, ["0", "1"]), ended


def test_without_the_option_there_is_no_second_attempt(tmp_path):
    ended = run([*LAUNCHER, "-np", 1, python("sys.exit(7)", tmp_path)], timeout=LIMIT_S)
    assert (ended.returncode, attempts(ended.stdout, 0)) == (7, ["0"]), ended


def test_a_signal_ends_it_for_good(tmp_path):
    child = start([*LAUNCHER, "-np", 1, "--restarts", 3, python("import time; time.sleep(60)", tmp_path)])
    assert "attempt 0" in child.stdout.readline()
    time.sleep(0.2)
    child.send_signal(signal.SIGTERM)
    ended = finish(child, timeout=LIMIT_S)
    assert ended.returncode == 128 + signal.SIGTERM, ended
    assert "restart" not in ended.stderr


def test_what_cannot_be_started_is_not_tried_again():
    ended = restarted(3, "no-such-program")
    assert ended.returncode == 2
    assert "restart 1" not in ended.stderr


@pytest.mark.parametrize("count", ["-1", "many"])
def test_a_wrong_number(count):
    ended = restarted(count, "true")
    assert ended.returncode == 2
    assert "number of restarts" in ended.stderr


def test_the_ranks_files_keep_every_attempt(tmp_path):
    ended = restarted(1, "--output-filename", tmp_path / "logs", python("sys.exit(1)", tmp_path), ranks=1)
    assert ended.returncode == 1
    assert (tmp_path / "logs" / "rank.0" / "stdout").read_text() == "attempt 0\nattempt 1\n"


def test_the_commit_file(tmp_path):
    body = "\n".join(
        [
            "path = os.environ['COMPAT_HVD_COMMIT_FILE']",
            "print('had', os.path.exists(path) and open(path).read(), path, flush=True)",
            "open(path, 'w').write(os.environ['COMPAT_HVD_RESTART'])",
            "sys.exit(1)",
        ]
    )
    ended = restarted(1, python(body, tmp_path), ranks=1)
    had = re.findall(r"had (\S+) (\S+)", ended.stdout)
    assert [one[0] for one in had] == ["False", "0"], ended
    assert had[0][1] == had[1][1]
    assert not Path(had[0][1]).exists()
    ended = restarted(0, "--commit-file", tmp_path / "kept", python(body, tmp_path), ranks=1)
    assert re.findall(r"had (\S+) (\S+)", ended.stdout) == [("False", str(tmp_path / "kept"))], ended
    assert (tmp_path / "kept").exists()


def test_a_monitored_session_resumes_and_ends_with_the_weights_of_an_uninterrupted_run(tmp_path):
    weights = {}
    for plan in ("nobody", "0", "1"):
        directory = tmp_path / plan
        directory.mkdir()
        (directory / "die").write_text(plan)
        environment = bare_environment(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")
        ended = restarted(2, PROGRAM, directory, env=environment)
        assert ended.returncode == 0, ended
        begins = re.findall(r"attempt (\d) begins at step (\d+)", ended.stdout)
        assert begins == [("0", "0")] * 2 + ([] if plan == "nobody" else [("1", "6")] * 2), ended
        finals = re.findall(r"weights (\w+)", ended.stdout)
        assert len(finals) == 2
        assert len(set(finals)) == 1, ended
        weights[plan] = finals[0]
    assert weights["0"] == weights["1"] == weights["nobody"]
