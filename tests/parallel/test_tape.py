"""DistributedGradientTape and PartialDistributedGradientTape, eagerly and inside tf.function."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
from world import RANK, SIZE

MEAN = (SIZE + 1) / 2  # of r + 1
TOTAL = SIZE * MEAN
SHARE = RANK + 1.0


@pytest.fixture(params=["eager", "function"])
def mode(request):
    """Runs a function of tensors as it is, or as a tf.function twice, where the second run uses the first's graph."""
    if request.param == "eager":
        return lambda function, *args: function(*args)

    def in_graph(function, *args):
        compiled = tf.function(function)
        compiled(*args)
        return compiled(*args)

    return in_graph


def weighted(*variables):
    """A loss whose gradient for each variable is r + 1 in every element."""
    return tf.add_n([tf.reduce_sum(variable) for variable in variables]) * SHARE


def close(gradient, expected, rtol=1e-6):
    np.testing.assert_allclose(tf.convert_to_tensor(gradient).numpy(), expected, rtol=rtol)


@pytest.mark.parametrize("wrapped", ["before", "while", "after"])
def test_it_may_be_wrapped_at_any_time(hvd, mode, wrapped):
    w = tf.Variable([1.0, 2.0], name="w")

    def gradient(c):
        if wrapped == "before":
            with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.reduce_sum(w * w * c)
        elif wrapped == "while":
            with tf.GradientTape() as inner:
                tape = hvd.DistributedGradientTape(inner)
                loss = tf.reduce_sum(w * w * c)
        else:
            with tf.GradientTape() as inner:
                loss = tf.reduce_sum(w * w * c)
            tape = hvd.DistributedGradientTape(inner)
        assert isinstance(tape, tf.GradientTape)
        assert type(tape).__name__ == "GradientTape"
        assert [v.name for v in tape.watched_variables()] == ["w:0"]
        return tape.gradient(loss, w)

    close(mode(gradient, tf.constant(SHARE)), [2 * MEAN, 4 * MEAN])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, MEAN),
        ({"op": "Sum"}, TOTAL),
        ({"op": "Min"}, 1.0),
        ({"op": "Max"}, SIZE),
        ({"op": "Product"}, float(np.prod(range(1, SIZE + 1)))),
        ({"gradient_predivide_factor": 4.0}, MEAN),
        ({"compression": "fp16"}, MEAN),
        ({"groups": 2}, MEAN),
        ({"groups": 9}, MEAN),
        ({"device_dense": "/cpu:0", "device_sparse": "/cpu:0", "sparse_as_dense": True}, MEAN),
    ],
    ids=str,
)
def test_arguments(hvd, mode, arguments, expected):
    arguments = dict(arguments)
    if "op" in arguments:
        arguments["op"] = getattr(hvd, arguments["op"])
    if "compression" in arguments:
        arguments["compression"] = hvd.Compression.fp16
    variables = [tf.Variable(np.zeros(shape, np.float32)) for shape in ([2], [], [3, 1])]

    def gradients():
        with tf.GradientTape() as tape:
            loss = weighted(*variables)
        return hvd.DistributedGradientTape(tape, **arguments).gradient(loss, variables)

    for gradient, variable in zip(mode(gradients), variables):
        close(gradient, np.full(variable.shape, expected))


def test_groups_of_variables(hvd, mode):
    a, b, c, unused = (tf.Variable([0.0]) for _ in range(4))
    half = tf.Variable(np.zeros(2), dtype=tf.float16)

    def gradients():
        with tf.GradientTape() as tape:
            loss = weighted(a, b, c) + tf.cast(weighted(half), tf.float32)
        tape = hvd.DistributedGradientTape(tape, groups=[[c, a, unused, half], [b]])
        return [g for g in tape.gradient(loss, [a, unused, b, half, c]) if g is not None]

    for gradient, length in zip(mode(gradients), (1, 1, 2, 1)):
        close(gradient, [MEAN] * length)


def test_num_groups_is_the_older_word(hvd):
    with pytest.warns(DeprecationWarning, match="groups"):
        hvd.DistributedGradientTape(tf.GradientTape(), num_groups=2)
    with pytest.warns(DeprecationWarning, match="groups"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), num_groups=2)


@pytest.mark.parametrize("sparse_as_dense", [False, True], ids=["sparse", "dense"])
def test_embedding(hvd, mode, sparse_as_dense):
    """Rank r takes rows 0 and r + 1; in a second step rank 0 takes row 1 three times and the others none."""
    table = tf.Variable(np.zeros((SIZE + 1, 2), np.float32), name="table")

    def gradient(ids):
        with hvd.DistributedGradientTape(tf.GradientTape(), sparse_as_dense=sparse_as_dense) as tape:
            loss = tf.reduce_sum(tf.gather(table, ids))
        found = tape.gradient(loss, table)
        if SIZE > 1:
            assert isinstance(found, tf.Tensor if sparse_as_dense else tf.IndexedSlices)
        return found

    close(mode(gradient, tf.constant([0, RANK + 1])), [[1.0] * 2] + [[1 / SIZE] * 2] * SIZE)
    ids = tf.constant([1, 1, 1] if RANK == 0 else [], tf.int32)
    close(mode(gradient, ids), [[0.0] * 2, [3 / SIZE] * 2] + [[0.0] * 2] * (SIZE - 1))


def test_any_structure_of_sources(hvd, mode):
    a, b, unused = tf.Variable([0.0], name="a"), tf.Variable(0.0, name="b"), tf.Variable(0.0, name="unused")
    x = tf.constant([[3.0]])

    def gradients(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            loss = weighted(a, b) + tf.reduce_sum(x) * SHARE
        tape = hvd.DistributedGradientTape(tape)
        nested = tape.gradient(loss, {"x": x, "layer": (a, [b])})
        assert set(nested) == {"x", "layer"}
        assert isinstance(nested["layer"], tuple)
        assert isinstance(nested["layer"][1], list)
        assert tape.gradient(loss, []) == []
        assert tape.gradient(loss, [unused]) == [None]
        assert tape.gradient(loss, unused) is None
        single = tape.gradient(loss, a)
        assert isinstance(single, tf.Tensor)
        return nested["x"], nested["layer"][0], nested["layer"][1][0], single

    for gradient, shape in zip(mode(gradients, x), ([1, 1], [1], [], [1])):
        close(gradient, np.full(shape, MEAN))


def test_unconnected_and_output_gradients(hvd, mode):
    a, unused = tf.Variable([1.0, 1.0]), tf.Variable([1.0])

    def gradients():
        with tf.GradientTape() as tape:
            target = 2.0 * a
        return hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(
            target, [a, unused], output_gradients=tf.constant([SHARE, 0.0]), unconnected_gradients="zero"
        )

    connected, zeros = mode(gradients)
    close(connected, [2 * TOTAL, 0.0])
    close(zeros, [0.0])


def test_unconnected_gradients_in_the_place_of_another_argument(hvd):
    """TensorFlow's fourth argument is not Horovod's; a value meant for the other must not be dropped silently."""
    w = tf.Variable(1.0)
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = w * w
    with pytest.raises(TypeError, match="unconnected_gradients by its keyword"):
        tape.gradient(loss, w, None, tf.UnconnectedGradients.ZERO)


@pytest.mark.parametrize("scaled", [True, False])
def test_local_sources_stay_unreduced(hvd, mode, scaled):
    shared, dense, table = tf.Variable([0.0]), tf.Variable([0.0]), tf.Variable([[0.0], [0.0]])

    def tape_and_loss():
        with tf.GradientTape(persistent=True) as tape:
            loss = weighted(shared, dense, tf.gather(table, [1]))
        tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scaled)
        tape.register_local_source(dense)
        tape.register_local_source(table)
        return tape, loss

    def gradients():
        tape, loss = tape_and_loss()
        found = tape.gradient(loss, [dense, shared, table])
        assert isinstance(found[2], tf.IndexedSlices)
        return found

    def apart():
        tape, loss = tape_and_loss()
        local, reduced = tape.get_local_and_global_gradients(loss, {"b": [shared, table], "a": dense})
        assert [source is expected for (source, _), expected in zip(local, (dense, table))] == [True, True]
        assert len(reduced) == 1
        assert reduced[0][0] is shared
        return [local[0][1], reduced[0][1], local[1][1]]

    mine = SHARE / (SIZE if scaled else 1)
    for function in (gradients, apart):
        dense_gradient, shared_gradient, table_gradient = mode(function)
        close(dense_gradient, [mine])
        close(shared_gradient, [MEAN])
        close(table_gradient, [[0.0], [mine]])


@pytest.mark.parametrize("generic", [False, True])
def test_names_are_the_same_on_every_trace(hvd, generic):
    """Rank 0 traces once, the others twice: with another shape, and another op before the tape."""
    w = tf.Variable([0.0], name="w")

    @tf.function
    def gradient(x):
        if RANK and x.shape[0] == 2:
            w.assign_add([0.0])
        with tf.GradientTape() as tape:
            loss = weighted(w) * tf.reduce_mean(x)
        return hvd.DistributedGradientTape(tape).gradient(loss, [w], use_generic_names=generic)[0]

    close(gradient(tf.ones([1])), [MEAN])
    close(gradient(tf.ones([1 if RANK == 0 else 2])), [MEAN])
    graph = gradient.get_concrete_function(tf.TensorSpec([2])).graph
    names = [op.get_attr("tensor_name").decode() for op in graph.get_operations() if op.type == "HorovodAllreduce"]
    assert names == [f"DistributedGradientTape/{'grad_0' if generic else 'w'}"] * (SIZE > 1)


def test_ranks_may_trace_in_opposite_orders(hvd):
    """Two tapes, each of several variables: odd ranks take both tapes, and the variables of each, backwards."""
    generator = [tf.Variable([0.0], name=f"generator{i}") for i in range(3)]
    critic = [tf.Variable([0.0], name=f"critic{i}") for i in range(3)]

    @tf.function
    def step():
        with tf.GradientTape() as one, tf.GradientTape() as two:
            losses = {0: weighted(*generator), 1: 2.0 * weighted(*critic)}
        found = {}
        for i in (0, 1) if RANK % 2 == 0 else (1, 0):
            tape = hvd.DistributedGradientTape((one, two)[i])
            variables = (generator, critic)[i][:: 1 if RANK % 2 == 0 else -1]
            found[i] = tape.gradient(losses[i], variables)
        return found[0] + found[1]

    for _ in range(3):
        for i, gradient in enumerate(step()):
            close(gradient, [MEAN if i < 3 else 2 * MEAN])


def test_order_of_sources_in_eager_mode(hvd):
    variables = [tf.Variable([0.0], name=f"w{i}") for i in range(4)]
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.add_n([weighted(w) * i for i, w in enumerate(variables)])
    mine = variables if RANK % 2 == 0 else variables[::-1]
    for gradient, w in zip(tape.gradient(loss, mine), mine):
        close(gradient, [MEAN * int(w.name[1])])


def test_sources_of_one_name(hvd, mode):
    """The names of variables need not differ, and tensors have none."""
    variables, x = [tf.Variable([0.0], name="same") for _ in range(3)], tf.constant([0.0])

    def gradients(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.add_n([weighted(w) * i for i, w in enumerate((*variables, x))])
        return hvd.DistributedGradientTape(tape).gradient(loss, [*variables, x])

    for i, gradient in enumerate(mode(gradients, x)):
        close(gradient, [MEAN * i])


def test_several_tapes_and_calls_in_one_function(hvd, mode):
    w = tf.Variable([1.0], name="w")

    def gradients():
        with tf.GradientTape(persistent=True) as tape:
            square, cube = tf.reduce_sum(w * w) * SHARE, tf.reduce_sum(w * w * w) * SHARE
        summing, averaging = hvd.DistributedGradientTape(tape, op=hvd.Sum), hvd.DistributedGradientTape(tape)
        with hvd.DistributedGradientTape(tf.GradientTape()) as another:
            loss = weighted(w)
        return [
            summing.gradient(square, w),
            averaging.gradient(square, w),
            averaging.gradient(cube, [w])[0],
            another.gradient(loss, w),
            tape.gradient(square, w),
        ]

    for gradient, expected in zip(mode(gradients), (2 * TOTAL, 2 * MEAN, 3 * MEAN, MEAN, 2 * SHARE)):
        close(gradient, [expected])


def test_the_rest_of_the_tape_is_the_wrapped_ones(hvd):
    w = tf.Variable(2.0)
    inner = tf.GradientTape(watch_accessed_variables=False, persistent=True)
    tape = hvd.DistributedGradientTape(inner)
    x, column = tf.constant([1.0, 2.0]), tf.constant([[1.0], [2.0]])
    with tape:
        assert tape.watched_variables() == ()
        tape.watch([w, column])
        with tape.stop_recording():
            ignored = w * w
        y = w * x * SHARE
        squares = column**2 * SHARE
    assert tape.gradient(ignored, w) is None
    close(tape.jacobian(y, w), [SHARE, 2 * SHARE])
    close(tape.batch_jacobian(squares, column), [[[2 * SHARE]], [[4 * SHARE]]])
    close(tape.gradient(y, w), 3 * MEAN)
    close(inner.gradient(y, w), 3 * SHARE)
    with tape:
        tape.reset()
        tape.watch(w)
        z = w * w
    close(tape.gradient(z, w), 4.0)


def test_a_tape_serves_once(hvd):
    w = tf.Variable(1.0)
    with tf.GradientTape() as inner:
        loss = w * w
    hvd.DistributedGradientTape(inner).gradient(loss, w)
    with pytest.raises(RuntimeError, match="non-persistent"):
        inner.gradient(loss, w)


def test_a_class_of_the_users_own(hvd):
    class Doubling(tf.GradientTape):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def gradient(self, *args, **kwargs):
            return tf.nest.map_structure(lambda g: g * self.factor, super().gradient(*args, **kwargs))

    w = tf.Variable([1.0])
    with hvd.DistributedGradientTape(Doubling(2.0)) as tape:
        loss = weighted(w)
    assert isinstance(tape, Doubling)
    close(tape.gradient(loss, w), [2 * MEAN])


def test_second_derivatives(hvd, mode):
    """Rank r's gradient is (r + 1) 3 w², whose mean is differentiated once more."""
    w = tf.Variable([2.0])

    def second():
        with tf.GradientTape() as outer:
            with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.reduce_sum(w * w * w) * SHARE
            gradient = tape.gradient(loss, w)
        return outer.gradient(gradient, w)

    # The gradient of a mean is the mean of the ranks' gradients, which are all 1 here, times the local 6 w (r + 1).
    close(mode(second), [12.0 * SHARE])


def test_process_set(hvd, mode):
    members = list(range((SIZE + 1) // 2))
    # The set of all ranks has an object of its own.
    process_set = hvd.add_process_set(members) if len(members) < SIZE else hvd.global_process_set
    w = tf.Variable([0.0])

    def gradient():
        with hvd.DistributedGradientTape(tf.GradientTape(), process_set=process_set) as tape:
            loss = weighted(w)
        return tape.gradient(loss, w)

    close(mode(gradient), [(len(members) + 1) / 2 if RANK in members else SHARE])
    if process_set is not hvd.global_process_set:
        assert hvd.remove_process_set(process_set)


def test_training_step(hvd):
    """Three steps of w -= 0.1 mean(gradient) on the loss c_r (w - r)² / 2, where c_r = r + 1."""
    w = tf.Variable(1.0)

    @tf.function
    def step(c, target):
        with tf.GradientTape() as tape:
            loss = c * (w - target) ** 2 / 2
        tape = hvd.DistributedGradientTape(tape)
        (gradient,) = tape.gradient(loss, [w])
        w.assign_sub(0.1 * gradient)

    expected = 1.0
    for _ in range(3):
        step(tf.constant(SHARE), tf.constant(float(RANK)))
        expected -= 0.1 * np.mean([(r + 1) * (expected - r) for r in range(SIZE)])
    close(w, expected)


def test_wrong_arguments(hvd):
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum, gradient_predivide_factor=2.0)
    for groups in (0, -1, [tf.Variable(0.0)], "two"):
        with pytest.raises(ValueError, match="groups"):
            hvd.DistributedGradientTape(tf.GradientTape(), groups=groups)
    with pytest.raises(TypeError, match="int"):
        hvd.DistributedGradientTape(3)
    with pytest.raises(ValueError, match="twice"):
        hvd.DistributedGradientTape(hvd.DistributedGradientTape(tf.GradientTape()))
    for layers in (tf.Variable(0.0), [1], "dense"):
        with pytest.raises(ValueError, match="local_layers"):
            hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=layers)


def test_gradients_that_cannot_be_reduced(hvd):
    if SIZE == 1:
        pytest.skip("one rank reduces nothing")
    w = tf.Variable(1.0 + 1.0j, dtype=tf.complex64)
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.math.real(w * tf.math.conj(w))
    with pytest.raises(TypeError, match="complex64"):
        tape.gradient(loss, w)
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0]])
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        tape.watch(ragged)
        loss = tf.reduce_sum(ragged)
    with pytest.raises(TypeError, match="RaggedTensor"):
        tape.gradient(loss, ragged)


def test_variables_are_not_kept_alive(hvd):
    w = tf.Variable([1.0])
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        tape.register_local_source(tf.Variable([1.0]))
        loss = weighted(w)
    tape.gradient(loss, [w])
    gone = weakref.ref(w)
    del w, tape, loss
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("mixed", ["keras", "tf_keras"])
def test_partial_tape(hvd, mode, mixed):
    """The layer `local` belongs to each rank alone; it has no variables yet when the tape is wrapped."""
    keras = pytest.importorskip(mixed)
    local = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    shared = keras.layers.Dense(1, kernel_initializer="ones")
    x = tf.constant([[SHARE]])

    def gradients(x):
        with hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=local) as tape:
            loss = tf.reduce_sum(shared(local(x)))
        return tape.gradient(loss, [*local.trainable_variables, *shared.trainable_variables])

    gradients(x)  # builds the layers
    for gradient, expected in zip(mode(gradients, x), (SHARE / SIZE, MEAN, 1.0)):
        close(gradient, np.full(gradient.shape, expected))
