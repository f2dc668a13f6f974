"""DistributedOptimizer: what is reduced, how it is named, and what it passes on."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from fed import run
from world import RANK, SIZE

v1 = tf.compat.v1

MEAN = (SIZE + 1) / 2  # of r + 1
SGD = v1.train.GradientDescentOptimizer


def variable(name, value, **kwargs):
    return v1.get_variable(name, initializer=np.asarray(value, np.float32), **kwargs)


def agreed_names(op_type="HorovodAllreduce"):
    operations = v1.get_default_graph().get_operations()
    return [op.get_attr("tensor_name").decode() for op in operations if op.type == op_type]


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("sparse_as_dense", [False, True], ids=["sparse", "dense"])
def test_embedding(hvd, session, sparse_as_dense, use_resource):
    """BR-02 at any size: step 1 takes rows 0 and r + 1, step 2 on rank 0 row n + 1 twice and row 1, elsewhere none."""
    table = variable("emb", np.zeros((SIZE + 2, 3)), use_resource=use_resource)
    ids = v1.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(tf.gather(table, ids))
    optimizer = hvd.DistributedOptimizer(SGD(1.0), sparse_as_dense=sparse_as_dense)
    (pair,) = optimizer.compute_gradients(loss)
    if SIZE > 1:
        assert isinstance(pair[0], tf.Tensor if sparse_as_dense else tf.IndexedSlices)
    step = optimizer.apply_gradients([pair])
    session.run(v1.global_variables_initializer())
    session.run(step, {ids: [0, RANK + 1]})
    expected = np.array([-1.0] + [-1.0 / SIZE] * SIZE + [0.0])
    np.testing.assert_allclose(session.run(table), expected[:, None] * np.ones(3), rtol=1e-6)
    session.run(step, {ids: [SIZE + 1, SIZE + 1, 1] if RANK == 0 else []})
    expected[SIZE + 1] -= 2.0 / SIZE
    expected[1] -= 1.0 / SIZE
    np.testing.assert_allclose(session.run(table), expected[:, None] * np.ones(3), rtol=1e-6)


def test_none_gradients_and_clipping_after_the_reduction(hvd, session):
    """BR-03 at any size: rank r's gradient is n * (6, 8)[r % 2] in column r % 2; the mean over 2 ranks is (3, 4)."""
    w, u = variable("w", [0.0, 0.0]), variable("u", [1.0])
    coefficients = v1.placeholder(tf.float32, [2])
    optimizer = hvd.DistributedOptimizer(SGD(1.0))
    pairs = optimizer.compute_gradients(tf.reduce_sum(w * coefficients), var_list=[w, u])
    assert [v.name for _, v in pairs] == [w.name, u.name]
    assert pairs[1][0] is None
    clipped, norm = tf.clip_by_global_norm([g for g, _ in pairs], 1.0)
    step = optimizer.apply_gradients(list(zip(clipped, [w, u])))
    session.run(v1.global_variables_initializer())
    fed = {0: [3.0 * SIZE, 0.0], SIZE - 1: [0.0, 4.0 * SIZE]}.get(RANK, [0.0, 0.0])
    if SIZE == 1:
        fed = [3.0, 4.0]
    _, length = session.run([step, norm], {coefficients: fed})
    assert length == pytest.approx(5.0, rel=1e-6)
    np.testing.assert_allclose(session.run(w), [-0.6, -0.8], rtol=1e-6)
    assert session.run(u).tolist() == [1.0]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, MEAN),
        ({"op": "Sum"}, SIZE * MEAN),
        ({"op": "Min"}, 1.0),
        ({"op": "Max"}, SIZE),
        ({"op": "Product"}, float(np.prod(range(1, SIZE + 1)))),
        ({"gradient_predivide_factor": 4.0}, MEAN),
        ({"compression": "fp16"}, MEAN),
        ({"compression": "bf16"}, MEAN),
        ({"groups": 2}, MEAN),
        ({"groups": []}, MEAN),
        ({"device_dense": "/cpu:0", "device_sparse": "/cpu:0", "use_locking": True, "name": "mine"}, MEAN),
    ],
    ids=str,
)
def test_arguments(hvd, session, arguments, expected):
    arguments = dict(arguments)
    if "op" in arguments:
        arguments["op"] = getattr(hvd, arguments["op"])
    if "compression" in arguments:
        arguments["compression"] = getattr(hvd.Compression, arguments["compression"])
    w, c = variable("w", [0.0]), v1.placeholder(tf.float32, [1])
    step = hvd.DistributedOptimizer(SGD(1.0), **arguments).minimize(tf.reduce_sum(w * c))
    session.run(v1.global_variables_initializer())
    session.run(step, {c: [RANK + 1.0]})
    np.testing.assert_allclose(session.run(w), [-expected], rtol=1e-6)


def test_num_groups_is_the_older_word(hvd):
    with pytest.warns(DeprecationWarning, match="groups"):
        hvd.DistributedOptimizer(SGD(1.0), num_groups=2)


def test_it_is_a_legacy_optimizer_and_passes_everything_on(hvd, session):
    w = variable("w", [1.0, 2.0])
    inner = v1.train.AdamOptimizer(0.5)
    inner.remark = "mine"
    optimizer = hvd.DistributedOptimizer(inner)
    assert isinstance(optimizer, v1.train.Optimizer)
    assert optimizer.get_name() == "DistributedAdamOptimizer"
    pairs = optimizer.compute_gradients(
        tf.reduce_sum(w),
        var_list=[w],
        gate_gradients=v1.train.Optimizer.GATE_GRAPH,
        aggregation_method=tf.AggregationMethod.ADD_N,
        colocate_gradients_with_ops=True,
        grad_loss=tf.constant(3.0),
    )
    step_counter = v1.train.get_or_create_global_step()
    step = optimizer.apply_gradients(pairs, global_step=step_counter, name="apply")
    assert step.name == "apply"
    assert optimizer.get_slot_names() == ["m", "v"]
    assert optimizer.get_slot(w, "m") is inner.get_slot(w, "m")
    assert [v.name for v in optimizer.variables()] == [v.name for v in inner.variables()]
    assert optimizer.remark == "mine"
    with pytest.raises(AttributeError, match="unheard_of"):
        _ = optimizer.unheard_of
    session.run(v1.global_variables_initializer())
    session.run(step)
    assert session.run(step_counter) == 1
    np.testing.assert_allclose(session.run(optimizer.get_slot(w, "m")), [0.3, 0.3], rtol=1e-6)


def test_applies_in_the_scope_of_the_caller(hvd, session):
    """With an optimizer that has an apply_gradients of its own, which makes a variable there."""

    class Counting(SGD):
        def apply_gradients(self, grads_and_vars, history, global_step=None, name=None):
            count = v1.get_variable("count", initializer=0)
            with tf.control_dependencies([super().apply_gradients(grads_and_vars, global_step, name)]):
                return count.assign_add(history)

    w = variable("w", [0.0])
    optimizer = hvd.DistributedOptimizer(Counting(1.0))
    pairs = optimizer.compute_gradients(tf.reduce_sum(w))
    with v1.variable_scope("theirs"):
        step = optimizer.apply_gradients(pairs, history=7)
    assert "theirs/count" in [v.op.name for v in v1.global_variables()]
    session.run(v1.global_variables_initializer())
    assert session.run(step) == 7
    assert session.run(w).tolist() == [-1.0]


def test_pairs_given_as_an_iterator(hvd, session):
    w = variable("w", [0.0])
    optimizer = hvd.DistributedOptimizer(SGD(1.0))
    gradients, variables = zip(*optimizer.compute_gradients(tf.reduce_sum(w)))
    step = optimizer.apply_gradients(zip(gradients, variables))
    session.run(v1.global_variables_initializer())
    session.run(step)
    assert session.run(w).tolist() == [-1.0]


def test_nothing_to_minimize_is_the_usual_error(hvd, session):
    w = variable("w", [0.0])
    with pytest.raises(ValueError, match="No gradients"):
        hvd.DistributedOptimizer(SGD(1.0)).minimize(tf.constant(1.0), var_list=[w])


@pytest.mark.parametrize("scaled", [True, False])
def test_local_variables_stay_unreduced(hvd, session, scaled):
    shared, dense, sparse = variable("shared", [0.0]), variable("dense", [0.0]), variable("sparse", [[0.0], [0.0]])
    c = v1.placeholder(tf.float32, [])
    loss = c * (tf.reduce_sum(shared) + tf.reduce_sum(dense) + tf.reduce_sum(tf.gather(sparse, [1])))
    optimizer = hvd.DistributedOptimizer(SGD(1.0), scale_local_gradients=scaled)
    optimizer.register_local_var(dense)
    optimizer.register_local_var(sparse)
    pairs = optimizer.compute_gradients(loss, var_list=[dense, shared, sparse])
    assert isinstance(pairs[2][0], tf.IndexedSlices)
    step = optimizer.apply_gradients(pairs)
    session.run(v1.global_variables_initializer())
    session.run(step, {c: RANK + 1.0})
    local = -(RANK + 1.0) / (SIZE if scaled else 1)
    np.testing.assert_allclose(session.run(shared), [-MEAN], rtol=1e-6)
    np.testing.assert_allclose(session.run(dense), [local], rtol=1e-6)
    np.testing.assert_allclose(session.run(sparse), [[0.0], [local]], rtol=1e-6)


def test_collectives_are_named_after_optimizer_call_and_variable(hvd, session):
    with v1.variable_scope("net"):
        w, b = variable("w", [0.0]), variable("b", 0.0)
    optimizer = hvd.DistributedOptimizer(SGD(1.0))
    optimizer.compute_gradients(tf.reduce_sum(w) + b)
    optimizer.compute_gradients(tf.reduce_sum(2.0 * w))
    hvd.DistributedOptimizer(SGD(1.0)).compute_gradients(b)
    name = "DistributedGradientDescentOptimizer"
    if SIZE == 1:
        assert agreed_names() == []
    else:
        assert agreed_names() == [
            f"{name}/0/net/w",
            f"{name}/0/net/b",
            f"{name}/1/net/w",
            f"{name}_1/0/net/b",
        ]


def test_a_summary_op_more_on_one_rank(hvd, session):
    """Names of nodes differ between the ranks; what they agree on does not."""
    w, c = variable("w", [0.0, 0.0]), v1.placeholder(tf.float32, [2])
    loss = tf.reduce_sum(w * c)
    if RANK == 0:
        v1.summary.scalar("loss", tf.reduce_mean(loss * c))
        tf.gradients(loss, w)
    step = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(1.0, 0.0)).minimize(loss)
    broadcast = hvd.broadcast_global_variables(0)
    session.run(v1.global_variables_initializer())
    session.run(broadcast)
    session.run(step, {c: [RANK + 1.0, 1.0]})
    np.testing.assert_allclose(session.run(w), [-MEAN, -1.0], rtol=1e-6)


def test_two_optimizers_in_one_run(hvd, session):
    """Of one class and for the same variables, run together; each rank fetches them in another order."""
    w, v = variable("w", [0.0]), variable("v", [0.0])
    c = v1.placeholder(tf.float32, [])
    one = hvd.DistributedOptimizer(SGD(1.0))
    two = hvd.DistributedOptimizer(SGD(1.0))
    pairs = [
        one.compute_gradients(c * tf.reduce_sum(w) + 10.0 * c * tf.reduce_sum(v)),
        two.compute_gradients(100.0 * c * tf.reduce_sum(w) + 1000.0 * c * tf.reduce_sum(v)),
        one.compute_gradients(10_000.0 * c * tf.reduce_sum(w) + 100_000.0 * c * tf.reduce_sum(v)),
    ]
    fetches = [gradient for listed in pairs for gradient, _ in listed]
    session.run(v1.global_variables_initializer())
    order = np.roll(range(6), RANK)
    values = dict(zip(order, session.run([fetches[i] for i in order], {c: RANK + 1.0})))
    np.testing.assert_allclose([values[i].item() for i in range(6)], MEAN * 10.0 ** np.arange(6), rtol=1e-6)


def test_minimize_in_branches(hvd, session):
    """GAN style: one optimizer per branch."""
    w, c, choice = variable("w", [0.0], use_resource=True), v1.placeholder(tf.float32, []), v1.placeholder(tf.bool, [])
    one, two = hvd.DistributedOptimizer(SGD(1.0)), hvd.DistributedOptimizer(SGD(2.0))

    def train(optimizer):
        with tf.control_dependencies([optimizer.minimize(c * tf.reduce_sum(w), var_list=[w])]):
            return tf.constant(0)

    step = tf.cond(choice, lambda: train(one), lambda: train(two))
    session.run(v1.global_variables_initializer())
    for chosen, expected in ((True, -MEAN), (False, -3 * MEAN)):
        session.run(step, {c: RANK + 1.0, choice: chosen})
        np.testing.assert_allclose(session.run(w), [expected], rtol=1e-6)


def test_a_world_of_one_is_left_untouched(hvd, session):
    w = variable("w", [0.0])
    inner = SGD(1.0)
    inner.compute_gradients = lambda loss: [(the_gradient, w)]
    the_gradient = tf.gradients(tf.reduce_sum(w * w), w)[0]
    ((gradient, _),) = hvd.DistributedOptimizer(inner).compute_gradients(None)
    assert (gradient is the_gradient) == (SIZE == 1)


def test_wrong_arguments(hvd):
    for arguments, message in [
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "gradient_predivide_factor"),
        ({"groups": 0}, "groups"),
        ({"groups": -1}, "groups"),
        ({"groups": [1, 2]}, "groups"),
        ({"op": hvd.Adasum, "average_aggregated_gradients": True}, "average_aggregated_gradients"),
        ({"backward_passes_per_step": 2}, "backward_passes_per_step"),
        ({"op": 9}, "op=9"),
    ]:
        with pytest.raises(ValueError, match=message):
            hvd.DistributedOptimizer(SGD(1.0), **arguments)
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(SGD(1.0)))
    for wrong in ("adam", None, SGD):
        with pytest.raises(TypeError, match=r"tf\.compat\.v1\.train"):
            hvd.DistributedOptimizer(wrong)


def test_predivide_refuses_slices(hvd, session):
    table = variable("emb", np.zeros((4, 2)))
    loss = tf.reduce_sum(tf.gather(table, [1, 2]))
    optimizer = hvd.DistributedOptimizer(SGD(1.0), gradient_predivide_factor=2.0)
    if SIZE == 1:
        optimizer.compute_gradients(loss)
    else:
        with pytest.raises(NotImplementedError, match="sparse_as_dense"):
            optimizer.compute_gradients(loss)
    dense = hvd.DistributedOptimizer(SGD(1.0), gradient_predivide_factor=2.0, sparse_as_dense=True)
    ((gradient, _),) = dense.compute_gradients(loss)
    session.run(v1.global_variables_initializer())
    assert session.run(tf.convert_to_tensor(gradient))[:, 0].tolist() == [0, 1, 1, 0]


def test_gradients_of_several_dtypes(hvd, session):
    names = ["float16", "float32", "float64"]

    def build(feed):
        weights = [v1.get_variable(n, initializer=np.zeros(3, n), use_resource=False) for n in names]
        losses = [tf.cast(tf.reduce_sum(w * feed(RANK + 1.0, w.dtype.base_dtype)), tf.float64) for w in weights]
        pairs = hvd.DistributedOptimizer(SGD(1.0)).compute_gradients(tf.add_n(losses))
        session.run(v1.global_variables_initializer())
        return [gradient for gradient, _ in pairs]

    for name, gradient in zip(names, run(build, session)):
        assert gradient.dtype == name
        np.testing.assert_allclose(gradient, [MEAN] * 3, rtol=1e-3)
