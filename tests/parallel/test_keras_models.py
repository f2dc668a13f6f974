"""Values, loading and saving of models, and the doors, for each kind of Keras."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import kerases
import numpy as np
import pytest
import tensorflow as tf
from world import RANK, SIZE

from compat_hvd.tensorflow.keras_shared import models

pytestmark = pytest.mark.two_ranks

MEAN = (SIZE + 1) / 2  # of r + 1


@pytest.fixture(params=kerases.FLAVORS)
def kind(request, hvd):
    return kerases.kind(request.param)


@pytest.fixture(params=["compat_hvd.keras", "compat_hvd.tensorflow.keras"])
def door(request, hvd):
    return importlib.import_module(request.param)


def mean_of_output(target, output):
    return tf.reduce_mean(output)


@pytest.mark.parametrize("graph", [False, True])
def test_values(hvd, door, graph):
    def check():
        before = len(tf.compat.v1.get_default_graph().get_operations()) if graph else 0
        value = np.array([RANK + 1.0, 2.0], np.float32)
        as_list = lambda result: np.asarray(result).tolist()  # noqa: E731
        assert as_list(door.allreduce(value)) == [MEAN, 2.0]
        assert as_list(door.allreduce(value, op=hvd.Sum, name="values")) == [SIZE * MEAN, SIZE * 2.0]
        assert as_list(door.allreduce(value, op=hvd.Max)) == [SIZE, 2.0]
        assert as_list(door.allreduce(value, prescale_factor=2.0, postscale_factor=0.5, op=hvd.Sum))[0] == SIZE * MEAN
        assert as_list(door.allreduce(value, compression=hvd.Compression.fp16)) == [MEAN, 2.0]
        with pytest.warns(DeprecationWarning, match="average"):
            assert as_list(door.allreduce(RANK + 1.0, average=False)) == SIZE * MEAN
        with pytest.raises(ValueError, match="supersedes"):
            door.allreduce(value, average=True, op=hvd.Sum)
        assert as_list(door.allgather([RANK] * (RANK + 1))) == [r for r in range(SIZE) for _ in range(r + 1)]
        assert as_list(door.broadcast(value, SIZE - 1, name="mine")) == [SIZE, 2.0]
        assert as_list(door.reducescatter(np.arange(SIZE) + RANK, op=hvd.Sum)) == [SIZE * RANK + SIZE * (SIZE - 1) // 2]
        if graph:
            assert isinstance(door.allreduce(value), np.ndarray)
            assert len(tf.compat.v1.get_default_graph().get_operations()) == before

    if graph:
        with tf.Graph().as_default():
            check()
    else:
        check()


def test_doors_hold_the_same_names(hvd):
    doors = [importlib.import_module(name) for name in ("compat_hvd.keras", "compat_hvd.tensorflow.keras")]
    assert sorted(doors[0].__all__) == sorted(doors[1].__all__)
    for one in doors:
        assert one.size() == SIZE
        assert one.callbacks.MetricAverageCallback()
        optimizer = one.DistributedOptimizer(importlib.import_module("keras").optimizers.SGD(1.0))
        assert type(optimizer).__name__ == "SGD"
        with pytest.raises(RuntimeError, match="eager"):
            one.broadcast_global_variables(0)


def test_global_variables_in_the_session_of_keras(hvd):
    kind = kerases.kind("legacy")
    kind.keras.backend.clear_session()
    with tf.Graph().as_default():
        model = kind.model(kind.dense(kernel=kind.keras.initializers.Constant(float(RANK))))
        models.broadcast_in_keras_session(kind.keras, SIZE - 1)
        assert model.get_weights()[0].item() == SIZE - 1


def trained(kind, wrap):
    """A model that has made one step with momentum, from 0 with a gradient of r + 1."""
    model = kind.model(kind.dense())
    model.compile(wrap(kind.optimizers.SGD(1.0, momentum=0.5)), loss=kind.keras.losses.MeanAbsoluteError())
    model.fit(np.full((1, 1), RANK + 1.0), np.full((1, 1), -1e4), verbose=0)
    return model


def saved(kind, end, tmp_path):
    if kind.name == "legacy" and end == ".keras":
        pytest.skip("Keras saves no state of legacy optimizers in this format")
    return tmp_path / f"model{end}"


FORMATS = [".keras", ".h5"]


@pytest.mark.parametrize("end", FORMATS)
def test_loaded_models_go_on_with_the_state_of_their_optimizer(hvd, kind, end, tmp_path):
    path = saved(kind, end, tmp_path)
    if kind.name == "keras3" and end == ".h5":
        pytest.skip("Keras 3 cannot train what it has loaded from this format")
    for wrap in (hvd.DistributedOptimizer, lambda one: one):
        model = trained(kind, wrap)
        model.save(path)
        first = model.get_weights()[0].item()
        assert first == (-MEAN if wrap is hvd.DistributedOptimizer else -(RANK + 1))
        loaded = models.load_with_optimizer(kind.keras, path, None, None, hvd.Compression.none, kind.name == "legacy")
        assert type(loaded.optimizer).__name__ == "SGD"
        assert int(loaded.optimizer.iterations.numpy()) == 1
        loaded.fit(np.full((1, 1), RANK + 1.0), np.full((1, 1), -1e4), verbose=0)
        assert loaded.get_weights()[0].item() == pytest.approx(first + 0.5 * first - MEAN)


def test_custom_optimizers_and_objects(hvd, kind, tmp_path):
    class Mine(kind.optimizers.SGD):
        pass

    class Layer(kind.keras.layers.Dense):
        pass

    model = kind.model(Layer(1, use_bias=False, kernel_initializer="zeros"))
    model.compile(hvd.DistributedOptimizer(Mine(1.0)), loss=kind.keras.losses.MeanAbsoluteError())
    path = tmp_path / ("model.keras" if kind.name == "keras3" else "model.h5")
    model.save(path)
    loaded = models.load_with_optimizer(
        kind.keras, path, [Mine], {"Layer": Layer}, hvd.Compression.none, kind.name == "legacy"
    )
    assert isinstance(loaded.optimizer, Mine)
    loaded.fit(np.full((1, 1), RANK + 1.0), np.full((1, 1), -1e4), verbose=0)
    assert loaded.get_weights()[0].item() == -MEAN


LOAD = """
import sys
keras = __import__(sys.argv[1])
model = keras.models.load_model(sys.argv[2])
assert not [name for name in sys.modules if name.startswith(("compat_hvd", "mpi4py"))]
assert type(model.optimizer).__module__.startswith(("keras.", "tf_keras.")), type(model.optimizer)
print("weight", model.get_weights()[0].item(), int(model.optimizer.iterations.numpy()))
"""


@pytest.mark.parametrize("end", FORMATS)
def test_saved_models_load_without_this_package(hvd, kind, end, tmp_path):
    path = saved(kind, end, tmp_path)
    trained(kind, hvd.DistributedOptimizer).save(path)
    if RANK > 0:
        return
    command = [sys.executable, "-c", LOAD, kind.keras.__name__, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path, env=plain_environment())
    assert f"weight {-MEAN} 1" in ended.stdout, ended.stderr


def plain_environment():
    """Without what a launcher has put there, and without the way to this package."""
    keep = ("PATH", "HOME", "LD_LIBRARY_PATH", "TF_ENABLE_ONEDNN_OPTS")
    return {"TF_CPP_MIN_LOG_LEVEL": "3", **{name: os.environ[name] for name in keep if name in os.environ}}
