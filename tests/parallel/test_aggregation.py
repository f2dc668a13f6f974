"""backward_passes_per_step: sums over passes of means over ranks, and no communication in between."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from world import RANK, SIZE, allgather

v1 = tf.compat.v1
pytestmark = pytest.mark.node_split

MEAN = (SIZE + 1) / 2  # of r + 1
SGD = v1.train.GradientDescentOptimizer
BOTH = pytest.mark.usefixtures("control_flow")
KINDS = pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])


@pytest.fixture(params=[1, 2], ids=["control flow 1", "control flow 2"])
def control_flow(request):
    """The older control flow is that of scripts which call disable_v2_behavior()."""
    if request.param == 2:
        yield
        return
    v1.disable_control_flow_v2()
    yield
    v1.enable_control_flow_v2()


def variable(name, value, **kwargs):
    return v1.get_variable(name, initializer=np.asarray(value, np.float32), **kwargs)


def initialize(session):
    session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])


class Line:
    """A loss whose gradient is what is fed: rank r feeds (r + 1) * x in pass x = 1, 2, …"""

    def __init__(self, session, **kwargs):
        self.session = session
        self.weight = variable("w", [0.0, 0.0], **kwargs)
        self.slope = v1.placeholder(tf.float32, [])
        self.loss = self.slope * tf.reduce_sum(self.weight)

    def run(self, fetches, x):
        return self.session.run(fetches, {self.slope: (RANK + 1.0) * x})

    def value(self):
        return self.session.run(self.weight)


@BOTH
@KINDS
@pytest.mark.parametrize("average", [False, True], ids=["sum", "average"])
@pytest.mark.parametrize("passes", [1, 2, 3])
def test_applies_the_mean_of_sums_in_every_last_pass(hvd, session, passes, average, use_resource):
    line = Line(session, use_resource=use_resource)
    global_step = v1.get_variable("count", initializer=np.int64(0), use_resource=use_resource, trainable=False)
    optimizer = hvd.DistributedOptimizer(
        SGD(1.0), backward_passes_per_step=passes, average_aggregated_gradients=average
    )
    step = optimizer.minimize(line.loss, global_step=global_step)
    initialize(session)
    for x in range(1, 2 * passes + 2):
        line.run(step, x)
        applied = x - x % passes
        expected = -MEAN * sum(range(1, applied + 1)) / (passes if average else 1)
        np.testing.assert_allclose(line.value(), [expected] * 2, rtol=1e-6)
        assert session.run(global_step) == x


def test_gradients_are_reduced_sums_in_last_passes_and_local_in_others(hvd, session):
    line = Line(session)
    ((gradient, _),) = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=3).compute_gradients(line.loss)
    assert gradient.shape == [2]
    initialize(session)
    for x in range(1, 8):
        expected = MEAN * (3 * x - 3) if x % 3 == 0 else (RANK + 1) * x
        np.testing.assert_allclose(line.run(gradient, x), [expected] * 2, rtol=1e-6)


def executed(session, fetches, feed):
    """The types of the collectives that one run executes."""
    graph, metadata = session.graph, v1.RunMetadata()
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE, output_partition_graphs=True)
    session.run(fetches, feed, options=options, run_metadata=metadata)
    types = {node.name: node.op for part in metadata.partition_graphs for node in part.node}
    types.update({op.name: op.type for op in graph.get_operations()})
    nodes = [node.node_name.split(":")[0] for part in metadata.step_stats.dev_stats for node in part.node_stats]
    return sorted(types[name] for name in nodes if types.get(name, "").startswith("Horovod"))


@BOTH
def test_sums_need_no_initializer(hvd, session):
    """But may have one, as in a MonitoredSession; running it again forgets the passes made."""
    line = Line(session)
    step = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2).minimize(line.loss)
    session.run(v1.global_variables_initializer())
    for x in (1, 2, 3):
        line.run(step, x)
    session.run(v1.local_variables_initializer())
    line.run(step, 4)
    np.testing.assert_allclose(line.value(), [-3 * MEAN] * 2, rtol=1e-6)
    line.run(step, 5)
    np.testing.assert_allclose(line.value(), [-12 * MEAN] * 2, rtol=1e-6)


@BOTH
@KINDS
def test_nothing_is_sent_in_other_passes(hvd, session, use_resource):
    """Counted in the trace of each run; and the ranks make these runs one after the other, so that none can wait."""
    line = Line(session, use_resource=use_resource)
    other = variable("other", [0.0], use_resource=use_resource)
    loss = line.loss + tf.reduce_sum(other) * line.slope
    step = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=4).minimize(loss)
    initialize(session)
    for round_ in range(2):
        for turn in range(SIZE):
            if turn == RANK:
                for _ in range(3):
                    assert executed(session, step, {line.slope: RANK + 1.0}) == []
            allgather([round_])
        sent = executed(session, step, {line.slope: RANK + 1.0})
        assert sent == (["HorovodAllreduce"] * 2 if SIZE > 1 else [])
    np.testing.assert_allclose(line.value(), [-8 * MEAN] * 2, rtol=1e-6)


def test_steps_seen_by_the_loss_are_each_seen_once(hvd, session):
    """The global step moves on after the gradients were computed from it."""
    weight, global_step = variable("w", 0.0), v1.train.get_or_create_global_step()
    seen = tf.cast(global_step.read_value(), tf.float32)
    optimizer = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2)
    step = optimizer.minimize(weight * seen, global_step=global_step)
    initialize(session)
    assert [session.run([seen, step])[0] for _ in range(6)] == [0, 1, 2, 3, 4, 5]
    assert session.run([weight, global_step]) == [-15.0, 6]


def test_the_given_global_step_counts_and_no_other(hvd, session):
    line = Line(session)
    default = v1.train.get_or_create_global_step()
    mine = v1.get_variable("mine", initializer=0, trainable=False)
    optimizer = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2)
    pairs = optimizer.compute_gradients(line.loss)
    keyword = optimizer.apply_gradients(pairs, global_step=mine, name="train")
    positional = optimizer.apply_gradients(pairs, mine, "again")
    without = optimizer.apply_gradients(pairs)
    assert (keyword.name, positional.name) == ("train", "again")
    assert v1.get_collection(v1.GraphKeys.TRAIN_OP) == [keyword, positional, without]
    initialize(session)
    for step, count in [(keyword, 1), (keyword, 2), (positional, 3), (positional, 4), (without, 4), (without, 4)]:
        line.run(step, 1)
        assert session.run([default, mine]) == [0, count]
    np.testing.assert_allclose(line.value(), [-6 * MEAN] * 2, rtol=1e-6)


@BOTH
def test_none_gradients(hvd, session):
    unused, line = variable("a_unused", [1.0]), Line(session)
    optimizer = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2)
    pairs = optimizer.compute_gradients(line.loss, var_list=[unused, line.weight])
    assert pairs[0] == (None, unused)
    step = optimizer.apply_gradients(pairs)
    initialize(session)
    for _ in range(2):
        line.run(step, 1)
    np.testing.assert_allclose(line.value(), [-2 * MEAN] * 2, rtol=1e-6)
    with pytest.raises(ValueError, match="No gradients"):
        optimizer.minimize(tf.constant(1.0), var_list=[unused])


def test_slices_need_sparse_as_dense(hvd, session):
    """Rank r takes row r once and row n twice in each pass."""
    table = variable("emb", np.zeros((SIZE + 1, 2)))
    ids = v1.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(tf.gather(table, ids))
    with pytest.raises(ValueError, match="sparse_as_dense"):
        hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2).compute_gradients(loss)
    optimizer = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2, sparse_as_dense=True)
    step = optimizer.minimize(loss)
    initialize(session)
    for _ in range(2):
        session.run(step, {ids: [RANK, SIZE, SIZE]})
    expected = np.array([-2.0 / SIZE] * SIZE + [-4.0])
    np.testing.assert_allclose(session.run(table), expected[:, None] * np.ones(2), rtol=1e-6)


@BOTH
def test_shapes_that_are_not_known_before_the_session_runs(hvd, session):
    initial = v1.placeholder_with_default(np.zeros((2, 3), np.float32), None)
    weight = v1.Variable(initial, validate_shape=False)
    slope = v1.placeholder(tf.float32, None)
    optimizer = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2)
    pairs = optimizer.compute_gradients(tf.reduce_sum(weight * slope))
    assert pairs[0][0].shape.rank is None
    step = optimizer.apply_gradients(pairs)
    initialize(session)
    for x in (1.0, 2.0):
        session.run(step, {slope: np.full((2, 3), x * (RANK + 1))})
    np.testing.assert_allclose(session.run(weight), np.full((2, 3), -3 * MEAN), rtol=1e-6)


def test_optimizers_of_one_class_count_for_themselves(hvd, session):
    line = Line(session)
    two = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2).minimize(line.loss)
    three = hvd.DistributedOptimizer(SGD(100.0), backward_passes_per_step=3).minimize(line.loss)
    initialize(session)
    line.run(two, 1)
    for _ in range(3):
        line.run(three, 1)
    np.testing.assert_allclose(line.value(), [-300 * MEAN] * 2, rtol=1e-6)
    line.run([two, three], 1)
    np.testing.assert_allclose(line.value(), [-302 * MEAN] * 2, rtol=1e-6)
    for _ in range(2):
        line.run([two, three], 1)
    np.testing.assert_allclose(line.value(), [-604 * MEAN] * 2, rtol=1e-6)


@BOTH
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("when", [1, 2], ids=["first", "last"])
def test_sums_start_anew_after_a_bad_one(hvd, session, bad, when):
    """On one rank, in one pass: the step is lost on all, the next one is right."""
    line = Line(session)
    ((gradient, _),) = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2).compute_gradients(line.loss)
    initialize(session)
    values = [line.run(gradient, bad if (x, RANK) == (when, SIZE - 1) else x) for x in (1, 2, 3, 4)]
    assert not np.isfinite(values[1]).any()
    np.testing.assert_allclose(values[3], [7 * MEAN] * 2, rtol=1e-6)
    # What is seen of the first pass is finite, lest a rank decide something alone.
    assert np.isfinite(values[0]).all()


@pytest.mark.parametrize("kind", ["eager", "function"])
def test_only_in_graphs_of_sessions(hvd, kind):
    run = tf.function if kind == "function" else lambda f: f
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        run(lambda: hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2) and None)()
    with tf.Graph().as_default():
        optimizer = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2)
    weight = tf.Variable(0.0)
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        run(lambda: optimizer.compute_gradients(lambda: 2.0 * weight, [weight]) and None)()
    for passes in (0, -1):
        with pytest.raises(ValueError, match="backward_passes_per_step"):
            hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=passes)


def test_a_run_that_fetches_any_gradient_is_a_pass_of_all(hvd, session):
    """Also if only one of them is fetched, or the loss alone, which is none."""
    line, other = Line(session), variable("other", 0.0)
    optimizer = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2)
    (one, _), (two, _) = optimizer.compute_gradients(line.loss + 10.0 * other * line.slope)
    initialize(session)
    line.run(one, 1)
    line.run(line.loss, 7)
    assert line.run(two, 2) == pytest.approx(30 * MEAN)
    line.run(two, 3)
    np.testing.assert_allclose(line.run(one, 4), [7 * MEAN] * 2, rtol=1e-6)


@BOTH
def test_calls_of_one_optimizer_count_for_themselves(hvd, session):
    """Two losses for the same variables; which passes an update belongs to is seen from the gradients it is given."""
    line = Line(session)
    optimizer = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2)
    first, second = optimizer.compute_gradients(line.loss), optimizer.compute_gradients(100.0 * line.loss)
    clipped = [(tf.clip_by_value(g, -1e6, 1e6), v) for g, v in first]
    one, hundred = optimizer.apply_gradients(iter(clipped)), optimizer.apply_gradients(zip(*zip(*second)))
    total = optimizer.apply_gradients([(g + h, v) for (g, v), (h, _) in zip(first, second)])
    initialize(session)
    line.run(one, 1)
    line.run(hundred, 1)
    line.run(hundred, 1)
    np.testing.assert_allclose(line.value(), [-200 * MEAN] * 2, rtol=1e-6)
    line.run(one, 1)
    np.testing.assert_allclose(line.value(), [-202 * MEAN] * 2, rtol=1e-6)
    for _ in range(2):
        line.run(total, 1)
    np.testing.assert_allclose(line.value(), [-404 * MEAN] * 2, rtol=1e-6)


def test_clipping_sees_the_reduced_sums(hvd, session):
    line = Line(session)
    optimizer = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2)
    gradients, variables = zip(*optimizer.compute_gradients(line.loss))
    clipped, norm = tf.clip_by_global_norm(gradients, 1.0)
    step = optimizer.apply_gradients(zip(clipped, variables))
    initialize(session)
    line.run(step, 3)
    assert line.run([norm, step], 1)[0] == pytest.approx(4 * MEAN * 2**0.5)
    np.testing.assert_allclose(line.value(), [-(0.5**0.5)] * 2, rtol=1e-6)


def test_gradients_from_elsewhere_are_applied_at_once(hvd, session):
    line = Line(session)
    optimizer = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2)
    optimizer.compute_gradients(line.loss)
    step = optimizer.apply_gradients([(tf.ones(2), line.weight)])
    initialize(session)
    session.run(step)
    assert line.value().tolist() == [-1.0, -1.0]


@BOTH
@pytest.mark.parametrize("where", ["all", "apply"])
def test_in_a_branch(hvd, session, where):
    """All in the branch, or only clipping and applying."""
    line = Line(session, use_resource=True)
    choice = v1.placeholder(tf.bool, [])
    optimizer = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2)
    pairs = optimizer.compute_gradients(line.loss) if where == "apply" else None

    def train():
        computed = pairs or optimizer.compute_gradients(line.loss)
        clipped = [(tf.clip_by_value(g, -1e6, 1e6), v) for g, v in computed]
        with tf.control_dependencies([optimizer.apply_gradients(clipped)]):
            return tf.constant(1)

    step = tf.cond(choice, train, lambda: tf.constant(0))
    initialize(session)
    for chosen in (True, False, True) if where == "all" else (True, True):
        session.run(step, {line.slope: RANK + 1.0, choice: chosen})
    np.testing.assert_allclose(line.value(), [-2 * MEAN] * 2, rtol=1e-6)


@BOTH
@pytest.mark.parametrize("scaled", [True, False])
def test_local_variables_are_aggregated_and_stay_unreduced(hvd, session, scaled):
    line, table = Line(session), variable("table", [[0.0], [0.0]])
    shared = variable("shared", 0.0)
    loss = line.loss + line.slope * (shared + tf.reduce_sum(tf.gather(table, [1])))
    optimizer = hvd.DistributedOptimizer(
        SGD(1.0), backward_passes_per_step=2, sparse_as_dense=True, scale_local_gradients=scaled
    )
    optimizer.register_local_var(line.weight)
    optimizer.register_local_var(table)
    step = optimizer.minimize(loss)
    initialize(session)
    for x in (1, 2):
        line.run(step, x)
    local = -3 * (RANK + 1) / (SIZE if scaled else 1)
    np.testing.assert_allclose(line.value(), [local] * 2, rtol=1e-6)
    np.testing.assert_allclose(session.run(table), [[0.0], [local]], rtol=1e-6)
    assert session.run(shared) == pytest.approx(-3 * MEAN)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"op": "Sum"}, 3 * SIZE * MEAN),
        ({"op": "Min"}, 3.0),
        ({"op": "Max"}, 3.0 * SIZE),
        ({"gradient_predivide_factor": 4.0}, 3 * MEAN),
        ({"compression": "fp16"}, 3 * MEAN),
        ({"compression": "bf16"}, 3 * MEAN),
        ({"groups": 1}, 3 * MEAN),
        ({"average_aggregated_gradients": True, "op": "Sum"}, 1.5 * SIZE * MEAN),
    ],
    ids=str,
)
def test_arguments(hvd, session, arguments, expected):
    names = {"op": hvd, "compression": hvd.Compression}
    arguments = {k: getattr(names[k], value) if k in names else value for k, value in arguments.items()}
    line, other = Line(session), variable("other", [0.0, 0.0])
    loss = line.loss + line.slope * tf.reduce_sum(other)
    step = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2, **arguments).minimize(loss)
    initialize(session)
    for x in (1, 2):
        line.run(step, x)
    for value in (line.value(), session.run(other)):
        np.testing.assert_allclose(value, [-expected] * 2, rtol=1e-2 if "compression" in arguments else 1e-6)


def test_ranks_outside_the_process_set_aggregate_for_themselves(hvd, session):
    if SIZE == 1:
        pytest.skip("nobody is outside")
    inner = hvd.add_process_set(list(range(SIZE - 1)))
    try:
        line = Line(session)
        step = hvd.DistributedOptimizer(SGD(1.0), backward_passes_per_step=2, process_set=inner).minimize(line.loss)
        initialize(session)
        for x in (1, 2):
            line.run(step, x)
        mean = SIZE / 2 if inner.included() else RANK + 1
        np.testing.assert_allclose(line.value(), [-3 * mean] * 2, rtol=1e-6)
    finally:
        hvd.remove_process_set(inner)


@BOTH
def test_a_pass_whose_reduction_fails_is_counted_by_nobody(hvd, session):
    """The error is every rank's, so they stay in step and can make the pass again."""
    if SIZE == 1:
        pytest.skip("nobody to disagree with")
    line = Line(session)
    gradient = v1.placeholder(tf.float32, None)
    inner = SGD(1.0)
    inner.compute_gradients = lambda loss, **kwargs: [(gradient, line.weight)]
    optimizer = hvd.DistributedOptimizer(inner, backward_passes_per_step=2)
    step = optimizer.minimize(line.loss)
    initialize(session)
    mine = np.full(2, RANK + 1.0)
    session.run(step, {gradient: mine})
    with pytest.raises(tf.errors.FailedPreconditionError, match="shape"):
        session.run(step, {gradient: np.ones((3, 2)) if RANK == SIZE - 1 else mine})
    session.run(step, {gradient: 2 * mine})
    np.testing.assert_allclose(line.value(), [-3 * MEAN] * 2, rtol=1e-6)
