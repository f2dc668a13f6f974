"""States of elastic training: commit, restore and sync, with variables of all kinds. Restarts are in tests/launched."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from world import RANK, SIZE

v1 = tf.compat.v1


@pytest.fixture(params=["eager", "reference", "resource", "finalized", "monitored"])
def place(request, hvd):
    """A state of two variables, which begin as r and [r, r], of two dtypes, and how to read and set them."""
    if request.param == "eager":
        a, b = tf.Variable(float(RANK)), tf.Variable([RANK, RANK], dtype=tf.int64)
        state = hvd.elastic.TensorFlowState([a, b], epoch=RANK, history=[RANK])
        yield state, lambda: [a.numpy(), b.numpy()], lambda x, y: (a.assign(x), b.assign(y))
        return
    with tf.Graph().as_default():
        use_resource = request.param != "reference"
        shared = tf.constant(float(RANK))
        a = v1.get_variable("a", initializer=shared, use_resource=use_resource)
        v1.get_variable("of_the_same_initial_value", initializer=shared, use_resource=use_resource)
        b = v1.get_variable("b", initializer=np.array([RANK, RANK]), use_resource=use_resource)
        x, y = v1.placeholder(a.dtype.base_dtype, []), v1.placeholder(b.dtype.base_dtype, [2])
        both = tf.group(a.assign(x), b.assign(y))
        initialize = v1.global_variables_initializer()
        if request.param == "monitored":
            session = v1.train.MonitoredSession()
        else:
            session = v1.Session()
            session.run(initialize)
        if request.param == "finalized":
            session.graph.finalize()
        with session:
            state = hvd.elastic.TensorFlowState(session=session, epoch=RANK, history=[RANK])
            yield state, lambda: session.run([a, b]), lambda v, w: session.run(both, {x: v, y: w})


def values(read):
    return [np.asarray(value).tolist() for value in read()]


def test_commit_and_restore(hvd, place):
    state, read, write = place
    assert (state.epoch, state.history) == (RANK, [RANK])
    write(5.0 + RANK, [6, RANK])
    state.epoch = 10 * RANK
    state.history.append("committed")
    state.commit()
    write(0.0, [0, 0])
    state.epoch, state.other = -1, "kept"
    state.history.append("lost")
    for _ in range(2):
        state.restore()
        assert values(read) == [5.0 + RANK, [6, RANK]]
        assert (state.epoch, state.history, state.other) == (10 * RANK, [RANK, "committed"], "kept")
        state.history.append("changed after the restore")


def test_sync_gives_everyone_what_rank_0_has_now(hvd, place):
    state, read, write = place
    for number in range(3):
        write(5.0 + RANK + number, [6, RANK])
        state.epoch, state.history = 7 + RANK + number, {"rank": RANK}
        state.sync()
        assert values(read) == [5.0 + number, [6, 0]]
        assert (state.epoch, state.history) == (7 + number, {"rank": 0})
    write(0.0, [0, 0])
    state.epoch = -1
    state.restore()
    assert values(read) == [7.0, [6, 0]]
    assert state.epoch == 9


def test_nothing_is_added_to_the_graph(hvd, session):
    a = v1.get_variable("a", initializer=float(RANK))
    session.run(v1.global_variables_initializer())
    state = hvd.elastic.TensorFlowState(epoch=0)
    session.run(a)
    before = len(session.graph.get_operations())
    for _ in range(3):
        state.sync()
        state.commit()
        state.restore()
    assert len(session.graph.get_operations()) == before
    assert session.run(a) == 0.0


def test_many_dtypes(hvd):
    dtypes = [tf.float16, tf.bfloat16, tf.float64, tf.bool, tf.uint32, tf.complex64, tf.int8]
    variables = [tf.Variable(tf.cast(RANK + 1, dtype), dtype=dtype) for dtype in dtypes]
    texts = [tf.Variable(["rank", str(RANK)]), tf.Variable(str(RANK))]
    hvd.elastic.TensorFlowState([*variables, *texts]).sync()
    assert [complex(variable.numpy()) for variable in variables] == [1] * len(dtypes)
    assert [text.numpy().tolist() if text.shape.rank else text.numpy() for text in texts] == [[b"rank", b"0"], b"0"]


def test_reset_callbacks_and_what_a_fixed_set_never_has(hvd):
    calls = []
    state = hvd.elastic.TensorFlowState([], epoch=1)
    state.register_reset_callbacks([lambda: calls.append(1), lambda: calls.append(2)])
    state.register_reset_callbacks([lambda: calls.append(3)])
    state.on_reset()
    assert calls == [1, 2, 3]
    assert state.on_hosts_updated(0.0, 1) is None
    assert state.check_host_updates() is None


def test_run_returns_what_the_function_does(hvd):
    state = hvd.elastic.TensorFlowState([], epoch=RANK)

    @hvd.elastic.run
    def train(state, more, less=0):
        """Trains."""
        return state.epoch + more - less

    assert train(state, 5, less=2) == 3
    assert train.__name__ == "train"
    assert train.__doc__ == "Trains."


def test_errors_of_others_pass(hvd):
    """Horovod swallows the first; neither may become a restart."""
    state = hvd.elastic.TensorFlowState([])

    @hvd.elastic.run
    def fail(state, error):
        raise error

    with pytest.raises(tf.errors.UnknownError, match="HorovodAllreduce of a disk"):
        fail(state, tf.errors.UnknownError(None, None, "HorovodAllreduce of a disk"))
    with pytest.raises(KeyError, match="mine"):
        fail(state, KeyError("mine"))


def test_ranks_with_other_variables(hvd):
    if SIZE == 1:
        pytest.skip("nobody to differ from")
    variables = [tf.Variable([1.0])] + [tf.Variable([[1.0]])] * (RANK == SIZE - 1)
    with pytest.raises(ValueError, match=rf"2 variables, the last float32 \(1, 1\) on rank {SIZE - 1}"):
        hvd.elastic.TensorFlowState(variables).sync()


def test_no_variables_in_eager_mode_is_warned_about(hvd):
    with pytest.warns(UserWarning, match="variables"):
        state = hvd.elastic.TensorFlowState(epoch=RANK)
    state.sync()
    assert state.epoch == 0


def test_a_graph_needs_a_session(hvd):
    with tf.Graph().as_default(), pytest.raises(ValueError, match="session"):
        hvd.elastic.TensorFlowState()


@pytest.mark.parametrize("optimizer", ["adam", "legacy", "none"])
@pytest.mark.parametrize("name", ["keras", "tf_keras"])
def test_keras(hvd, name, optimizer):
    """Rank 0 has made a step, the others have not, so that their optimizers have no variables yet."""
    keras = pytest.importorskip(name, reason=f"{name} is not installed")
    if optimizer == "legacy" and hasattr(keras, "ops"):
        pytest.skip("Keras 3 has no legacy optimizers")
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1), keras.layers.Dropout(0.5)])
    model.set_weights([np.full((2, 1), RANK + 1.0), np.array([RANK])])
    chosen = {"legacy": lambda: keras.optimizers.legacy.Adam(0.5), "adam": lambda: keras.optimizers.Adam(0.5)}
    if optimizer != "none":
        model.compile(optimizer=chosen[optimizer](), loss="mse")
        if RANK == 0:
            model.fit(np.ones((4, 2)), np.ones(4), verbose=0)
    state = hvd.elastic.TensorFlowKerasState(model, epoch=RANK)
    before = hvd.broadcast_object([np.asarray(weight) for weight in model.get_weights()])
    state.sync()
    for weight, expected in zip(model.get_weights(), before):
        np.testing.assert_array_equal(weight, expected)
    assert state.epoch == 0
    if optimizer != "none":
        assert int(model.optimizer.iterations) == 1
    model.set_weights([np.zeros((2, 1)), np.zeros(1)])
    state.epoch = 3
    state.restore()
    for weight, expected in zip(model.get_weights(), before):
        np.testing.assert_array_equal(weight, expected)
    assert state.epoch == 0


def test_keras_model_that_is_not_built(hvd):
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="built"):
        hvd.elastic.TensorFlowKerasState(model, tf.keras.optimizers.SGD())
