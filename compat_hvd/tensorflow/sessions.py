"""The ConfigProto of a session: one GPU per rank, memory taken as needed."""

from __future__ import annotations

import glob
from typing import Any

import tensorflow as tf

from compat_hvd.common import basics
from compat_hvd.common import config as environment


def visible_gpus() -> int:
    """Counts the NVIDIA GPUs that CUDA would show this process, without loading CUDA.

    CUDA_VISIBLE_DEVICES decides when it is set: a comma-separated list that ends at its first invalid entry, such as
    -1. Otherwise the driver's device files are counted.
    """
    mask = environment.get("CUDA_VISIBLE_DEVICES")
    if mask is None:
        return len(glob.glob("/dev/nvidia[0-9]*"))
    count = 0
    for entry in mask.split(","):
        entry = entry.strip()
        if not entry or entry.startswith("-") or entry == "NoDevFiles":
            break
        count += 1
    return count


def session_config(
    config: tf.compat.v1.ConfigProto | None = None, allow_growth: bool = True, **fields: Any
) -> tf.compat.v1.ConfigProto:
    """Builds the configuration of this rank's sessions.

    Args:
        config: a configuration to start from; it is copied, and a visible_device_list in it is kept.
        allow_growth: take GPU memory as needed instead of all at once.
        fields: further fields of ConfigProto, such as ``inter_op_parallelism_threads=1``; messages are merged into
            those of ``config``.

    Returns:
        A new ConfigProto whose ``gpu_options.visible_device_list`` names the GPU of this local rank among the visible
        ones: "0" when a scheduler left only one to each process, "" without GPUs. More ranks than GPUs share them.

    Raises:
        ValueError: before ``init()``; ConfigProto has no such field, or the field takes no such value.
        TypeError: the field takes no value of this type.
    """
    result = tf.compat.v1.ConfigProto()
    if config is not None:
        result.CopyFrom(config)
    # Field by field: a merge would not see the difference between a field given as False and one not given.
    for name, value in fields.items():
        single = tf.compat.v1.ConfigProto(**{name: value})
        if isinstance(value, (bool, int, float, str)):
            setattr(result, name, value)
        else:
            result.MergeFrom(single)
    result.gpu_options.allow_growth = allow_growth
    local_rank, gpus = basics.local_rank(), visible_gpus()
    if gpus and not result.gpu_options.visible_device_list:
        result.gpu_options.visible_device_list = str(local_rank % gpus)
    return result


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether this process sees a GPU; the arguments are those of Horovod and have no effect."""
    return visible_gpus() > 0
