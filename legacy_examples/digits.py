"""Images of digits: the set beside this file, or MNIST as people have it on disk."""

import gzip
import os
import struct
import zipfile
import zlib
from typing import NamedTuple

import numpy as np

SHIPPED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "digits.npz")
PARTS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
BROKEN = (OSError, EOFError, ValueError, KeyError, struct.error, zlib.error, zipfile.BadZipFile)


class Digits(NamedTuple):
    """Images as float32 [count, height, width] from 0 to 1, labels as int64 [count]."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def load(path=None):
    """Reads the four arrays from an mnist.npz file, or from a folder with one or with the four IDX files (or .gz).

    Without a path the digits that ship with the examples are read.

    Raises:
        FileNotFoundError: ``path`` or a file in it is missing.
        ValueError: a file is damaged or holds something else; the message names it.
    """
    path = path or SHIPPED
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"{path} does not exist; give an mnist.npz file or a folder with the IDX files of MNIST"
        )
    if os.path.isdir(path) and os.path.exists(os.path.join(path, "mnist.npz")):
        path = os.path.join(path, "mnist.npz")
    arrays = [read_idx(find(path, part)) for part in PARTS] if os.path.isdir(path) else read_npz(path)
    return Digits(*prepare(arrays[:2], path), *prepare(arrays[2:], path))


def find(folder, part):
    """Returns the file that holds ``part``: the name varies by a dot and by .gz."""
    names = [name + end for name in (part, part.replace("-idx", ".idx")) for end in ("", ".gz")]
    for name in names:
        if os.path.exists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    raise FileNotFoundError(f"{folder} holds neither mnist.npz nor {', '.join(names[:-1])} or {names[-1]}")


def read_idx(path):
    """Returns the uint8 array of one IDX file: two zero bytes, type 8, the number of dimensions, then their sizes."""
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as stream:
            content = stream.read()
        zeros, kind, rank = struct.unpack_from(">HBB", content)
        if (zeros, kind) != (0, 8):
            raise ValueError("it does not begin like an IDX file of bytes")
        shape = struct.unpack_from(f">{rank}I", content, 4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)
    except BROKEN as error:
        raise ValueError(f"{path} is damaged or no IDX file: {error}") from error


def read_npz(path):
    """Returns the four arrays of an mnist.npz file."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return [archive[name] for name in ARRAYS]
    except BROKEN as error:
        raise ValueError(f"{path} is damaged or not laid out like mnist.npz: {error}") from error


def prepare(pair, path):
    """Scales the images to 0 … 1 and checks that there is one label from 0 to 9 for each."""
    images, labels = pair
    if images.ndim != 3 or labels.shape != images.shape[:1] or images.size == 0:
        raise ValueError(f"{path}: images of shape {images.shape} do not fit labels of shape {labels.shape}")
    if labels.max() > 9:
        raise ValueError(f"{path}: a label is {labels.max()}, but digits end at 9")
    return (images / max(images.max(), 1)).astype(np.float32), labels.astype(np.int64)


def batches(images, labels, batch_size, rank, size, seed):
    """Yields this rank's share of one global batch after another, forever.

    All ranks shuffle alike, so that together they see what one process with ``batch_size * size`` would see.
    """
    order = np.random.RandomState(seed)
    wanted = batch_size * size
    waiting = np.empty(0, np.int64)
    while True:
        while len(waiting) < wanted:
            waiting = np.concatenate([waiting, order.permutation(len(labels))])
        mine, waiting = waiting[:wanted][rank::size], waiting[wanted:]
        yield images[mine], labels[mine]
