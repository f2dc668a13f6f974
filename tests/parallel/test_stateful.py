"""Nothing that TensorFlow does to graphs removes a collective: constants are not folded, equal ops not merged."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from world import RANK, SIZE

v1 = tf.compat.v1

TOTAL = SIZE * (SIZE + 1) / 2

COLLECTIVES = {
    "Allreduce": (lambda hvd, x: hvd.allreduce(x, op=hvd.Sum), [TOTAL] * SIZE),
    "GroupedAllreduce": (lambda hvd, x: hvd.grouped_allreduce([x], op=hvd.Sum)[0], [TOTAL] * SIZE),
    "Allgather": (lambda hvd, x: hvd.allgather(x[:1]), list(range(1, SIZE + 1))),
    "GroupedAllgather": (lambda hvd, x: hvd.grouped_allgather([x[:1]])[0], list(range(1, SIZE + 1))),
    "Broadcast": (lambda hvd, x: hvd.broadcast(x, SIZE - 1), [SIZE] * SIZE),
    "Alltoall": (lambda hvd, x: hvd.alltoall(x), list(range(1, SIZE + 1))),
    "Reducescatter": (lambda hvd, x: hvd.reducescatter(x, op=hvd.Sum), [TOTAL]),
    "GroupedReducescatter": (lambda hvd, x: hvd.grouped_reducescatter([x], op=hvd.Sum)[0], [TOTAL]),
}


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_constants_and_equal_ops(hvd, session, kind):
    build, expected = COLLECTIVES[kind]
    x = tf.constant([RANK + 1.0] * SIZE)
    twins = [build(hvd, x), build(hvd, x)]
    for _ in range(2):
        traced = v1.RunMetadata()
        options = v1.RunOptions(output_partition_graphs=True)
        values = session.run(twins, options=options, run_metadata=traced)
        assert np.array_equal(values, [expected] * 2)
        nodes = [node.op for graph in traced.partition_graphs for node in graph.node]
        assert nodes.count(f"Horovod{kind}") == 2
