"""DistributedOptimizer for Keras optimizers: every gradient reduced exactly once, on every way into the optimizer."""

from __future__ import annotations

import kerases
import numpy as np
import pytest
import tensorflow as tf
from kerases import Slope, eagerly, traced
from world import RANK, SIZE, equal_on_all_ranks

MEAN = (SIZE + 1) / 2  # of r + 1
TOTAL = SIZE * MEAN


@pytest.fixture(params=kerases.FLAVORS)
def kind(request, hvd):
    return kerases.kind(request.param)


# ------------------------------------------------------------------------------ the ways into an optimizer


def given(optimizer, slope):
    optimizer.apply_gradients(zip(slope.gradient(), [slope.w]))


def given_scaled(optimizer, slope):
    """Gradients that are changed on the way, here divided by two and multiplied again."""
    gradients = [gradient / 2.0 for gradient in slope.gradient()]
    optimizer.apply_gradients([(gradient * 2.0, slope.w) for gradient in gradients])


def computed(optimizer, slope):
    with tf.GradientTape() as tape:
        loss = slope.loss()
    optimizer.apply_gradients(optimizer._compute_gradients(loss, [slope.w], tape=tape))


def computed_and_clipped(optimizer, slope):
    pairs = optimizer._compute_gradients(slope.loss, [slope.w])
    optimizer.apply_gradients([(tf.clip_by_value(gradient, -100.0, 100.0), variable) for gradient, variable in pairs])


def computed_and_said_so(optimizer, slope):
    pairs = optimizer._compute_gradients(slope.loss, [slope.w])
    optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)


def minimized(optimizer, slope):
    optimizer.minimize(slope.loss, [slope.w])


def applied(optimizer, slope):
    optimizer.apply(slope.gradient(), [slope.w])


KERAS2_WAYS = [given, given_scaled, computed, computed_and_clipped, computed_and_said_so, minimized]
WAYS = {"keras3": [given, given_scaled, applied], "keras2": KERAS2_WAYS, "legacy": KERAS2_WAYS}


@pytest.mark.parametrize("mode", [eagerly, traced])
def test_each_gradient_is_reduced_once_on_every_way(hvd, kind, mode):
    """op=Sum, so that a gradient reduced twice or never shows at any number of ranks but one."""
    for way in WAYS[kind.name]:
        slope = Slope(kind)
        optimizer = hvd.DistributedOptimizer(kind.optimizers.SGD(1.0), op=hvd.Sum)
        step = mode(lambda way=way, optimizer=optimizer, slope=slope: way(optimizer, slope))
        for number in range(1, 4):
            step()
            assert slope.value == [-number * TOTAL], (way.__name__, number)


def test_ways_may_be_mixed_eagerly(hvd, kind):
    slope = Slope(kind)
    optimizer = hvd.DistributedOptimizer(kind.optimizers.SGD(1.0), op=hvd.Sum)
    ways = WAYS[kind.name]
    for number, way in enumerate([*ways, *reversed(ways)], 1):
        way(optimizer, slope)
        assert slope.value == [-number * TOTAL], way.__name__


def test_gradients_reduced_eagerly_and_applied_in_a_function(hvd, kind):
    slope = Slope(kind)
    optimizer = hvd.DistributedOptimizer(kind.optimizers.SGD(1.0), op=hvd.Sum)

    @tf.function(autograph=False)
    def apply(gradient):
        optimizer.apply_gradients([(gradient, slope.w)])

    for number in range(1, 4):
        apply(*optimizer._allreduce(slope.gradient(), [slope.w]))
        assert slope.value == [-number * TOTAL]


@pytest.mark.parametrize("mode", [eagerly, traced])
def test_only_what_is_not_reduced_yet_is_reduced(hvd, kind, mode):
    first, second = Slope(kind), Slope(kind)
    optimizer = hvd.DistributedOptimizer(kind.optimizers.SGD(1.0), op=hvd.Sum)

    def step():
        reduced = optimizer._allreduce(first.gradient(), [first.w])
        optimizer.apply_gradients(zip([*reduced, *second.gradient()], [first.w, second.w]))

    mode(step)()
    assert first.value == second.value == [-TOTAL]


ARGUMENTS = [
    ({}, MEAN),
    ({"op": "Sum"}, TOTAL),
    ({"gradient_predivide_factor": 4.0}, MEAN),
    ({"compression": "fp16"}, MEAN),
    ({"groups": 2}, MEAN),
    ({"groups": [[]]}, MEAN),
    ({"device_dense": "/cpu:0", "device_sparse": "/cpu:0", "name": "mine"}, MEAN),
]


@pytest.mark.parametrize(("arguments", "expected"), ARGUMENTS, ids=str)
def test_arguments(hvd, kind, arguments, expected):
    arguments = dict(arguments)
    for name, holder in (("op", hvd), ("compression", hvd.Compression)):
        if name in arguments:
            arguments[name] = getattr(holder, arguments[name])
    slope = Slope(kind)
    optimizer = hvd.DistributedOptimizer(kind.optimizers.SGD(1.0), **arguments)
    traced(lambda: given(optimizer, slope))()
    np.testing.assert_allclose(slope.value, [-expected], rtol=1e-6)


def test_groups_become_grouped_ops(hvd, kind):
    slopes = [Slope(kind) for _ in range(4)]
    variables = [slope.w for slope in slopes]
    optimizer = hvd.DistributedOptimizer(kind.optimizers.SGD(1.0), op=hvd.Sum, groups=[variables[:2], variables[2:]])

    @tf.function(autograph=False)
    def step():
        optimizer.apply_gradients(zip([slope.gradient()[0] for slope in slopes], variables))

    operations = [
        op.type for op in step.get_concrete_function().graph.get_operations() if op.type.startswith("Horovod")
    ]
    assert operations == ["HorovodGroupedAllreduce"] * (2 if SIZE > 1 else 0)
    step()
    assert [slope.value for slope in slopes] == [[-TOTAL]] * 4


def test_num_groups_is_the_older_word(hvd, kind):
    with pytest.warns(DeprecationWarning, match="groups"):
        hvd.DistributedOptimizer(kind.optimizers.SGD(1.0), num_groups=2)


@pytest.mark.skipif(SIZE == 1, reason="the only process set is the global one")
def test_process_sets(hvd, kind):
    members = hvd.add_process_set(list(range(0, SIZE, 2)))
    try:
        slope = Slope(kind)
        optimizer = hvd.DistributedOptimizer(kind.optimizers.SGD(1.0), op=hvd.Sum, process_set=members)
        given(optimizer, slope)
        mine = sum(rank + 1 for rank in members.ranks) if RANK % 2 == 0 else RANK + 1
        assert slope.value == [-mine]
    finally:
        hvd.remove_process_set(members)


@pytest.mark.parametrize("sparse_as_dense", [False, True], ids=["sparse", "dense"])
def test_embedding(hvd, kind, sparse_as_dense):
    """Rank r looks up rows 0 and r + 1."""
    table = kind.variable(np.zeros((SIZE + 2, 3), np.float32))
    optimizer = hvd.DistributedOptimizer(kind.optimizers.SGD(1.0), sparse_as_dense=sparse_as_dense)

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            rows = tf.gather(table.value if kind.name == "keras3" else table, [0, RANK + 1])
            loss = tf.reduce_sum(rows)
        (gradient,) = tape.gradient(loss, [table])
        assert isinstance(gradient, tf.IndexedSlices)
        optimizer.apply_gradients([(gradient, table)])

    step()
    expected = np.array([-1.0] + [-1.0 / SIZE] * SIZE + [0.0])
    np.testing.assert_allclose(table.numpy(), expected[:, None] * np.ones(3), rtol=1e-6)


@pytest.mark.parametrize("scale", [True, False])
def test_local_variables(hvd, kind, scale):
    expected = (RANK + 1) / SIZE if scale else RANK + 1
    shared, local = Slope(kind), Slope(kind)
    optimizer = hvd.DistributedOptimizer(kind.optimizers.SGD(1.0), op=hvd.Sum, scale_local_gradients=scale)
    optimizer.register_local_var(local.w)
    for _ in range(2):
        optimizer.apply_gradients(zip(shared.gradient() + local.gradient(), [shared.w, local.w]))
    assert shared.value == [-2 * TOTAL]
    np.testing.assert_allclose(local.value, [-2 * expected], rtol=1e-6)


def test_local_layers_may_be_built_later(hvd, kind):
    layers = [kind.dense(kernel="ones"), kind.dense(kernel="ones")]
    model = kind.model(*layers, inputs=None)
    optimizer = kind.hvd.PartialDistributedOptimizer(kind.optimizers.SGD(1.0), op=hvd.Sum, local_layers=layers[1])
    model.compile(optimizer, loss=lambda y, output: tf.reduce_mean(output))
    model.fit(np.full((1, 1), RANK + 1.0), np.zeros((1, 1)), verbose=0)
    # The output is x * a * b, so that both gradients are x where a = b = 1.
    first, second = (weight.item() for weight in model.get_weights())
    assert first == 1 - TOTAL
    assert second == pytest.approx(1 - (RANK + 1) / SIZE)
    for wrong in (3, [layers[0], "dense"]):
        with pytest.raises(ValueError, match="local_layers"):
            kind.hvd.PartialDistributedOptimizer(kind.optimizers.SGD(1.0), local_layers=wrong)


# ------------------------------------------------------------------------------ what stays of the wrapped optimizer


def test_state_and_class_are_those_of_the_wrapped_optimizer(hvd, kind):
    inner = kind.optimizers.SGD(1.0, momentum=0.5)
    slope = Slope(kind)
    given(inner, slope)  # not distributed: v = -(r + 1)
    optimizer = hvd.DistributedOptimizer(inner)
    assert type(optimizer).__name__ == "SGD"
    assert type(optimizer).__module__ in ("compat_hvd._keras", "horovod._keras")
    assert isinstance(optimizer, type(inner))
    assert int(optimizer.iterations.numpy()) == 1
    assert optimizer.get_config() == inner.get_config()
    given(optimizer, slope)
    assert int(inner.iterations.numpy()) == 2
    np.testing.assert_allclose(slope.value, [-(RANK + 1) - (0.5 * (RANK + 1) + MEAN)])
    # The optimizer that was wrapped stays what it was.
    given(inner, slope)
    velocity = (RANK + 1) * 0.25 + MEAN * 0.5 + RANK + 1
    np.testing.assert_allclose(slope.value, [-(RANK + 1) - (0.5 * (RANK + 1) + MEAN) - velocity], rtol=1e-6)
    variables = optimizer.variables
    assert [v.name for v in variables] == [v.name for v in variables()]
    assert len(variables) >= 2


def test_checkpoints_hold_what_those_of_the_unwrapped_optimizer_hold(hvd, kind, tmp_path):
    def names(optimizer):
        slope = Slope(kind)
        given(optimizer, slope)
        path = tf.train.Checkpoint(optimizer=optimizer).write(str(tmp_path / "checkpoint"))
        return sorted(name for name, _ in tf.train.list_variables(path))

    assert names(hvd.DistributedOptimizer(kind.optimizers.Adam(1.0))) == names(kind.optimizers.Adam(1.0))


def test_copies_from_the_config_are_distributed_alike(hvd, kind):
    optimizer = hvd.DistributedOptimizer(kind.optimizers.Adam(0.25), op=hvd.Sum, name="mine")
    config = optimizer.get_config()
    for copy in (optimizer.from_config(dict(config)), type(optimizer).from_config(dict(config))):
        assert copy.get_config() == config
    copy = type(hvd.DistributedOptimizer(kind.optimizers.SGD(1.0), op=hvd.Sum)).from_config(
        kind.optimizers.SGD(1.0).get_config()
    )
    slope = Slope(kind)
    given(copy, slope)
    assert slope.value == [-TOTAL]


def test_wrapping_twice_is_an_error(hvd, kind):
    optimizer = hvd.DistributedOptimizer(kind.optimizers.SGD(1.0))
    for wrap in (hvd.DistributedOptimizer, kind.hvd.DistributedOptimizer):
        with pytest.raises(ValueError, match="already"):
            wrap(optimizer)


def test_wrong_arguments(hvd, kind):
    for arguments, message in [
        ({"op": hvd.Adasum}, "Adasum"),
        ({"op": hvd.Min}, "only supports Average and Sum"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
        ({"groups": 0}, "groups"),
        ({"groups": [1, 2]}, "groups"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step"),
    ]:
        for wrap in (hvd.DistributedOptimizer, kind.hvd.DistributedOptimizer):
            with pytest.raises(ValueError, match=message):
                wrap(kind.optimizers.SGD(1.0), **arguments)
    for wrong in ("adam", None, kind.optimizers.SGD):
        with pytest.raises(TypeError, match="optimizer"):
            hvd.DistributedOptimizer(wrong)


# ------------------------------------------------------------------------------ training

STEPS, BATCH = 20, 4
SGD = ("SGD", {"learning_rate": 0.05, "momentum": 0.9})
ADAM = ("Adam", {"learning_rate": 0.01})


def train(kind, optimizer, wrap, rows, way):
    """Returns all weights after training on the rows ``rows`` of each batch."""
    random = np.random.RandomState(5)
    shapes = [(3, 8), (8, 1)]
    kernels = [random.standard_normal(shape).astype(np.float32) / 3 for shape in shapes]
    layers = [kind.dense(8, activation="relu", use_bias=True), kind.dense(1, use_bias=True)]
    model = kind.model(*layers, inputs=(3,))
    for layer, kernel in zip(layers, kernels):
        layer.set_weights([kernel, np.zeros(kernel.shape[1], np.float32)])
    x = random.standard_normal((STEPS, SIZE * BATCH, 3)).astype(np.float32)[:, rows]
    y = random.standard_normal((STEPS, SIZE * BATCH, 1)).astype(np.float32)[:, rows]
    name, arguments = optimizer
    optimizer = wrap(getattr(kind.optimizers, name)(**arguments))
    if way == "fit":
        model.compile(optimizer, loss="mse")
        model.fit(x.reshape(-1, 3), y.reshape(-1, 1), batch_size=x.shape[1], shuffle=False, verbose=0)
    else:

        @tf.function(autograph=False)
        def step(inputs, targets):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(inputs, training=True) - targets))
            optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

        for inputs, targets in zip(x, y):
            step(inputs, targets)
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


@pytest.mark.node_split
@pytest.mark.parametrize(
    ("optimizer", "way", "tolerance"), [(SGD, "fit", 1e-6), (ADAM, "fit", 1e-5), (SGD, "loop", 1e-6)]
)
def test_training_equals_one_process_on_the_whole_batch(hvd, kind, optimizer, way, tolerance):
    mine = slice(RANK * BATCH, (RANK + 1) * BATCH)
    weights = train(kind, optimizer, hvd.DistributedOptimizer, mine, way)
    alone = train(kind, optimizer, lambda one: one, slice(None), way)
    assert np.abs(weights - alone).max() < tolerance
    assert equal_on_all_ranks(weights)
    local = train(kind, optimizer, lambda one: one, mine, way)
    assert SIZE == 1 or np.abs(local - alone).max() > 100 * tolerance, "or this test could not fail"
