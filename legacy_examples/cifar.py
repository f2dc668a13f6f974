"""CIFAR-10 as people have it on disk, in its binary version."""

import os

import numpy as np

import digits

RECORD = 1 + 3 * 32 * 32
TRAIN = ["data_batch_%d.bin" % number for number in range(1, 6)]
TEST = ["test_batch.bin"]


def read(path):
    """Returns images (uint8 [count, 32, 32, 3]) and labels (uint8 [count]) of one file of records."""
    content = np.fromfile(path, np.uint8)
    if content.size == 0 or content.size % RECORD:
        raise ValueError("%s holds %d bytes, not records of %d each" % (path, content.size, RECORD))
    records = content.reshape(-1, RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0]


def load(folder=None):
    """Reads the folder cifar-10-batches-bin; without one, the digits that ship with the examples.

    Returns:
        ``digits.Digits`` with images of shape [count, height, width, channels].

    Raises:
        FileNotFoundError, ValueError: a file is missing or holds something else; the message names it.
    """
    if folder is None:
        shipped = digits.load()
        return shipped._replace(x_train=shipped.x_train[..., np.newaxis], x_test=shipped.x_test[..., np.newaxis])
    parts = []
    for names in (TRAIN, TEST):
        images, labels = zip(*(read(os.path.join(folder, name)) for name in names))
        parts += [(np.concatenate(images) / 255).astype(np.float32), np.concatenate(labels).astype(np.int64)]
    return digits.Digits(*parts)
