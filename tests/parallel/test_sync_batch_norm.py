"""SyncBatchNormalization against one process that has all ranks' batches."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from world import RANK, SIZE, equal_on_all_ranks

CHANNELS = 3
EQUAL = [4] * SIZE
UNEQUAL = [rank + 1 for rank in range(SIZE)]
ONE_EMPTY = [0 if rank == SIZE - 1 and SIZE > 1 else 3 for rank in range(SIZE)]


@pytest.fixture(params=["keras", "tf_keras"])
def keras(request):
    """Both Keras where both are installed; ``tf.keras`` may be either."""
    return pytest.importorskip(request.param, reason=f"{request.param} is not installed")


@pytest.fixture(params=["eager", "function"])
def compiled(request):
    return tf.function if request.param == "function" else lambda function: function


def layer_of(hvd, keras, **kwargs):
    return hvd.sync_batch_norm.layer_class(keras)(**kwargs)


def reference_of(keras, **kwargs):
    fused = {} if hasattr(keras, "ops") else {"fused": False}
    return keras.layers.BatchNormalization(**kwargs, **fused)


class Batches:
    """The batches of all ranks, the same random numbers on every rank; far from zero, where squares would cancel."""

    def __init__(self, counts, shape=(), dtype=np.float32, offset=50.0):
        random = np.random.default_rng(7)
        size = (sum(counts), *shape, CHANNELS)
        self.joined = (random.normal(size=size) * [1.0, 2.0, 0.5] + offset).astype(dtype)
        self.coefficients = random.normal(size=size).astype(dtype)
        first = sum(counts[:RANK])
        self.rows = slice(first, first + counts[RANK])

    def mine(self):
        return self.joined[self.rows], self.coefficients[self.rows]


def step(layer, compiled, x, coefficients, mask=None):
    """Outputs, and the gradients of sum(coefficients * outputs) for the inputs, gamma and beta."""
    masked = {} if mask is None else {"mask": tf.constant(mask)}

    @compiled
    def run(x, coefficients):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = layer(x, training=True, **masked)
            loss = tf.reduce_sum(tf.cast(outputs, tf.float32) * tf.cast(coefficients, tf.float32))
        return (outputs, *tape.gradient(loss, [x, *layer.trainable_variables]))

    layer.build(x.shape)
    return [np.asarray(one) for one in run(tf.constant(x), tf.constant(coefficients))]


def compare(hvd, layer, reference, compiled, batches, mask=None, rtol=2e-4):
    x, coefficients = batches.mine()
    mine = None if mask is None else mask[batches.rows]
    outputs, dx, dgamma, dbeta = step(layer, compiled, x, coefficients, mine)
    expected = step(reference, lambda f: f, batches.joined, batches.coefficients, mask)
    close = {"rtol": rtol, "atol": rtol}
    np.testing.assert_allclose(outputs, expected[0][batches.rows], **close)
    np.testing.assert_allclose(dx, expected[1][batches.rows], **close)
    # One loss is the sum over the ranks, and so is the gradient of what they share.
    np.testing.assert_allclose(hvd.allreduce(dgamma, op=hvd.Sum), expected[2], **close)
    np.testing.assert_allclose(hvd.allreduce(dbeta, op=hvd.Sum), expected[3], **close)
    np.testing.assert_allclose(layer.moving_mean, reference.moving_mean, rtol=1e-5)
    np.testing.assert_allclose(layer.moving_variance, reference.moving_variance, rtol=1e-4)
    assert equal_on_all_ranks(np.asarray(layer.moving_variance))


@pytest.mark.parametrize("counts", [EQUAL, UNEQUAL, ONE_EMPTY], ids=["equal", "unequal", "empty"])
def test_as_one_process(hvd, keras, compiled, counts):
    compare(hvd, layer_of(hvd, keras), reference_of(keras), compiled, Batches(counts))


@pytest.mark.parametrize("axis", [-1, 1])
def test_images(hvd, keras, axis):
    """Four dimensions, for which Keras 2 would take its fused kernel; with channels last or first."""
    batches = Batches(UNEQUAL, (2, 5))
    if axis == 1:
        batches.joined = np.moveaxis(batches.joined, -1, 1)
        batches.coefficients = np.moveaxis(batches.coefficients, -1, 1)
    arguments = {"axis": axis, "momentum": 0.5, "epsilon": 1e-2}
    compare(hvd, layer_of(hvd, keras, **arguments), reference_of(keras, **arguments), tf.function, batches)


def test_masked(hvd, keras, compiled):
    """Masked elements count nowhere; rank r masks r of its 4 time steps."""
    batches = Batches(EQUAL, (4,))
    # Keras 3 adds its epsilon to the sum of the weights, which matters less near zero.
    batches.joined -= 50
    mask = np.repeat([[step >= rank for step in range(4)] for rank in range(SIZE)], EQUAL, axis=0)
    compare(hvd, layer_of(hvd, keras), reference_of(keras), compiled, batches, mask)


@pytest.mark.parametrize("policy", ["mixed_float16", "float16", "float64"])
def test_dtypes(hvd, keras, policy):
    """The statistics of half-precision inputs: their squares would overflow, and their sums round."""
    dtype = np.float64 if policy == "float64" else np.float16
    batches = Batches(UNEQUAL, (64,), dtype, offset=300.0)
    layer, reference = layer_of(hvd, keras, dtype=policy), reference_of(keras, dtype=policy)
    x, coefficients = batches.mine()
    outputs, *_ = step(layer, tf.function, x, coefficients)
    expected, *_ = step(reference, lambda f: f, batches.joined, batches.coefficients)
    assert outputs.dtype == dtype
    np.testing.assert_allclose(outputs, expected[batches.rows], **({"atol": 1e-2} if dtype == np.float16 else {}))


def test_a_large_mean(hvd, keras):
    """A variance of 1 about a mean of 10,000: the difference of float32 squares would be noise."""
    batches = Batches(UNEQUAL, (50,), offset=1e4)
    layer, reference = layer_of(hvd, keras), reference_of(keras)
    step(layer, tf.function, *batches.mine())
    step(reference, lambda f: f, batches.joined, batches.coefficients)
    np.testing.assert_allclose(layer.moving_variance, reference.moving_variance, rtol=1e-3)


def test_several_steps_and_inference(hvd, keras):
    layer, reference = layer_of(hvd, keras, momentum=0.5), reference_of(keras, momentum=0.5)
    for counts in (EQUAL, UNEQUAL, ONE_EMPTY):
        batches = Batches(counts)
        layer(batches.mine()[0], training=True)
        reference(batches.joined, training=True)
    np.testing.assert_allclose(layer.moving_mean, reference.moving_mean, rtol=1e-5)
    np.testing.assert_allclose(layer.moving_variance, reference.moving_variance, rtol=1e-3)
    if RANK == 0:  # alone: nothing is exchanged
        x = batches.joined[:2]
        np.testing.assert_allclose(layer(x, training=False), reference(x, training=False), rtol=1e-3)
        layer.trainable = False
        np.testing.assert_allclose(layer(x, training=True), reference(x, training=False), rtol=1e-3)


def test_no_rank_has_an_element(hvd, keras):
    if SIZE == 1:
        pytest.skip("one rank uses the layer of Keras as it is")
    layer = layer_of(hvd, keras, moving_mean_initializer="ones")
    outputs = layer(np.zeros((0, CHANNELS), np.float32), training=True)
    assert outputs.shape == (0, CHANNELS)
    np.testing.assert_array_equal(layer.moving_mean, np.ones(CHANNELS))
    np.testing.assert_array_equal(layer.moving_variance, np.ones(CHANNELS))


def test_twice_in_one_model(hvd, keras, compiled):
    """One layer for two inputs, and two layers, in one function: four reductions under way, none mistaken."""
    first, second = layer_of(hvd, keras, momentum=0.0), layer_of(hvd, keras, momentum=0.0)
    one, two = Batches(UNEQUAL), Batches(EQUAL)
    for layer in (first, second):
        layer.build((None, CHANNELS))

    @compiled
    def run(x, y):
        return first(x, training=True), first(y + 1.0, training=True), second(x, training=True)

    results = run(tf.constant(one.mine()[0]), tf.constant(two.mine()[0]))
    reference = reference_of(keras)
    for result, joined, rows in zip(results, (one.joined, two.joined, one.joined), (one.rows, two.rows, one.rows)):
        np.testing.assert_allclose(result, np.asarray(reference(joined, training=True))[rows], atol=1e-4)


def test_fit(hvd, keras):
    """Keras compiles the step; two steps of one batch each, with shards of different sizes."""
    batches = Batches(UNEQUAL)
    model = keras.Sequential([keras.layers.Input((CHANNELS,)), layer_of(hvd, keras, momentum=0.0)])
    model.compile(optimizer="sgd", loss="mse")
    x, _ = batches.mine()
    history = model.fit(x, x, batch_size=len(x), epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    np.testing.assert_allclose(model.layers[-1].moving_mean, batches.joined.mean(0), rtol=1e-5)
    np.testing.assert_allclose(model.layers[-1].moving_variance, batches.joined.var(0), rtol=1e-3)


def test_saved_and_loaded(hvd, keras, tmp_path):
    cls = hvd.sync_batch_norm.layer_class(keras)
    model = keras.Sequential([keras.layers.Input((CHANNELS,)), cls(momentum=0.7, name="norm")])
    assert cls().name.startswith("sync_batch_normalization")
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path, custom_objects={"SyncBatchNormalization": cls})
    assert type(loaded.layers[-1]) is cls
    assert loaded.layers[-1].momentum == 0.7
    again = cls.from_config(model.layers[-1].get_config())
    assert (again.name, again.momentum) == ("norm", 0.7)


def test_wrong_arguments(hvd, keras):
    for fused in (True, None):
        with pytest.raises(ValueError, match="fused"):
            layer_of(hvd, keras, fused=fused)
    with pytest.raises(ValueError, match="virtual_batch_size"):
        layer_of(hvd, keras, virtual_batch_size=2)


def test_the_class_at_the_door_is_that_of_tf_keras(hvd):
    assert issubclass(hvd.SyncBatchNormalization, tf.keras.layers.BatchNormalization)
    assert hvd.SyncBatchNormalization is hvd.sync_batch_norm.SyncBatchNormalization
    assert hvd.SyncBatchNormalization is hvd.SyncBatchNormalization
    with pytest.raises(AttributeError, match="unheard_of"):
        _ = hvd.unheard_of


def test_updates_in_a_session(hvd, session):
    """Keras 2 in a graph of TensorFlow 1: the updates are where scripts look for them, once each."""
    if hasattr(tf.keras, "ops"):
        keras = pytest.importorskip("tf_keras", reason="Keras 3 has no sessions, and tf_keras is not installed")
    else:
        keras = tf.keras
    batches = Batches(UNEQUAL)
    x = tf.compat.v1.placeholder(tf.float32, [None, CHANNELS])
    layer = layer_of(hvd, keras, momentum=0.5)
    outputs = layer(x, training=True)
    updates = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)
    assert len(updates) == 2
    session.run(tf.compat.v1.global_variables_initializer())
    session.run([outputs, updates], {x: batches.mine()[0]})
    mean, variance = session.run([layer.moving_mean, layer.moving_variance])
    np.testing.assert_allclose(mean, 0.5 * batches.joined.mean(0), rtol=1e-5)
    np.testing.assert_allclose(variance, 0.5 + 0.5 * batches.joined.var(0), rtol=1e-3)
