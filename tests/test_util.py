"""The small functions of compat_hvd.tensorflow.util and gradient compression."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import compat_hvd.tensorflow as hvd
from compat_hvd.common import native


@pytest.mark.parametrize(
    ("count", "parts", "lengths"), [(7, 3, [3, 2, 2]), (4, 2, [2, 2]), (2, 4, [1, 1, 0, 0]), (0, 1, [0])]
)
def test_split_list(count, parts, lengths):
    split = hvd.split_list(list(range(count)), parts)
    assert [len(part) for part in split] == lengths
    assert [element for part in split for element in part] == list(range(count))


def test_powers_of_two():
    assert [n for n in range(-2, 20) if hvd.check_num_rank_power_of_2(n)] == [1, 2, 4, 8, 16]


def test_references_of_variables():
    a, b = tf.Variable(1.0), tf.Variable(2.0)
    references = hvd.vars_to_refs([a, [b, None]])
    assert isinstance(hash(references), int)
    back = hvd.refs_to_vars(references)
    assert back[0] is a
    assert back[1][0] is b
    assert back[1][1] is None


def test_cache_tells_eager_from_graph_mode():
    calls = []
    remembered = hvd._cache(lambda *args, **kwargs: calls.append((args, kwargs)) or len(calls))
    assert [remembered(1), remembered(1), remembered(2), remembered(1, key=3), remembered(1, key=3)] == [1, 1, 2, 3, 3]
    with tf.Graph().as_default():
        assert remembered(1) == remembered(1) == 4


def test_executing_eagerly():
    assert hvd._executing_eagerly()
    with tf.Graph().as_default():
        assert not hvd._executing_eagerly()
    assert hvd._make_subgraph(lambda x: x + 1)(tf.constant(1)).numpy() == 2


def test_check_extension(monkeypatch):
    hvd.check_extension("compat_hvd.tensorflow", "HOROVOD_WITH_TENSORFLOW", __file__, "mpi_lib")
    monkeypatch.setattr(native, "tensorflow_library_path", lambda: "/nowhere/library.so")
    with pytest.raises(ImportError, match=r"compat_hvd\.tensorflow.*/nowhere/library\.so"):
        hvd.check_extension("compat_hvd.tensorflow", "HOROVOD_WITH_TENSORFLOW", __file__)


def test_average_backwards_compatibility():
    assert hvd.handle_average_backwards_compatibility(None, None) == hvd.Average
    assert hvd.handle_average_backwards_compatibility(hvd.Max, None) == hvd.Max
    with pytest.warns(DeprecationWarning, match="average"):
        assert hvd.handle_average_backwards_compatibility(None, False) == hvd.Sum
    with pytest.raises(ValueError, match="supersedes"):
        hvd.handle_average_backwards_compatibility(hvd.Sum, True)


@pytest.mark.parametrize(
    ("dtype", "sent"),
    [(tf.float32, tf.float16), (tf.float64, tf.float16), (tf.bfloat16, tf.bfloat16), (tf.int32, tf.int32)],
)
def test_float16_compression(dtype, sent):
    tensor = tf.cast([1.0, 2.0], dtype)
    compressed, context = hvd.Compression.fp16.compress(tensor)
    assert compressed.dtype == sent
    restored = hvd.Compression.fp16.decompress(compressed, context)
    assert restored.dtype == dtype
    assert np.asarray(restored, np.float64).tolist() == [1.0, 2.0]


def test_no_compression():
    tensor = tf.constant([1.0])
    compressed, context = hvd.Compression.none.compress(tensor)
    assert hvd.Compression.none.decompress(compressed, context) is tensor
