"""Names of collectives, without any collective."""

from __future__ import annotations

import gc
import weakref

import tensorflow as tf

from compat_hvd.tensorflow.names import GradientScope, collective_name, variable_names

v1 = tf.compat.v1


def agreed(name, **kwargs):
    return collective_name("HorovodAllreduce", None, name, **kwargs).agreed


def test_default_names_come_from_the_tensor():
    with tf.Graph().as_default(), tf.name_scope("net"):
        tensor = v1.placeholder(tf.float32, name="x")
        assert collective_name("HorovodAllreduce", tensor, None)[:2] == ("HorovodAllreduce_net_x_0", "")


def test_given_names_are_unique_within_a_graph():
    with tf.Graph().as_default():
        assert [agreed("a"), agreed("a"), agreed("a_1"), agreed("b")] == ["a", "a_1", "a_1_1", "b"]
        with tf.name_scope("s"):
            assert [agreed("a"), agreed("a", ignore_name_scope=True)] == ["s/a", "a_2"]
    with tf.Graph().as_default():
        assert agreed("a") == "a"


def test_eager_names_are_used_again():
    assert [agreed("a"), agreed("a")] == ["a", "a"]
    assert collective_name("HorovodAllreduce", tf.constant(1), None)[:2] == (None, "")


def test_branches_and_loops_count_with_their_graph_but_functions_for_themselves():
    seen = []

    def note(value):
        seen.append(agreed("a"))
        return value

    with tf.Graph().as_default():
        note(0)
        tf.cond(v1.placeholder(tf.bool, []), lambda: note(tf.constant(1)), lambda: note(tf.constant(2)))
        tf.while_loop(lambda i: i < 3, lambda i: note(i + 1), [tf.constant(0)])
    assert sorted(set(seen)) == ["a", "a_1", "a_2", "a_3"]
    seen.clear()
    traced = tf.function(note)
    for value in (tf.constant(1), tf.constant(1.0)):
        traced(value)
    assert seen == ["a", "a"]


def test_known_names_are_taken_as_they_are():
    with tf.Graph().as_default():
        tensor = v1.placeholder(tf.float32, name="x")
        for _ in range(2):
            assert collective_name("HorovodAllreduce", tensor, None, agreed="opt/0/w").agreed == "opt/0/w"


def test_variable_names_differ():
    with tf.Graph().as_default():
        with v1.variable_scope("net"):
            variables = [v1.get_variable("w", [1]), v1.get_variable("b", [1])]
        assert variable_names(variables) == ["net/w", "net/b"]
    twins = [tf.Variable(0.0, name="v"), tf.Variable(0.0, name="v"), tf.Variable(0.0, name="v_1")]
    assert len(set(variable_names(twins))) == 3


def test_gradient_scopes_count_optimizers_and_calls():
    one, two = GradientScope("Sgd"), GradientScope("Sgd")
    with tf.Graph().as_default():
        assert [one.next_prefix(), two.next_prefix(), one.next_prefix()] == ["Sgd/0", "Sgd_1/0", "Sgd/1"]
    with tf.Graph().as_default():
        assert [two.next_prefix(), one.next_prefix()] == ["Sgd/0", "Sgd_1/0"]
    assert one.next_prefix() == one.next_prefix() == "Sgd"


def test_no_graph_is_kept_alive():
    scope = GradientScope("Sgd")
    graph = tf.Graph()
    with graph.as_default():
        agreed("a")
        scope.next_prefix()
    ended = weakref.ref(graph)
    del graph
    gc.collect()
    assert ended() is None
