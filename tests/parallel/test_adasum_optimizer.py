"""DistributedOptimizer(op=Adasum) against a NumPy model of every rank's steps."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import tensorflow as tf
from adasum_model import adasum
from world import RANK, SIZE, allgather, equal_on_all_ranks

v1 = tf.compat.v1
pytestmark = pytest.mark.node_split

RANKS = range(SIZE)
SGD = v1.train.GradientDescentOptimizer
possible = SIZE & (SIZE - 1) == 0
adaptive = pytest.mark.skipif(not possible, reason="Adasum needs a number of ranks that is a power of two")
apart = pytest.mark.skipif(SIZE == 1, reason="one rank reduces nothing")
KINDS = pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])


def gradient(rank, step, shape, salt=0):
    return np.random.default_rng([rank, step, salt]).normal(size=shape)


def combined(start, values):
    """What a variable becomes that was ``start`` on all ranks and is now ``values[rank]``."""
    return start + adasum([value - start for value in values])


@contextmanager
def control_flow(older):
    """With the control flow of TensorFlow 1, as disable_v2_behavior() gives it, or that of TensorFlow 2."""
    if older:
        v1.disable_control_flow_v2()
    try:
        yield
    finally:
        v1.enable_control_flow_v2()


@adaptive
@KINDS
@pytest.mark.parametrize("older", [True, False], ids=["control flow 1", "control flow 2"])
@pytest.mark.parametrize("passes", [1, 3])
def test_several_steps(hvd, session, passes, older, use_resource):
    """Momentum, whose slots stay each rank's own; initial values that a broadcast makes equal; no local initializer."""
    shapes = [(5, 3), (), (7,)]
    with control_flow(older):
        variables = [
            v1.get_variable(f"v{i}", initializer=np.full(shape, 1.0 + i + RANK), use_resource=use_resource)
            for i, shape in enumerate(shapes)
        ]
        fed = [v1.placeholder(tf.float64, shape) for shape in shapes]
        loss = tf.add_n([tf.reduce_sum(v * c) for v, c in zip(variables, fed)])
        counter = v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(
            v1.train.MomentumOptimizer(0.125, 0.75), op=hvd.Adasum, backward_passes_per_step=passes
        )
        train = optimizer.minimize(loss, global_step=counter, name="train")
    assert train.name == "train"
    assert v1.get_collection(v1.GraphKeys.TRAIN_OP) == [train]
    broadcast = hvd.broadcast_global_variables(0)
    session.run(v1.global_variables_initializer())
    session.run(broadcast)

    start = [np.full(shape, 1.0 + i) for i, shape in enumerate(shapes)]
    model = [[value.copy() for value in start] for _ in RANKS]
    momenta = [[np.zeros(shape) for shape in shapes] for _ in RANKS]
    for step in range(7):
        session.run(train, {c: gradient(RANK, step, s, i) for i, (c, s) in enumerate(zip(fed, shapes))})
        for rank in RANKS:
            for i, shape in enumerate(shapes):
                momenta[rank][i] = 0.75 * momenta[rank][i] + gradient(rank, step, shape, i)
                model[rank][i] = model[rank][i] - 0.125 * momenta[rank][i]
        if step % passes == passes - 1:
            start = [combined(start[i], [model[rank][i] for rank in RANKS]) for i in range(len(shapes))]
            model = [[value.copy() for value in start] for _ in RANKS]
        values = session.run(variables)
        for value, expected in zip(values, model[RANK]):
            np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-12)
            if step % passes == passes - 1:
                assert equal_on_all_ranks(value)
    assert session.run(counter) == 7
    for i, variable in enumerate(variables):
        slot = session.run(optimizer.get_slot(variable, "momentum"))
        np.testing.assert_allclose(slot, momenta[RANK][i], rtol=1e-12, atol=1e-12)


@adaptive
@KINDS
def test_embeddings(hvd, session, use_resource):
    """Sparse gradients of rows that depend on the rank; ranks of odd number have none in the second step."""
    table = v1.get_variable("emb", initializer=np.ones((SIZE + 2, 2)), use_resource=use_resource)
    ids = v1.placeholder(tf.int64, [None])
    optimizer = hvd.DistributedOptimizer(SGD(0.5), op=hvd.Adasum)
    ((sparse, _),) = pairs = optimizer.compute_gradients((RANK + 1.0) * tf.reduce_sum(tf.gather(table, ids)))
    assert isinstance(sparse, tf.IndexedSlices)
    train = optimizer.apply_gradients(iter(pairs))
    session.run(v1.global_variables_initializer())
    expected = np.ones((SIZE + 2, 2))
    for rows in ([[0, rank + 1, rank + 1] for rank in RANKS], [[1] if rank % 2 == 0 else [] for rank in RANKS]):
        session.run(train, {ids: rows[RANK]})
        changed = []
        for rank in RANKS:
            changed.append(expected.copy())
            np.subtract.at(changed[-1], rows[rank], 0.5 * (rank + 1))
        expected = combined(expected, changed)
        result = session.run(table)
        np.testing.assert_allclose(result, expected, rtol=1e-12)
        assert equal_on_all_ranks(result)


@adaptive
@apart
def test_steps_in_between_do_not_communicate(hvd, session):
    """The ranks make them one after the other; a rank that waited for the others would never end."""
    w = v1.get_variable("w", initializer=np.zeros(SIZE), use_resource=True)
    c = v1.placeholder(tf.float64, [SIZE])
    optimizer = hvd.DistributedOptimizer(SGD(1.0), op=hvd.Adasum, backward_passes_per_step=3)
    train = optimizer.minimize(tf.reduce_sum(w * c))
    session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
    for _ in range(2):
        for turn in RANKS:
            if turn == RANK:
                session.run(train, {c: np.eye(SIZE)[RANK]})
                session.run(train, {c: np.eye(SIZE)[RANK]})
            allgather([turn])
        session.run(train, {c: np.eye(SIZE)[RANK]})
    np.testing.assert_allclose(session.run(w), [-6.0] * SIZE, rtol=1e-12)  # the changes are orthogonal


@adaptive
@pytest.mark.parametrize("passes", [1, 2])
def test_monitored_session_and_checkpoint(hvd, tmp_path, passes):
    """The hook broadcasts after all initializers have run. What is saved is what the wrapped optimizer alone has."""
    with tf.Graph().as_default():
        w = v1.get_variable("w", initializer=np.full(2, 10.0 * RANK), use_resource=True)
        c = v1.placeholder(tf.float64, [2])
        step = v1.train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(
            v1.train.AdamOptimizer(0.1), op=hvd.Adasum, backward_passes_per_step=passes
        )
        train = optimizer.minimize(tf.reduce_sum(w * c), global_step=step)
        hooks = [hvd.BroadcastGlobalVariablesHook(0), v1.train.StopAtStepHook(last_step=2 * passes)]
        with v1.train.MonitoredTrainingSession(
            hooks=hooks, checkpoint_dir=str(tmp_path / str(RANK)), save_checkpoint_steps=passes
        ) as session:
            while not session.should_stop():
                session.run(train, {c: [RANK + 1.0, -1.0]})
                value = session.run_step_fn(lambda step_context: step_context.session.run(w))
        assert equal_on_all_ranks(value)
        assert np.abs(value).max() < 1.0
    saved = {name for name, _ in tf.train.list_variables(str(tmp_path / str(RANK)))}
    assert saved == {"w", "w/Adam", "w/Adam_1", "beta1_power", "beta2_power", "global_step"}


@adaptive
def test_only_what_has_a_gradient_and_is_not_local(hvd, session):
    shared, alone, unused = (v1.get_variable(n, initializer=[0.0, 0.0]) for n in ("shared", "alone", "unused"))
    optimizer = hvd.DistributedOptimizer(SGD(1.0), op=hvd.Adasum)
    optimizer.register_local_var(alone)
    loss = tf.reduce_sum(v1.placeholder_with_default(np.eye(2, dtype=np.float32)[RANK % 2], [2]) * (shared + alone))
    pairs = optimizer.compute_gradients(loss, var_list=[shared, alone, unused])
    assert pairs[2][0] is None
    train = optimizer.apply_gradients(pairs)
    session.run(v1.global_variables_initializer())
    session.run(train)
    values = session.run([shared, alone, unused])
    assert values[1].tolist() == (-np.eye(2)[RANK % 2]).tolist()
    np.testing.assert_allclose(values[0], adasum([-np.eye(2)[rank % 2] for rank in RANKS]), rtol=1e-6)
    assert values[2].tolist() == [0.0, 0.0]


@adaptive
@pytest.mark.parametrize(
    "arguments", [{"compression": "fp16"}, {"groups": 2}, {"use_locking": True, "name": "mine"}], ids=str
)
def test_arguments(hvd, session, arguments):
    if "compression" in arguments:
        arguments = {"compression": hvd.Compression.fp16}
    variables = [v1.get_variable(f"v{i}", initializer=np.zeros(4, np.float32)) for i in range(3)]
    fed = [v1.placeholder(tf.float32, [4]) for _ in variables]
    optimizer = hvd.DistributedOptimizer(SGD(1.0), op=hvd.Adasum, **arguments)
    train = optimizer.minimize(tf.add_n([tf.reduce_sum(v * c) for v, c in zip(variables, fed)]))
    session.run(v1.global_variables_initializer())
    session.run(train, {c: gradient(RANK, 0, 4, i) for i, c in enumerate(fed)})
    for i, value in enumerate(session.run(variables)):
        expected = adasum([-gradient(rank, 0, 4, i) for rank in RANKS])
        np.testing.assert_allclose(value, expected, atol=5e-3 if "compression" in arguments else 1e-5)


@adaptive
def test_two_losses_of_one_optimizer(hvd, session):
    w, v = (v1.get_variable(n, initializer=np.zeros(SIZE)) for n in "wv")
    c = v1.placeholder(tf.float64, [SIZE])
    optimizer = hvd.DistributedOptimizer(SGD(1.0), op=hvd.Adasum)
    both = [optimizer.minimize(tf.reduce_sum(w * c)), optimizer.minimize(tf.reduce_sum(10.0 * v * c))]
    session.run(v1.global_variables_initializer())
    session.run(both[:: 1 if RANK % 2 else -1], {c: np.eye(SIZE)[RANK]})
    assert [value.tolist() for value in session.run([w, v])] == [[-1.0] * SIZE, [-10.0] * SIZE]


@adaptive
def test_eagerly(hvd):
    w = tf.Variable(np.zeros(SIZE))
    optimizer = hvd.DistributedOptimizer(SGD(1.0), op=hvd.Adasum)
    for _ in range(2):
        optimizer.apply_gradients([(tf.constant(np.eye(SIZE)[RANK]), w)])
    assert w.numpy().tolist() == [-2.0] * SIZE
    with pytest.raises(ValueError, match="eager"):
        hvd.DistributedOptimizer(SGD(1.0), op=hvd.Adasum, backward_passes_per_step=2)


@adaptive
def test_it_is_a_wrapper_as_the_other_is(hvd, session):
    w = v1.get_variable("w", initializer=[1.0])
    inner = v1.train.AdamOptimizer(0.5)
    optimizer = hvd.DistributedOptimizer(inner, op=hvd.Adasum)
    assert isinstance(optimizer, hvd._DistributedAdasumOptimizer)
    assert optimizer.get_name() == "DistributedAdamOptimizer"
    optimizer.minimize(tf.reduce_sum(w * w))
    assert optimizer.get_slot(w, "m") is inner.get_slot(w, "m")
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)


@adaptive
def test_wrong_arguments(hvd, session):
    for arguments, message in [
        ({"average_aggregated_gradients": True}, "average_aggregated_gradients"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step"),
        ({"gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
    ]:
        with pytest.raises(ValueError, match=message):
            hvd.DistributedOptimizer(SGD(1.0), op=hvd.Adasum, **arguments)
    with pytest.raises(ValueError, match="Keras"):
        hvd.DistributedOptimizer(tf.keras.optimizers.SGD(), op=hvd.Adasum)
    if SIZE > 1:
        one = hvd.add_process_set([0])
        with pytest.raises(NotImplementedError, match="process set"):
            hvd.DistributedOptimizer(SGD(1.0), op=hvd.Adasum, process_set=one)
        assert hvd.remove_process_set(one)


@pytest.mark.skipif(possible, reason="the number of ranks is a power of two")
def test_other_numbers_of_ranks_are_refused(hvd, session):
    with pytest.raises(NotImplementedError, match="power of two"):
        hvd.DistributedOptimizer(SGD(1.0), op=hvd.Adasum)
