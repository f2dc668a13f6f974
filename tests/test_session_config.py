"""session_config with pretended GPUs and ranks."""

from __future__ import annotations

import glob

import pytest
import tensorflow as tf

from compat_hvd.common import basics
from compat_hvd.tensorflow import gpu_available, session_config

v1 = tf.compat.v1


@pytest.fixture
def machine(monkeypatch):
    """Pretends a local rank, a number of device files of GPUs, and the mask (None: unset)."""

    def pretend(local_rank=0, files=0, mask=None):
        devices = [f"/dev/nvidia{i}" for i in range(files)]
        monkeypatch.setattr(basics, "local_rank", lambda: local_rank)
        monkeypatch.setattr(glob, "glob", lambda pattern: devices if pattern == "/dev/nvidia[0-9]*" else [])
        if mask is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)

    return pretend


@pytest.mark.parametrize(
    ("local_rank", "files", "mask", "devices"),
    [
        (0, 0, None, ""),
        (1, 0, None, ""),
        (0, 4, None, "0"),
        (3, 4, None, "3"),
        (5, 4, None, "1"),
        (1, 4, "2", "0"),
        (1, 4, "GPU-5f2c", "0"),
        (1, 1, "MIG-d3a1", "0"),
        (1, 4, "2,3", "1"),
        (2, 8, "4, 5 ,6", "2"),
        (0, 4, "", ""),
        (1, 4, "-1", ""),
        (0, 4, "NoDevFiles", ""),
        (1, 4, "0,-1,1", "0"),
    ],
)
def test_the_gpu_of_a_local_rank(machine, local_rank, files, mask, devices):
    machine(local_rank, files, mask)
    config = session_config()
    assert isinstance(config, v1.ConfigProto)
    assert config.gpu_options.visible_device_list == devices
    assert config.gpu_options.allow_growth
    assert gpu_available("tensorflow") == (devices != "")


def test_fields_are_added(machine):
    machine(files=2, local_rank=1)
    config = session_config(
        allow_growth=False,
        allow_soft_placement=True,
        inter_op_parallelism_threads=3,
        device_count={"CPU": 2},
        gpu_options=v1.GPUOptions(per_process_gpu_memory_fraction=0.5),
    )
    assert (config.allow_soft_placement, config.inter_op_parallelism_threads) == (True, 3)
    assert dict(config.device_count) == {"CPU": 2}
    assert config.gpu_options.per_process_gpu_memory_fraction == 0.5
    assert config.gpu_options.visible_device_list == "1"
    assert not config.gpu_options.allow_growth


def test_a_given_configuration_is_kept_and_not_changed(machine):
    machine(files=2, local_rank=1)
    given = v1.ConfigProto(allow_soft_placement=True, log_device_placement=True, device_count={"CPU": 2})
    given.gpu_options.per_process_gpu_memory_fraction = 0.25
    before = given.SerializeToString(deterministic=True)
    config = session_config(given, allow_soft_placement=False, device_count={"GPU": 1})
    assert given.SerializeToString(deterministic=True) == before
    assert (config.allow_soft_placement, config.log_device_placement) == (False, True)
    assert dict(config.device_count) == {"CPU": 2, "GPU": 1}
    assert config.gpu_options.per_process_gpu_memory_fraction == 0.25
    assert config.gpu_options.visible_device_list == "1"


def test_a_given_device_list_wins(machine):
    machine(files=4, local_rank=3)
    given = v1.ConfigProto()
    given.gpu_options.visible_device_list = "0"
    assert session_config(given).gpu_options.visible_device_list == "0"
    assert session_config(gpu_options=v1.GPUOptions(visible_device_list="2")).gpu_options.visible_device_list == "2"


def test_unknown_fields_are_refused(machine):
    machine()
    with pytest.raises(ValueError, match="warp_speed"):
        session_config(warp_speed=9)
    with pytest.raises(TypeError):
        session_config(allow_soft_placement="yes")


def test_a_session_runs_with_it(machine):
    machine()
    with tf.Graph().as_default(), v1.Session(config=session_config(allow_soft_placement=True)) as session:
        assert session.run(tf.constant(2) + 3) == 5
