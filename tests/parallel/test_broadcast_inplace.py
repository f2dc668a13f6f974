"""broadcast_: variables that are given the root's values where they are."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from fed import TRANSFERABLE
from world import RANK, SIZE

v1 = tf.compat.v1
KINDS = pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
SHAPES = [(), (0, 3), (2, 3)]


def content(rank, dtype, shape):
    return np.full(shape, (rank + 1) % 2 if dtype == tf.bool else rank + 1).astype(dtype.as_numpy_dtype)


@KINDS
@pytest.mark.parametrize("root", sorted({0, SIZE - 1}))
@pytest.mark.parametrize("name", [None, "named"])
def test_every_dtype_and_shape(hvd, session, use_resource, root, name):
    cases = [(dtype, shape) for dtype in TRANSFERABLE for shape in SHAPES]
    variables = [
        v1.get_variable(f"v{i}", initializer=content(RANK, *case), use_resource=use_resource)
        for i, case in enumerate(cases)
    ]
    updated = hvd.broadcast_(variables, root, name=name)
    session.run(v1.global_variables_initializer())
    for value, kept, case in zip(session.run(updated), session.run(variables), cases):
        assert np.array_equal(value, content(root, *case))
        assert np.array_equal(kept, value)


@KINDS
def test_one_thread_and_orders_of_their_own(hvd, use_resource):
    """A kernel that waited on TensorFlow's only thread would keep the others from being submitted."""
    config = v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        variables = [
            v1.get_variable(f"v{i}", initializer=[RANK + 10.0 * i], use_resource=use_resource) for i in range(20)
        ]
        order = list(range(20))
        np.random.RandomState(RANK).shuffle(order)
        updated = {i: hvd.broadcast_([variables[i]], SIZE - 1, name=f"b{i}")[0] for i in order}
        session.run(v1.global_variables_initializer())
        session.run([updated[i] for i in order])
        assert [value.item() for value in session.run(variables)] == [SIZE - 1 + 10.0 * i for i in range(20)]


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
def test_a_variable_of_another_shape_is_an_error_on_every_rank(hvd, session):
    """What the others hold is then either theirs or the root's, never half of each; and the job goes on."""
    odd = v1.get_variable("odd", initializer=np.zeros(2 + (RANK == 0), np.float32), use_resource=True)
    even = v1.get_variable("even", initializer=np.full(1000, RANK, np.float32), use_resource=True)
    session.run(v1.global_variables_initializer())
    both, good = hvd.broadcast_([odd, even], 0), hvd.broadcast_([even], 0, name="good")
    for _ in range(2):
        with pytest.raises(tf.errors.FailedPreconditionError, match="odd"):
            session.run(both)
        assert np.unique(session.run(even)).tolist() in ([RANK], [0])
    session.run(good)
    assert not session.run(even).any()


def test_references_are_returned_as_references(hvd, session):
    reference = v1.get_variable("a", initializer=1.0, use_resource=False)
    resource = v1.get_variable("b", initializer=1.0, use_resource=True)
    assert [one.dtype for one in hvd.broadcast_([reference], 0)] == [tf.float32._as_ref]
    assert [one.dtype for one in hvd.broadcast_([resource], 0)] == [tf.float32]
    with pytest.raises(ValueError, match="same kind"):
        hvd.broadcast_([reference, resource], 0)


def test_values_are_read_after_the_assignment(hvd, session):
    variable = v1.get_variable("v", initializer=float(RANK), use_resource=True)
    (value,) = hvd.broadcast_([variable], SIZE - 1)
    session.run(variable.initializer)
    for step in range(3):
        assert session.run(value) == SIZE - 1 + 10.0 * step
        session.run(variable.assign_add(10.0))
        session.run(variable.assign_add(0.0 if RANK == SIZE - 1 else 1.0))


def test_in_eager_mode(hvd):
    variables = [tf.Variable([10.0 * i + RANK], name=f"v{i}") for i in range(3)]
    values = hvd.broadcast_(variables, SIZE - 1)
    assert [value.numpy().item() for value in values] == [10.0 * i + SIZE - 1 for i in range(3)]
    assert [variable.numpy().item() for variable in variables] == [10.0 * i + SIZE - 1 for i in range(3)]


def test_what_cannot_be_sent_is_named(hvd, session):
    variable = v1.get_variable("text", initializer="text", use_resource=True)
    with pytest.raises(TypeError, match=r"text.*string"):
        hvd.broadcast_([variable], 0)


def test_no_variables(hvd, session):
    assert hvd.broadcast_([], 0) == []
