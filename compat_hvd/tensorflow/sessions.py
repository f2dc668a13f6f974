"""The ConfigProto of a session: one GPU per rank, memory taken as needed."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from compat_hvd.common import basics
from compat_hvd.common.gpus import visible_gpus


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
