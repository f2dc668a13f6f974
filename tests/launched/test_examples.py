"""Each example end to end, as a user starts it: the launcher, two ranks, real data."""

from __future__ import annotations

import re
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from children import LAUNCHER, ROOT, bare_environment, run

import cifar
import digits

EXAMPLES = Path(digits.__file__).parent
LIMIT_S = 120
SCRIPTS = ("mnist_session.py", "mnist_monitored.py")


def launch(script, *arguments, ranks=2):
    """Runs a script under the launcher; returns its status and all that it printed."""
    command = [*LAUNCHER, "-np", ranks, "--", sys.executable, script, *arguments]
    ended = run(command, timeout=LIMIT_S, env=bare_environment(TF_CPP_MIN_LOG_LEVEL="2"))
    return ended.returncode, ended.stdout + ended.stderr


def train(script, *arguments, ranks=2):
    """Runs an example that is expected to end well; returns what it printed."""
    status, output = launch(EXAMPLES / script, *arguments, ranks=ranks)
    assert status == 0, output
    return output


def accuracies(output):
    return [float(text) for text in re.findall(r"final accuracy: ([\d.]+)", output)]


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_example_learns_the_digits(script, tmp_path):
    output = train(script, "--checkpoint-dir", tmp_path / "model")
    (accuracy,) = accuracies(output)
    assert accuracy >= 0.95
    progress = re.findall(r"step (\d+)/300  loss (\d+\.\d+)  (\d+) images/s", output)
    steps = [int(step) for step, _, _ in progress]
    assert len(steps) >= 6
    assert steps == sorted(set(steps)), "only one rank prints"
    assert float(progress[-1][1]) < float(progress[0][1])
    assert all(int(rate) > 0 for _, _, rate in progress)
    assert (tmp_path / "model" / "checkpoint").read_text().count("model.ckpt-300") >= 1


@pytest.mark.parametrize("script", SCRIPTS)
def test_two_ranks_train_as_one_process_on_the_whole_batch(script, tmp_path):
    common = ["--optimizer", "sgd", "--seed", "3"]
    both = [*common, "--steps", 20, "--batch-size", 16, "--learning-rate", 0.05]
    train(script, *both, "--save-weights", tmp_path / "rank{rank}.npz")
    alone = [*common, "--steps", 10, "--batch-size", 32, "--learning-rate", 0.1]
    train(script, *alone, "--save-weights", tmp_path / "alone.npz", ranks=1)
    first, second, single = (np.load(tmp_path / f"{name}.npz") for name in ("rank0", "rank1", "alone"))
    assert len(single.files) == 8
    for name in single.files:
        assert first[name].tobytes() == second[name].tobytes()
        np.testing.assert_allclose(first[name], single[name], rtol=0, atol=1e-5)


LESS_USED = [pytest.param(name, marks=pytest.mark.long) for name in ("rmsprop", "adagrad")]


@pytest.mark.parametrize("optimizer", ["momentum", *LESS_USED])
def test_other_optimizers_keep_the_ranks_equal(optimizer, tmp_path):
    arguments = ["--optimizer", optimizer, "--steps", 10, "--save-weights", tmp_path / "rank{rank}.npz"]
    train("mnist_session.py", *arguments)
    first, second = (np.load(tmp_path / f"rank{rank}.npz") for rank in (0, 1))
    assert all(first[name].tobytes() == second[name].tobytes() for name in first.files)


def test_training_goes_on_from_the_checkpoint_of_rank_0(tmp_path):
    arguments = ["--checkpoint-dir", tmp_path / "model", "--log-every", 1]
    train("mnist_monitored.py", *arguments, "--steps", 20)
    more = train("mnist_monitored.py", *arguments, "--steps", 30)
    assert [int(step) for step in re.findall(r"step (\d+)/15", more)] == [11, 12, 13, 14, 15]
    # At its limit a restored run still makes one step, on every rank, and ends.
    last = train("mnist_monitored.py", *arguments, "--steps", 30)
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
        train("mnist_session.py", "--steps", 40, "--log-every", 20, *data) for data in ([], ["--data", tmp_path])
    ]
    assert accuracies(outputs[0]) == accuracies(outputs[1]) != []


@pytest.mark.parametrize("script", SCRIPTS)
def test_broken_data_ends_the_job_with_the_reason(script, tmp_path):
    write_idx(tmp_path)
    (tmp_path / digits.PARTS[0]).write_bytes(b"<html>")
    status, output = launch(EXAMPLES / script, "--data", tmp_path)
    assert status != 0
    assert re.search(r"ValueError: \S+train-images-idx3-ubyte is damaged or no IDX file", output), output
    assert not accuracies(output)


def test_missing_data_ends_the_job_with_the_reason(tmp_path):
    status, output = launch(EXAMPLES / "mnist_session.py", "--data", tmp_path / "nowhere")
    assert status != 0
    assert "nowhere does not exist; give an mnist.npz file or a folder" in output


@pytest.mark.parametrize("gradients", ["sparse", "dense"])
def test_word_vectors_are_learned_and_equal_on_the_ranks(gradients, tmp_path):
    arguments = ["--steps", 400, "--log-every", 50, "--save-vectors", tmp_path / "rank{rank}.npz"]
    output = train("word2vec_session.py", *arguments, *(["--sparse-as-dense"] if gradients == "dense" else []))
    losses = [float(text) for text in re.findall(r"step \d+/200  loss ([\d.]+)", output)]
    assert len(losses) == 4
    assert losses[-1] < 0.7 * losses[0]
    assert len(re.findall(r"near \w+: (?:\w+, ){4}\w+", output)) == 3
    first, second = (np.load(tmp_path / f"rank{rank}.npz")["embeddings"] for rank in (0, 1))
    assert first.tobytes() == second.tobytes()


def test_word_vectors_of_a_text_file(tmp_path):
    text = tmp_path / "text"
    text.write_text("function module " * 500)
    output = train("word2vec_session.py", "--text", text, "--steps", 20, "--negatives", 2)
    assert re.findall(r"near (\w+): (.*)", output) == [("function", "module"), ("module", "function")]


@pytest.mark.parametrize(("model", "gradients"), [("mlp", 6), pytest.param("resnet50", 161, marks=pytest.mark.long)])
def test_the_synthetic_benchmark(model, gradients):
    small = ["--image-size", 32, "--batch-size", 2, "--num-iters", 3, "--num-batches-per-iter", 1]
    output = train("synthetic_benchmark.py", "--model", model, *small)
    assert f"{model}, batch size 2, {gradients} gradients" in output
    (rank,), (all_ranks,) = (
        [float(rate) for rate in re.findall(rf"images/s {whose}: ([\d.]+) ± [\d.]+", output)]
        for whose in ("per rank", "of 2 ranks")
    )
    assert all_ranks == pytest.approx(2 * rank, rel=0.01, abs=0.2)
    assert re.search(r"scaling efficiency: \d+\.\d % of", output)


def test_a_step_in_tf_function_learns_the_digits(tmp_path):
    output = train("tf_function_cifar.py", "--save-weights", tmp_path / "rank{rank}.npz")
    (accuracy,) = accuracies(output)
    assert accuracy >= 0.95
    losses = [float(text) for text in re.findall(r"epoch \d/6  loss ([\d.]+)", output)]
    assert len(losses) == 6
    assert losses[-1] < 0.2 * losses[0]
    first, second = (np.load(tmp_path / f"rank{rank}.npz") for rank in (0, 1))
    assert len(first.files) == 6
    assert all(first[name].tobytes() == second[name].tobytes() for name in first.files)


def write_cifar(folder, count):
    """Writes images whose red is the label, green the row and blue the column, as CIFAR-10's binary files."""
    for name in (*cifar.TRAIN, *cifar.TEST):
        labels = np.arange(count, dtype=np.uint8) % 10
        rows, columns = np.indices([32, 32], np.uint8)
        images = [np.stack([np.full_like(rows, label), rows, columns]) for label in labels]
        records = [np.concatenate([[label], image.reshape(-1)]) for label, image in zip(labels, images)]
        (folder / name).write_bytes(np.concatenate(records).astype(np.uint8).tobytes())


def test_cifar_files(tmp_path):
    write_cifar(tmp_path, 20)
    data = cifar.load(tmp_path)
    assert data.x_train.shape == (100, 32, 32, 3)
    assert data.x_test.shape == (20, 32, 32, 3)
    assert data.y_test.tolist() == [*range(10)] * 2
    np.testing.assert_allclose(255 * data.x_train[7, 3, 5], [7, 3, 5], rtol=1e-6)
    (tmp_path / "data_batch_2.bin").write_bytes(b"<html>")
    with pytest.raises(ValueError, match=r"data_batch_2\.bin holds 6 bytes, not records of 3073"):
        cifar.load(tmp_path)


def test_the_example_of_the_readme_prints_what_the_readme_says(tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code, printed = re.search(r"```python\n(.*?)```.*?```\n(.*?)```", text, flags=re.DOTALL).groups()
    script = tmp_path / "line.py"
    script.write_text(code)
    status, output = launch(script)
    assert status == 0, output
    assert sorted(re.findall(r"rank \d of .*", output)) == sorted(re.findall(r"rank \d of .*", printed)) != []


def test_keras_learns_the_digits_with_its_callbacks(tmp_path):
    arguments = ["--checkpoint-dir", tmp_path / "model", "--save-weights", tmp_path / "rank{rank}.npz"]
    output = train("keras_mnist.py", *arguments)
    (accuracy,) = accuracies(output)
    assert accuracy >= 0.95
    first, second = (np.load(tmp_path / f"rank{rank}.npz") for rank in (0, 1))
    assert len(first.files) == 8
    assert all(first[name].tobytes() == second[name].tobytes() for name in first.files)
    assert len(re.findall(r"val_accuracy: [\d.]+", output)) == 8, "only one rank prints"
    assert output.count("finished gradual learning rate warmup to 0.004") == 1
    assert (tmp_path / "model" / "model-8.keras").exists()
