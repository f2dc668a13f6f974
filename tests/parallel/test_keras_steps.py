"""Keras optimizers that do not step every time: aggregation, accumulation, loss scales; and where XLA is kept away."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import kerases
import numpy as np
import pytest
import tensorflow as tf
from kerases import Slope, eagerly, traced
from world import RANK, SIZE, allgather

pytestmark = pytest.mark.two_ranks

MEAN = (SIZE + 1) / 2  # of r + 1
TOTAL = SIZE * MEAN


@pytest.fixture(params=kerases.FLAVORS)
def kind(request, hvd):
    return kerases.kind(request.param)


@pytest.fixture
def keras3(hvd):
    return kerases.kind("keras3")


def given(optimizer, slope):
    optimizer.apply_gradients(zip(slope.gradient(), [slope.w]))


def computed(optimizer, slope):
    pairs = optimizer._compute_gradients(slope.loss, [slope.w])
    optimizer.apply_gradients([(gradient * 1.0, variable) for gradient, variable in pairs])


def ways(kind):
    return [given] if kind.name == "keras3" else [given, computed]


# ------------------------------------------------------------------------------ backward_passes_per_step


@pytest.mark.parametrize("mode", [eagerly, traced])
@pytest.mark.parametrize("average", [False, True])
def test_aggregation(hvd, kind, mode, average):
    """Gradients r + 1 and a window of two: two ranks stand at 0, -3, -3, -6, averaged at 0, -1.5, -1.5, -3."""
    for way in ways(kind):
        slope = Slope(kind)
        optimizer = hvd.DistributedOptimizer(
            kind.optimizers.SGD(1.0), backward_passes_per_step=2, average_aggregated_gradients=average
        )
        step = mode(lambda way=way, optimizer=optimizer, slope=slope: way(optimizer, slope))
        for passes in range(1, 6):
            step()
            assert slope.value == [-(passes // 2) * MEAN * (1 if average else 2)], (way.__name__, passes)
            assert optimizer._agg_helper.counter.numpy() == passes % 2
            assert optimizer.iterations.numpy() == passes


def test_aggregation_forgets_infinities(hvd, kind):
    slope = Slope(kind)
    optimizer = hvd.DistributedOptimizer(kind.optimizers.SGD(1.0), backward_passes_per_step=2)
    sums = []
    for factor in (np.inf if RANK == 0 else 1.0, 1.0, 1.0, 1.0):
        slope.factor.assign(factor)
        sums += optimizer._allreduce(slope.gradient(), [slope.w])
    assert [gradient.numpy().item() for gradient in sums] == [0.0, np.inf, 0.0, 2 * MEAN]


def test_aggregation_with_none_local_and_sparse_gradients(hvd, kind):
    shared, local, unused = Slope(kind), Slope(kind), Slope(kind)
    table = kind.variable(np.zeros((3, 1), np.float32))

    def step():
        rows = tf.IndexedSlices(tf.ones([2, 1]) * (RANK + 1.0), tf.constant([0, 0]), tf.constant([3, 1]))
        gradients = [*shared.gradient(), *local.gradient(), None, rows]
        optimizer.apply_gradients(zip(gradients, [shared.w, local.w, unused.w, table]))

    optimizer = hvd.DistributedOptimizer(
        kind.optimizers.SGD(1.0), op=hvd.Sum, backward_passes_per_step=3, sparse_as_dense=True
    )
    optimizer.register_local_var(local.w)
    run = traced(step)
    for _ in range(6):
        run()
    assert shared.value == [-6 * TOTAL]
    np.testing.assert_allclose(local.value, [-6 * (RANK + 1) / SIZE], rtol=1e-6)
    assert unused.value == [0.0]
    assert table.numpy().ravel().tolist() == [-12 * TOTAL, 0.0, 0.0]
    optimizer = hvd.DistributedOptimizer(kind.optimizers.SGD(1.0), backward_passes_per_step=3)
    with pytest.raises(ValueError, match=r"IndexedSlices are not supported.*sparse_as_dense"):
        step()


def test_optimizers_of_one_class_count_for_themselves(hvd, kind):
    slopes = [Slope(kind), Slope(kind)]
    optimizers = [
        hvd.DistributedOptimizer(kind.optimizers.SGD(1.0), backward_passes_per_step=passes) for passes in (2, 3)
    ]

    def step():
        for optimizer, slope in zip(optimizers, slopes):
            given(optimizer, slope)

    run = traced(step)
    for _ in range(7):
        run()
    assert [slope.value for slope in slopes] == [[-6 * MEAN], [-6 * MEAN]]


def test_aggregation_in_fit_is_neither_saved_nor_shown(hvd, kind):
    """The output is w * x, so that the gradient is x = r + 1 of the one sample in each batch."""
    optimizer = hvd.DistributedOptimizer(kind.optimizers.SGD(1.0), backward_passes_per_step=2)
    model = kind.model(kind.dense())
    model.compile(optimizer, loss=lambda target, output: tf.reduce_mean(output))
    model.fit(np.full((5, 1), RANK + 1.0), np.zeros((5, 1)), batch_size=1, verbose=0)
    assert model.get_weights()[0].item() == -4 * MEAN
    assert not [v.name for v in optimizer.variables if "aggregat" in v.name]
    assert {np.size(v.numpy()) for v in optimizer.variables} == {1}


def test_only_the_last_pass_communicates(hvd, kind):
    """Rank 0 makes its first pass alone: were it to communicate, it would wait for the others forever."""
    slope = Slope(kind)
    optimizer = hvd.DistributedOptimizer(kind.optimizers.SGD(1.0), backward_passes_per_step=2)
    if RANK == 0:
        given(optimizer, slope)
    allgather([0])
    if RANK != 0:
        given(optimizer, slope)
    given(optimizer, slope)
    assert slope.value == [-2 * MEAN]


@pytest.mark.parametrize("mode", [eagerly, traced])
def test_accumulation_of_keras_3(hvd, keras3, mode):
    """Keras itself averages over the steps."""
    slope = Slope(keras3)
    optimizer = hvd.DistributedOptimizer(keras3.optimizers.SGD(1.0, gradient_accumulation_steps=2))
    step = mode(lambda: given(optimizer, slope))
    for passes in range(1, 6):
        step()
        assert slope.value == [-(passes // 2) * MEAN]


# ------------------------------------------------------------------------------ loss scales


def scaled(kind, optimizer):
    """Keras' own LossScaleOptimizer around an optimizer; its scale is 8 at first."""
    if kind.name == "keras3":
        return kind.optimizers.LossScaleOptimizer(optimizer, initial_scale=8.0)
    module = kind.keras.mixed_precision
    if kind.name == "keras2" and not hasattr(module, "LossScaleOptimizerV3"):
        cls = type(module.LossScaleOptimizer(kind.optimizers.SGD(1.0)))
        return cls(optimizer, initial_scale=8.0)
    return module.LossScaleOptimizer(optimizer, initial_scale=8.0)


def scale_of(kind, optimizer):
    return float((optimizer.dynamic_scale if kind.name == "keras3" else optimizer.loss_scale).numpy())


def set_scale(kind, optimizer, value):
    variable = optimizer.dynamic_scale if kind.name == "keras3" else optimizer._loss_scale.current_loss_scale
    variable.assign(value)


def scaled_step(kind, optimizer, slope):
    """A step in a loop of one's own, as Keras documents it."""
    if kind.name == "keras3":
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(slope.loss())
        optimizer.apply_gradients(zip(tape.gradient(loss, [slope.w]), [slope.w]))
        return
    with tf.GradientTape() as tape:
        loss = optimizer.get_scaled_loss(slope.loss())
    gradients = optimizer.get_unscaled_gradients(tape.gradient(loss, [slope.w]))
    optimizer.apply_gradients(zip(gradients, [slope.w]))


@pytest.mark.parametrize("mode", [eagerly, traced])
@pytest.mark.parametrize("around", [True, False], ids=["around", "inside"])
def test_an_infinity_on_one_rank_skips_the_step_on_all(hvd, kind, mode, around):
    steps = [scaled_step]
    if kind.name != "keras3":
        steps.append(lambda kind, optimizer, slope: optimizer.minimize(slope.loss, [slope.w]))
    for number, one in enumerate(steps):
        slope = Slope(kind)
        sgd = kind.optimizers.SGD(1.0)
        if around:
            optimizer = scaled(kind, hvd.DistributedOptimizer(sgd, op=hvd.Sum))
        else:
            optimizer = hvd.DistributedOptimizer(scaled(kind, sgd), op=hvd.Sum)
        step = mode(lambda one=one, optimizer=optimizer, slope=slope: one(kind, optimizer, slope))
        step()
        assert (slope.value, scale_of(kind, optimizer)) == ([-TOTAL], 8.0), number
        slope.factor.assign(np.inf if RANK == SIZE - 1 else 1.0)
        step()
        assert (slope.value, scale_of(kind, optimizer)) == ([-TOTAL], 4.0), number
        slope.factor.assign(1.0)
        step()
        assert (slope.value, scale_of(kind, optimizer)) == ([-2 * TOTAL], 4.0), number


def test_mixed_precision_in_fit(hvd, kind):
    """Keras puts a LossScaleOptimizer around the optimizer by itself; its scale is a power of two."""
    v3 = kind.name == "keras3"
    before = kind.keras.mixed_precision.dtype_policy() if v3 else kind.keras.mixed_precision.global_policy()
    kind.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = kind.model(kind.dense())
        optimizer = hvd.DistributedOptimizer(kind.optimizers.SGD(1.0), op=hvd.Sum)
        model.compile(optimizer, loss=lambda target, output: tf.reduce_mean(tf.cast(output, tf.float32)))
        model.fit(np.full((3, 1), RANK + 1.0), np.zeros((3, 1)), batch_size=1, verbose=0)
    finally:
        kind.keras.mixed_precision.set_global_policy(before)
    assert model.optimizer is not optimizer
    # The scale of 2 ** 15 times a gradient of 1 is finite in float16, that times 2 is not: steps may be skipped, on all
    # ranks alike.
    weight = model.get_weights()[0].item()
    assert weight % TOTAL == 0
    assert len({allgathered for (allgathered,) in allgather([int(weight)])}) == 1


@pytest.mark.parametrize("mode", [eagerly, traced])
@pytest.mark.parametrize("around", [True, False], ids=["around", "inside"])
def test_sums_do_not_depend_on_the_scale(hvd, kind, mode, around):
    """The scale doubles after the first of two passes whose gradients are summed up."""
    arguments = {"op": hvd.Sum, "backward_passes_per_step": 2}
    slope, sgd = Slope(kind), kind.optimizers.SGD(1.0)
    if around:
        optimizer = scaled(kind, hvd.DistributedOptimizer(sgd, **arguments))
    else:
        optimizer = hvd.DistributedOptimizer(scaled(kind, sgd), **arguments)
    steps = [lambda: scaled_step(kind, optimizer, slope)]
    if kind.name != "keras3":
        steps.append(lambda: optimizer.minimize(slope.loss, [slope.w]))
    for number, one in enumerate(steps, 1):
        step = mode(one)
        step()
        assert slope.value == [-2 * (number - 1) * TOTAL]
        set_scale(kind, optimizer, 2 * scale_of(kind, optimizer))
        step()
        assert slope.value == [-2 * number * TOTAL]
    slope.factor.assign(np.inf if RANK == 0 else 1.0)
    before = scale_of(kind, optimizer)
    step()
    step()
    assert slope.value == [-2 * number * TOTAL]
    assert scale_of(kind, optimizer) == before / 2
    slope.factor.assign(1.0)
    step()
    step()
    assert slope.value == [-2 * (number + 1) * TOTAL]


def test_scaling_does_not_hide_that_an_optimizer_is_distributed(hvd, kind):
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(scaled(kind, hvd.DistributedOptimizer(kind.optimizers.SGD(1.0))))


# ------------------------------------------------------------------------------ XLA


def fit(keras3, optimizer, **arguments):
    model = keras3.model(keras3.dense())
    model.compile(optimizer, loss=lambda target, output: tf.reduce_mean(output), **arguments)
    model.fit(np.full((1, 1), RANK + 1.0), np.zeros((1, 1)), verbose=0)
    return model


def test_jit_compile_true_is_an_error_before_the_first_step(hvd, keras3):
    optimizer = hvd.DistributedOptimizer(keras3.optimizers.SGD(1.0))
    with pytest.raises(ValueError, match=r"jit_compile=False") as caught:
        fit(keras3, optimizer, jit_compile=True)
    assert "DistributedOptimizer" in str(caught.value)
    assert optimizer.iterations.numpy() == 0
    assert fit(keras3, keras3.optimizers.SGD(1.0), jit_compile=True).jit_compile, "others may use XLA"


class OwnTrainStep:
    """A model that is compiled without the optimizer that it uses."""

    @staticmethod
    def of(keras3, optimizer):
        class Model(keras3.keras.Model):
            def __init__(self):
                super().__init__()
                self.layer = keras3.dense()
                self.mine = optimizer

            def train_step(self, data):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(self.layer(data[0]))
                weights = self.layer.trainable_weights
                self.mine.apply_gradients(zip(tape.gradient(loss, weights), weights))
                return {"loss": loss}

        return Model()


def ours(caplog):
    return [r for r in caplog.records if (r.name, r.levelname) == ("compat_hvd.keras", "INFO") and "XLA" in r.message]


def test_jit_compile_auto_means_false_also_with_a_gpu(hvd, keras3, monkeypatch, caplog):
    caplog.set_level(logging.INFO, logger="compat_hvd.keras")
    devices = [SimpleNamespace(device_type="CPU"), SimpleNamespace(device_type="GPU")]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: devices)
    wrapped = [
        lambda: hvd.DistributedOptimizer(keras3.optimizers.SGD(1.0)),
        lambda: keras3.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(keras3.optimizers.SGD(1.0))),
    ]
    for make in wrapped:
        caplog.clear()
        model = fit(keras3, make())
        assert model.jit_compile is False
        assert model.get_weights()[0].item() == -MEAN
        assert len(ours(caplog)) == 1
    caplog.clear()
    model = OwnTrainStep.of(keras3, hvd.DistributedOptimizer(keras3.optimizers.SGD(1.0)))
    model.compile()
    model.fit(np.full((1, 1), RANK + 1.0), np.zeros((1, 1)), verbose=0)
    assert model.get_weights()[0].item() == -MEAN
    assert len(ours(caplog)) == 1
    caplog.clear()
    assert fit(keras3, keras3.optimizers.SGD(1.0)).jit_compile is True, "others use XLA"
    assert not ours(caplog)
