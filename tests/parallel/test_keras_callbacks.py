"""Callbacks for Keras 2 and 3, and for Keras 2 in sessions."""

from __future__ import annotations

import kerases
import numpy as np
import pytest
import tensorflow as tf
from world import RANK, SIZE, equal_on_all_ranks

from compat_hvd.tensorflow.keras_shared import callbacks, elastic, learning_rate

pytestmark = pytest.mark.two_ranks

MEAN = (SIZE + 1) / 2  # of r + 1


@pytest.fixture(params=[*kerases.FLAVORS, "session"])
def kind(request, hvd):
    """A kind of Keras; "session" is Keras 2 in a graph of its own, where models run in a session."""
    if request.param != "session":
        yield kerases.kind(request.param)
        return
    found = kerases.kind("legacy")
    found.keras.backend.clear_session()
    with tf.Graph().as_default():
        yield found


@pytest.fixture(params=kerases.FLAVORS)
def eager_kind(request, hvd):
    return kerases.kind(request.param)


def mean_of_output(target, output):
    """The loss of a model that computes w * x; its gradient for w is the mean of x."""
    return tf.reduce_mean(output)


def fit(kind, model, *used, samples=1, epochs=1, x=RANK + 1.0):
    """Trains on batches of one sample; returns the history."""
    inputs, targets = np.full((samples, 1), x, np.float32), np.zeros((samples, 1), np.float32)
    return model.fit(inputs, targets, batch_size=1, epochs=epochs, callbacks=list(used), verbose=0).history


class Seen:
    """Notes a value at the end of each batch."""

    def __init__(self, kind, look):
        super().__init__()
        self.values = []

        class Callback(kind.keras.callbacks.Callback):
            def on_train_batch_end(callback, batch, logs=None):
                self.values.append(look(callback.model))

        self.callback = Callback()


# ------------------------------------------------------------------------------ BroadcastGlobalVariablesCallback


@pytest.mark.parametrize("inputs", [(1,), None], ids=["built", "unbuilt"])
def test_the_first_step_starts_from_the_roots_weights(hvd, kind, inputs):
    """The loss is (w * x) ** 2 / 2, so that a gradient made of other weights than the root's would show."""
    if inputs is None and not tf.executing_eagerly():
        pytest.skip("a model in a session is built before training begins")
    root = SIZE - 1
    kernel = kind.keras.initializers.Constant(float(RANK + 1))
    model = kind.model(kind.dense(kernel=kernel), inputs=inputs)
    optimizer = hvd.DistributedOptimizer(kind.optimizers.SGD(0.01, momentum=0.5))
    model.compile(optimizer, loss=lambda target, output: tf.reduce_mean(tf.square(output)) / 2.0)
    callback = kind.callback(callbacks.BroadcastGlobalVariables)(root)
    fit(kind, model, callback)
    assert callback.broadcast_done
    square = np.mean([(rank + 1.0) ** 2 for rank in range(SIZE)])
    np.testing.assert_allclose(model.get_weights()[0].item(), (root + 1) * (1 - 0.01 * square), rtol=1e-5)
    # Later training is not interfered with.
    model.set_weights([np.full((1, 1), RANK + 1.0)])
    fit(kind, model, callback, x=0.0)
    assert (model.get_weights()[0].item() - (RANK + 1)) == pytest.approx(0.5 * -0.01 * square * (root + 1), rel=1e-4)


def test_the_state_of_the_optimizer_is_the_roots(hvd, eager_kind):
    """Rank r has made r steps before, as if the root had restored a checkpoint."""
    kind = eager_kind
    model = kind.model(kind.dense())
    sgd = kind.optimizers.SGD(1.0, momentum=0.5)
    for _ in range(RANK + 1):
        sgd.apply_gradients([(tf.ones([1, 1]), model.trainable_variables[0])])
    sgd.learning_rate = 1.0 + RANK
    model.compile(hvd.DistributedOptimizer(sgd), loss=mean_of_output)
    fit(kind, model, kind.callback(callbacks.BroadcastGlobalVariables)(0), x=0.0)
    assert int(sgd.iterations.numpy()) == 2
    assert model.get_weights()[0].item() == -1.5
    if kind.name == "keras3":  # Elsewhere the learning rate is no variable of the state.
        assert float(sgd.learning_rate.numpy()) == 1.0


def test_local_variables_stay(hvd, kind):
    layers = [kind.dense(kernel=kind.keras.initializers.Constant(float(RANK)), trainable=False) for _ in range(2)]
    model = kind.model(*layers)
    model.compile(loss="mse")
    callback = kind.callback(callbacks.BroadcastGlobalVariables)(SIZE - 1, local_variables=layers[0].variables)
    fit(kind, model, callback)
    assert [weight.item() for weight in model.get_weights()] == [RANK, SIZE - 1]
    for wrong in ("w", np.zeros(1)):
        with pytest.raises(ValueError, match=r"tf\.Variable"):
            callback.register_local_var(wrong)


def test_models_that_cannot_be_built_before_are_synchronised_after_the_first_batch(hvd, eager_kind, caplog):
    kind = eager_kind

    class Model(kind.keras.Model):
        """It has no ``call``."""

        def __init__(self):
            super().__init__()
            self.layer = kind.dense(kernel=kind.keras.initializers.Constant(float(RANK + 1)))

        def train_step(self, data):
            return {"loss": tf.reduce_mean(self.layer(data[0]))}

    model = Model()
    model.compile()
    fit(kind, model, kind.callback(callbacks.BroadcastGlobalVariables)(SIZE - 1))
    assert "after its first batch only" in caplog.text
    assert model.layer.get_weights()[0].item() == SIZE


# ------------------------------------------------------------------------------ MetricAverageCallback


def test_metrics_are_averaged_before_later_callbacks_see_them(hvd, kind):
    seen = []

    class Later(kind.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(dict(logs))

    model = kind.model(kind.dense(kernel="ones"))
    model.compile(hvd.DistributedOptimizer(kind.optimizers.SGD(0.0)), loss=mean_of_output)
    history = fit(kind, model, kind.callback(callbacks.MetricAverage)(), Later(), epochs=2)
    assert history["loss"] == [MEAN, MEAN]
    assert [logs["loss"] for logs in seen] == [MEAN, MEAN]


def test_different_metrics_are_an_error_that_names_them(hvd):
    average = callbacks.averaged
    assert average({"b": RANK + 1.0, "a": np.array([RANK, 1.0])})["a"].tolist() == [(SIZE - 1) / 2, 1.0]
    assert average({}) == {}
    if SIZE == 1:
        return
    metrics = {"loss": 1.0, "val_loss": 2.0} if RANK == SIZE - 1 else {"loss": 1.0}
    with pytest.raises(ValueError, match=r"cannot average val_loss.*rank 0 has none of them.*of shape \(\)"):
        average(metrics)
    with pytest.raises(ValueError, match=r"cannot average acc.*rank 0 has acc of shape \(1,\)"):
        average({"acc": [1.0] if RANK == 0 else 1.0})
    assert average({"loss": RANK + 1.0}) == {"loss": MEAN}


def test_an_epoch_with_and_without_validation_is_an_error(hvd, eager_kind):
    kind = eager_kind
    model = kind.model(kind.dense())
    model.compile(hvd.DistributedOptimizer(kind.optimizers.SGD(0.0)), loss=mean_of_output)
    data = np.ones((1, 1)), np.zeros((1, 1))
    arguments = {"callbacks": [kind.callback(callbacks.MetricAverage)()], "verbose": 0}
    if SIZE == 1:
        return
    with pytest.raises(ValueError, match="val_loss"):
        model.fit(*data, validation_data=data if RANK == 0 else None, **arguments)


# ------------------------------------------------------------------------------ learning rates


def rate_of(model):
    return learning_rate.Hyperparameters(model.optimizer).learning_rate


def test_warmup(hvd, kind, capsys):
    """After batch b of B in epoch e: lr / n * ((e + (b + 1) / B) * (n - 1) / 2 + 1)."""
    model = kind.model(kind.dense())
    model.compile(hvd.DistributedOptimizer(kind.optimizers.SGD(0.5)), loss=mean_of_output)
    seen = Seen(kind, rate_of)
    warmup = kind.callback(learning_rate.LearningRateWarmup)(0.5, warmup_epochs=2, verbose=1)
    history = fit(kind, model, warmup, seen.callback, samples=4, epochs=3)
    steps = [min((step + 1) / 4, 2) for step in range(12)]
    np.testing.assert_allclose(seen.values, [0.5 / SIZE * (e * (SIZE - 1) / 2 + 1) for e in steps], rtol=1e-6)
    np.testing.assert_allclose(history["lr"], seen.values[3::4], rtol=1e-6)
    printed = capsys.readouterr().out
    assert printed.count("Epoch 2: finished gradual learning rate warmup to 0.5.") == (1 if RANK == 0 else 0)


def test_schedules(hvd, kind):
    model = kind.model(kind.dense())
    model.compile(hvd.DistributedOptimizer(kind.optimizers.SGD(1.0)), loss=mean_of_output)
    schedule = kind.callback(learning_rate.LearningRateSchedule)
    seen = Seen(kind, rate_of)
    used = [
        schedule(8.0, 0.5, start_epoch=1, end_epoch=4),
        schedule(8.0, lambda epoch: epoch / 4, start_epoch=4, staircase=False),
    ]
    fit(kind, model, *used, seen.callback, samples=2, epochs=6)
    assert seen.values == [1.0, 1.0, 8.0, 8.0, 4.0, 4.0, 2.0, 2.0, 8.0, 9.0, 10.0, 11.0]
    with pytest.raises(ValueError, match="initial_lr"):
        schedule(None, 0.5)


def test_momentum_is_corrected_for_one_batch(hvd, kind):
    """v = 1/2 v * new/old - lr g, where g = 1; the rate doubles at the second of three epochs of one batch."""
    for correct, factor in ((True, 2.0), (False, 1.0)):
        model = kind.model(kind.dense())
        model.compile(hvd.DistributedOptimizer(kind.optimizers.SGD(1.0, momentum=0.5)), loss=mean_of_output)
        schedule = kind.callback(learning_rate.LearningRateSchedule)(
            1.0, lambda epoch: 2.0 if epoch else 1.0, momentum_correction=correct
        )
        fit(kind, model, schedule, epochs=3, x=1.0)
        velocities = [-1.0, -0.5 * factor - 2.0]
        velocities.append(0.5 * velocities[1] - 2.0)
        assert model.get_weights()[0].item() == pytest.approx(sum(velocities), rel=1e-6)


def test_a_rate_under_a_schedule_of_its_own_is_refused(hvd, eager_kind):
    kind = eager_kind
    rate = kind.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    model = kind.model(kind.dense())
    model.compile(hvd.DistributedOptimizer(kind.optimizers.SGD(rate)), loss=mean_of_output)
    with pytest.raises(ValueError, match="ExponentialDecay"):
        fit(kind, model, kind.callback(learning_rate.LearningRateSchedule)(0.1, 0.5))


# ------------------------------------------------------------------------------ BestModelCheckpoint, sessions


def test_the_best_model_is_kept(hvd, eager_kind, tmp_path):
    kind = eager_kind
    model = kind.model(kind.dense())
    model.compile(hvd.DistributedOptimizer(kind.optimizers.SGD(1.0)), loss=mean_of_output)
    best = kind.callback(callbacks.BestModel)(monitor="loss")
    with pytest.raises(ValueError, match="filepath"):
        fit(kind, model, best)
    best.filepath = str(tmp_path / "best.keras")
    # w * x falls at first and rises when x turns negative.
    for x in (1.0, 2.0, -9.0):
        fit(kind, model, best, x=x)
    loaded = kind.keras.models.load_model(best.filepath, compile=False)
    assert loaded.get_weights()[0].item() == -3.0


def test_training_in_a_session_equals_one_process(hvd):
    """20 steps of Keras 2 in graph mode, on a part of each batch and on all of it."""
    kind = kerases.kind("legacy")
    mine = slice(RANK * 4, (RANK + 1) * 4)

    def train(wrap, rows, *used):
        kind.keras.backend.clear_session()
        with tf.Graph().as_default():
            random = np.random.RandomState(3)
            x, y = random.standard_normal((20, SIZE * 4, 3)), random.standard_normal((20, SIZE * 4, 1))
            first, second = random.standard_normal((3, 8)) / 3, random.standard_normal((8, 1)) / 3
            start = kind.keras.initializers.Constant
            model = kind.model(
                kind.dense(8, kernel=start(first + RANK * bool(used)), activation="relu"),
                kind.dense(1, kernel=start(second), use_bias=True),
                inputs=(3,),
            )
            model.compile(wrap(kind.optimizers.SGD(0.05, momentum=0.9)), loss="mse")
            x, y = x[:, rows].reshape(-1, 3), y[:, rows].reshape(-1, 1)
            model.fit(x, y, batch_size=len(x) // 20, shuffle=False, verbose=0, callbacks=list(used))
            return np.concatenate([weight.ravel() for weight in model.get_weights()])

    weights = train(hvd.DistributedOptimizer, mine, kind.callback(callbacks.BroadcastGlobalVariables)(0))
    assert np.abs(weights - train(lambda one: one, slice(None))).max() < 1e-6
    assert equal_on_all_ranks(weights)


@pytest.mark.parametrize("average", [False, True])
def test_aggregation_in_a_session(hvd, average):
    """Gradients r + 1, a window of two: -2 * MEAN after two passes, averaged -MEAN."""
    kind = kerases.kind("legacy")
    kind.keras.backend.clear_session()
    with tf.Graph().as_default():
        model = kind.model(kind.dense())
        optimizer = hvd.DistributedOptimizer(
            kind.optimizers.SGD(1.0), backward_passes_per_step=2, average_aggregated_gradients=average
        )
        model.compile(optimizer, loss=mean_of_output)
        seen = Seen(kind, lambda model: model.get_weights()[0].item())
        fit(kind, model, seen.callback, samples=5)
        step = -MEAN if average else -2 * MEAN
        assert seen.values == [0.0, step, step, 2 * step, 2 * step]
        assert kind.keras.backend.get_value(optimizer.iterations) == 5


# ------------------------------------------------------------------------------ elastic training


def test_training_goes_on_from_the_last_commit(hvd, kind):
    """The second epoch fails in its third of four batches; commits are made after two batches and after epochs."""
    model = kind.model(kind.dense(kernel=kind.keras.initializers.Constant(float(RANK))))
    model.compile(hvd.DistributedOptimizer(kind.optimizers.SGD(1.0)), loss=mean_of_output)
    state = elastic.KerasState(model, batch=0, epoch=0)
    begun = []

    class Fail(kind.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if len(begun) == 1 and state.epoch == 1 and batch == 2:
                raise hvd.elastic.HorovodInternalError("on purpose")

    @hvd.elastic.run
    def train(state):
        begun.append((state.epoch, state.batch, model.get_weights()[0].item()))
        used = [
            kind.callback(elastic.UpdateBatchState)(state),
            kind.callback(elastic.UpdateEpochState)(state),
            Fail(),
            kind.callback(elastic.CommitState)(state, batches_per_commit=2),
        ]
        fit(kind, model, *used, samples=4 - state.batch, epochs=1)
        if state.epoch < 3:
            fit(kind, model, *used, samples=4, epochs=3 - state.epoch)

    train(state)
    # What was committed is the number of the last batch, not how many there were: it is trained again, as with Horovod.
    assert begun == [(0, 0, 0.0), (1, 1, -6 * MEAN)]
    assert (state.epoch, state.batch) == (3, 0)
    assert model.get_weights()[0].item() == (-6 - 3 - 4) * MEAN
    assert equal_on_all_ranks(model.get_weights()[0])
