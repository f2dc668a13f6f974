"""Each example end to end, as a user starts it: the launcher, two ranks, real data."""

from __future__ import annotations

import os
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import digits

EXAMPLES = Path(digits.__file__).parent
LIMIT_S = 120
SCRIPTS = ("mnist_session.py", "mnist_monitored.py")


def launch(script, *arguments, ranks=2, folder):
    """Runs an example under the launcher; returns its status and all that it printed."""
    launcher = [sys.executable, "-m", "compat_hvd.launcher", "-np", str(ranks), "--"]
    job = subprocess.Popen(
        [*launcher, sys.executable, str(EXAMPLES / script), *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = job.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        pytest.fail(f"{script} took longer than {LIMIT_S} s and printed:\n{job.communicate()[0]}")
    return job.returncode, output


def train(script, *arguments, ranks=2, folder):
    status, output = launch(script, *arguments, ranks=ranks, folder=folder)
    assert status == 0, output
    return output


def accuracies(output):
    return [float(text) for text in re.findall(r"final accuracy: ([\d.]+)", output)]


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_example_learns_the_digits(script, tmp_path):
    output = train(script, "--checkpoint-dir", tmp_path / "model", folder=tmp_path)
    (accuracy,) = accuracies(output)
    assert accuracy >= 0.95
    progress = re.findall(r"step (\d+)/300  loss (\d+\.\d+)  (\d+) images/s", output)
    steps = [int(step) for step, _, _ in progress]
    assert len(steps) >= 6
    assert steps == sorted(set(steps)), "only one rank prints"
    assert float(progress[-1][1]) < float(progress[0][1])
    assert all(int(rate) > 0 for _, _, rate in progress)
    assert (tmp_path / "model" / "checkpoint").read_text().count("model.ckpt-300") >= 1
    assert [path.name for path in tmp_path.iterdir()] == ["model"], "only rank 0 writes, and only where it was told"


@pytest.mark.parametrize("script", SCRIPTS)
def test_two_ranks_train_as_one_process_on_the_whole_batch(script, tmp_path):
    common = ["--optimizer", "sgd", "--seed", "3"]
    both = [*common, "--steps", 20, "--batch-size", 16, "--learning-rate", 0.05]
    train(script, *both, "--save-weights", tmp_path / "rank{rank}.npz", folder=tmp_path)
    alone = [*common, "--steps", 10, "--batch-size", 32, "--learning-rate", 0.1]
    train(script, *alone, "--save-weights", tmp_path / "alone.npz", ranks=1, folder=tmp_path)
    first, second, single = (np.load(tmp_path / f"{name}.npz") for name in ("rank0", "rank1", "alone"))
    assert len(single.files) == 8
    for name in single.files:
        assert first[name].tobytes() == second[name].tobytes()
        np.testing.assert_allclose(first[name], single[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["momentum", "rmsprop", "adagrad"])
def test_other_optimizers_keep_the_ranks_equal(optimizer, tmp_path):
    arguments = ["--optimizer", optimizer, "--steps", 10, "--save-weights", tmp_path / "rank{rank}.npz"]
    train("mnist_session.py", *arguments, folder=tmp_path)
    first, second = (np.load(tmp_path / f"rank{rank}.npz") for rank in (0, 1))
    assert all(first[name].tobytes() == second[name].tobytes() for name in first.files)


def test_training_goes_on_from_the_checkpoint_of_rank_0(tmp_path):
    arguments = ["--checkpoint-dir", tmp_path / "model", "--log-every", 1]
    train("mnist_monitored.py", *arguments, "--steps", 20, folder=tmp_path)
    more = train("mnist_monitored.py", *arguments, "--steps", 30, folder=tmp_path)
    assert [int(step) for step in re.findall(r"step (\d+)/15", more)] == [11, 12, 13, 14, 15]
    # At its limit a restored run still makes one step, on every rank, and ends.
    last = train("mnist_monitored.py", *arguments, "--steps", 30, folder=tmp_path)
    assert [int(step) for step in re.findall(r"step (\d+)/15", last)] == [16]
    assert "model.ckpt-16" in (tmp_path / "model" / "checkpoint").read_text()


def write_idx(folder):
    """Writes the shipped digits as MNIST's four files."""
    for part, array in zip(digits.PARTS, digits.read_npz(digits.SHIPPED)):
        header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        (folder / part).write_bytes(header + array.tobytes())


def test_idx_files_train_like_the_shipped_digits(tmp_path):
    write_idx(tmp_path)
    outputs = [
        train("mnist_session.py", "--steps", 40, "--log-every", 20, *data, folder=tmp_path)
        for data in ([], ["--data", tmp_path])
    ]
    assert accuracies(outputs[0]) == accuracies(outputs[1]) != []


@pytest.mark.parametrize("script", SCRIPTS)
def test_broken_data_ends_the_job_with_the_reason(script, tmp_path):
    write_idx(tmp_path)
    (tmp_path / digits.PARTS[0]).write_bytes(b"<html>")
    status, output = launch(script, "--data", tmp_path, folder=tmp_path)
    assert status != 0
    assert re.search(r"ValueError: \S+train-images-idx3-ubyte is damaged or no IDX file", output), output
    assert not accuracies(output)


def test_missing_data_ends_the_job_with_the_reason(tmp_path):
    status, output = launch("mnist_session.py", "--data", tmp_path / "nowhere", folder=tmp_path)
    assert status != 0
    assert "nowhere does not exist; give an mnist.npz file or a folder" in output
