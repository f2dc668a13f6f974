"""The loader of the examples: what people have on disk, and what they have when it is broken."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

import digits


def small_set():
    """Three images and two held-out ones, as uint8 arrays in the order of ``digits.ARRAYS``."""
    images = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
    labels = np.array([3, 1, 4, 1, 5], np.uint8)
    return images[:3], labels[:3], images[3:], labels[3:]


def idx(array):
    """The bytes of an IDX file."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder, names=digits.PARTS, end=""):
    folder.mkdir(exist_ok=True)
    for name, array in zip(names, small_set()):
        content = idx(array)
        (folder / (name + end)).write_bytes(gzip.compress(content) if end else content)
    return folder


def test_the_shipped_digits_are_the_uci_set():
    data = digits.load()
    assert (data.x_train.shape, data.x_test.shape) == ((1437, 8, 8), (360, 8, 8))
    assert (data.x_train.dtype, data.y_train.dtype) == (np.float32, np.int64)
    assert (data.x_train.min(), data.x_train.max()) == (0, 1)
    assert np.bincount(np.concatenate([data.y_train, data.y_test])).tolist() == [
        178, 182, 177, 183, 181, 182, 181, 179, 174, 180,
    ]  # fmt: skip


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("separator", ["-idx", ".idx"])
def test_idx_files_hold_what_was_written(tmp_path, end, separator):
    folder = write_idx(tmp_path / "mnist", [part.replace("-idx", separator) for part in digits.PARTS], end)
    data = digits.load(str(folder))
    images, labels, held_out, _ = small_set()
    np.testing.assert_array_equal(data.y_train, labels)
    np.testing.assert_allclose(data.x_train, images / images.max(), rtol=1e-6)
    assert data.x_test.shape == held_out.shape


def test_npz_is_found_by_file_and_by_folder(tmp_path):
    np.savez(tmp_path / "mnist.npz", **dict(zip(digits.ARRAYS, small_set())))
    for path in (tmp_path, tmp_path / "mnist.npz"):
        np.testing.assert_array_equal(digits.load(str(path)).y_test, [1, 5])


def test_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        digits.load(str(tmp_path / "nowhere"))
    (write_idx(tmp_path / "mnist") / digits.PARTS[3]).unlink()
    with pytest.raises(FileNotFoundError, match=r"mnist holds neither mnist.npz nor t10k-labels-idx1-ubyte"):
        digits.load(str(tmp_path / "mnist"))


def damage_none(content):
    return b""


def damage_cut(content):
    return content[:-2]


def damage_kind(content):
    return content[:2] + b"\x0d" + content[3:]


def damage_text(content):
    return b"<html>not here any more</html>"


@pytest.mark.parametrize("damage", [damage_none, damage_cut, damage_kind, damage_text])
def test_a_damaged_idx_file_is_named(tmp_path, damage):
    folder = write_idx(tmp_path / "mnist")
    victim = folder / digits.PARTS[0]
    victim.write_bytes(damage(victim.read_bytes()))
    with pytest.raises(ValueError, match="train-images-idx3-ubyte is damaged or no IDX file"):
        digits.load(str(folder))


@pytest.mark.parametrize("damage", [damage_none, damage_cut, damage_text, lambda content: content[:20] + b"\xff" * 20])
def test_a_damaged_gzip_file_is_named(tmp_path, damage):
    folder = write_idx(tmp_path / "mnist", end=".gz")
    victim = folder / (digits.PARTS[1] + ".gz")
    victim.write_bytes(damage(victim.read_bytes()))
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte.gz is damaged"):
        digits.load(str(folder))


@pytest.mark.parametrize("damage", [damage_none, damage_cut, damage_text, lambda content: content[: len(content) // 2]])
def test_a_damaged_npz_file_is_named(tmp_path, damage):
    path = tmp_path / "mnist.npz"
    np.savez(path, **dict(zip(digits.ARRAYS, small_set())))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"mnist.npz is damaged or not laid out like mnist.npz"):
        digits.load(str(path))


def test_an_npz_with_other_arrays_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(ValueError, match=r"other.npz .*x_train"):
        digits.load(str(tmp_path / "other.npz"))


def test_labels_that_do_not_fit_are_refused(tmp_path):
    x_train, y_train, x_test, y_test = small_set()
    np.savez(tmp_path / "short.npz", x_train=x_train, y_train=y_train[:2], x_test=x_test, y_test=y_test)
    with pytest.raises(ValueError, match=r"images of shape \(3, 4, 3\) do not fit labels of shape \(2,\)"):
        digits.load(str(tmp_path / "short.npz"))
    np.savez(tmp_path / "large.npz", x_train=x_train, y_train=y_train * 9, x_test=x_test, y_test=y_test)
    with pytest.raises(ValueError, match="a label is 36"):
        digits.load(str(tmp_path / "large.npz"))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_ranks_together_see_the_batches_of_one_process(size):
    images, labels = np.arange(70).reshape(70, 1, 1), np.arange(70)
    alone = digits.batches(images, labels, 30, 0, 1, seed=7)
    shares = [digits.batches(images, labels, 30 // size, rank, size, seed=7) for rank in range(size)]
    for _ in range(9):
        expected, _ = next(alone)
        got = [next(share) for share in shares]
        for x, y in got:
            np.testing.assert_array_equal(x[:, 0, 0], y)
        assert sorted(np.concatenate([y for _, y in got])) == sorted(expected[:, 0, 0])
