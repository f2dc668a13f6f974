"""Every op has a kernel for GPU whose arguments all live in host memory, so that GPU scripts are correct."""

from __future__ import annotations

import pytest
from tensorflow.python.framework import kernels

import compat_hvd.tensorflow  # noqa: F401  registers the ops

ARGUMENTS = {
    "HorovodAllreduce": {"tensor", "sum"},
    "HorovodGroupedAllreduce": {"tensors", "sum"},
    "HorovodAllgather": {"tensor", "output"},
    "HorovodGroupedAllgather": {"tensors", "outputs"},
    "HorovodReducescatter": {"tensor", "output"},
    "HorovodGroupedReducescatter": {"tensors", "outputs"},
    "CompatHvdGroupedAllreduce": {"tensors", "sum"},
    "CompatHvdGroupedAllgather": {"tensors", "outputs"},
    "CompatHvdGroupedReducescatter": {"tensors", "outputs"},
    "HorovodBroadcast": {"tensor", "output"},
    "HorovodBroadcastInplace": set(),
    "HorovodBroadcastInplaceResource": {"resources"},
    "HorovodAlltoall": {"tensor", "splits", "output", "received_splits"},
    "HorovodBarrier": set(),
    "HorovodJoin": {"output"},
    "HorovodSize": {"size"},
    "HorovodLocalSize": {"local_size"},
    "HorovodRank": {"rank"},
    "HorovodLocalRank": {"local_rank"},
    "HorovodProcessSetIncluded": {"included"},
}


@pytest.mark.parametrize("op", ARGUMENTS)
def test_both_devices_have_a_kernel_and_the_gpu_stages_everything(op: str) -> None:
    registered = {kernel.device_type: kernel for kernel in kernels.get_registered_kernels_for_op(op).kernel}
    assert set(registered) == {"CPU", "GPU"}
    assert set(registered["GPU"].host_memory_arg) == ARGUMENTS[op]


def test_the_table_names_every_op() -> None:
    everything = {kernel.op for kernel in kernels.get_all_registered_kernels().kernel}
    assert {op for op in everything if op.startswith(("Horovod", "CompatHvd"))} == set(ARGUMENTS)
