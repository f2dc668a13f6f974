"""broadcast: every dtype and shape, from each root."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from fed import TRANSFERABLE, run
from world import RANK, SIZE

pytestmark = pytest.mark.node_split

SHAPES = [(), (1,), (0,), (0, 3), (7,), (3, 5), (1000, 301)]


def values(shape, rank, dtype):
    content = (np.arange(int(np.prod(shape))) + rank) % (2 if dtype == tf.bool else 100)
    return content.reshape(shape).astype(dtype.as_numpy_dtype)


@pytest.mark.parametrize("root", range(SIZE))
@pytest.mark.parametrize("dtype", TRANSFERABLE, ids=lambda dtype: dtype.name)
def test_every_dtype_and_shape_from_each_root(hvd, session, dtype, root):
    results = run(lambda feed: [hvd.broadcast(feed(values(s, RANK, dtype), dtype), root) for s in SHAPES])
    for shape, result in zip(SHAPES, results):
        assert np.shape(result) == shape
        assert np.asarray(result).dtype == dtype.as_numpy_dtype
        assert np.array_equal(result, values(shape, root, dtype))


def test_the_input_is_left_alone(hvd, session):
    tensor = tf.compat.v1.placeholder(tf.float32, [100])
    doubled = 2 * tensor
    received, kept = session.run([hvd.broadcast(doubled, SIZE - 1), doubled], {tensor: np.full(100, RANK + 1.0)})
    assert set(received) == {2.0 * SIZE}
    assert set(kept) == {2.0 * (RANK + 1)}


def test_static_shape_is_kept(hvd, session):
    assert hvd.broadcast(tf.zeros([2, 3]), 0).shape.as_list() == [2, 3]
    assert hvd.broadcast(tf.compat.v1.placeholder(tf.float32, [None, 4]), 0).shape.as_list() == [None, 4]


def test_constants_are_sent_in_every_run(hvd, session):
    received = hvd.broadcast(tf.constant(RANK + 5), 0)
    for _ in range(2):
        traced = tf.compat.v1.RunMetadata()
        options = tf.compat.v1.RunOptions(output_partition_graphs=True)
        assert session.run(received, options=options, run_metadata=traced) == 5
        assert "HorovodBroadcast" in [node.op for graph in traced.partition_graphs for node in graph.node]


def test_other_dtypes_are_refused_by_name(hvd, session):
    with pytest.raises(TypeError, match="complex64"):
        hvd.broadcast(tf.constant(1j, tf.complex64), 0)
