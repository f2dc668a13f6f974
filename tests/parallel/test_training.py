"""Training on n ranks equals training in one process on the concatenated batch; and this test can fail."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from world import RANK, SIZE, allgather, equal_on_all_ranks

v1 = tf.compat.v1
pytestmark = pytest.mark.node_split

STEPS, BATCH, INPUTS, HIDDEN, CLASSES = 20, 6, 8, 16, 4


def batches(merged=1):
    """For each step the inputs and labels of all ranks, (n * BATCH, INPUTS) and (n * BATCH,); or of several steps."""
    random = np.random.RandomState(7)
    for _ in range(STEPS // merged):
        drawn = [
            (random.standard_normal((SIZE * BATCH, INPUTS)), random.randint(CLASSES, size=SIZE * BATCH))
            for _ in range(merged)
        ]
        yield tuple(np.concatenate(parts) for parts in zip(*drawn))


def network(seed):
    """A classifier of two layers; its initial weights depend on the seed."""
    random = np.random.RandomState(seed)
    shapes = [(INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)]
    weights = [
        v1.get_variable(f"w{i}", initializer=random.standard_normal(s).astype(np.float32) / 3)
        for i, s in enumerate(shapes)
    ]
    x, labels = v1.placeholder(tf.float32, [None, INPUTS]), v1.placeholder(tf.int64, [None])
    hidden = tf.nn.relu(x @ weights[0] + weights[1])
    logits = hidden @ weights[2] + weights[3]
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    return x, labels, loss


def train(optimizer, synchronise, seed, mine, merged=1):
    """Returns all weights, one after the other, after training on the rows ``mine`` of each batch."""
    with tf.Graph().as_default(), v1.Session() as session:
        x, labels, loss = network(seed)
        step = optimizer.minimize(loss)
        start = synchronise()
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        session.run(start)
        for inputs, classes in batches(merged):
            session.run(step, {x: inputs[mine], labels: classes[mine]})
        return np.concatenate([w.ravel() for w in session.run(v1.trainable_variables())])


OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.05, 0.9),
    "adam": lambda: v1.train.AdamOptimizer(0.01),
}


def data_parallel(hvd, optimizer, fault=None):
    """Trains on this rank's part of each batch, from weights of its own; with a fault, wrongly."""
    wrapped = {
        None: lambda: hvd.DistributedOptimizer(optimizer),
        "broadcast skipped": lambda: hvd.DistributedOptimizer(optimizer),
        "wrapper is identity": lambda: optimizer,
        "sum replaces average": lambda: hvd.DistributedOptimizer(optimizer, op=hvd.Sum),
    }[fault]()
    synchronise = tf.no_op if fault == "broadcast skipped" else lambda: hvd.broadcast_global_variables(0)
    return train(wrapped, synchronise, seed=RANK, mine=slice(RANK * BATCH, (RANK + 1) * BATCH))


def equals_single_process(weights, optimizer):
    alone = train(optimizer, tf.no_op, seed=0, mine=slice(None))
    return np.abs(weights - alone).max() < 1e-5 and equal_on_all_ranks(weights)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_single_process(hvd, name):
    make = OPTIMIZERS[name]
    assert equals_single_process(data_parallel(hvd, make()), make())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_aggregated_passes_equal_a_large_batch(hvd, name):
    """Four batches on n ranks are one batch of 4 n in a single process."""
    arguments = {"backward_passes_per_step": 4, "average_aggregated_gradients": True}
    with tf.Graph().as_default():  # in eager mode it would be an error
        wrapped = hvd.DistributedOptimizer(OPTIMIZERS[name](), **arguments)
    mine = slice(RANK * BATCH, (RANK + 1) * BATCH)
    weights = train(wrapped, lambda: hvd.broadcast_global_variables(0), seed=RANK, mine=mine)
    alone = train(OPTIMIZERS[name](), tf.no_op, seed=0, mine=slice(None), merged=4)
    assert np.abs(weights - alone).max() < 1e-5
    assert equal_on_all_ranks(weights)


@pytest.mark.skipif(SIZE == 1, reason="one rank alone is right even with these faults")
@pytest.mark.parametrize("fault", ["wrapper is identity", "broadcast skipped", "sum replaces average"])
def test_faults_are_noticed(hvd, fault):
    make = OPTIMIZERS["sgd"]
    right = equals_single_process(data_parallel(hvd, make(), fault), make())
    assert not any(ok for (ok,) in allgather([right]))


def test_same_job_twice_gives_the_same_bits(hvd):
    first, second = (data_parallel(hvd, OPTIMIZERS["adam"]()) for _ in range(2))
    assert np.array_equal(first, second)
