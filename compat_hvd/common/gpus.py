"""Which GPUs this process would see, without loading CUDA."""

from __future__ import annotations

import glob

from compat_hvd.common import config


def visible_gpus() -> int:
    """Counts the NVIDIA GPUs that CUDA would show this process.

    CUDA_VISIBLE_DEVICES decides when it is set: a comma-separated list that ends at its first invalid entry, such as
    -1. Otherwise the driver's device files are counted.
    """
    mask = config.get("CUDA_VISIBLE_DEVICES")
    if mask is None:
        return len(glob.glob("/dev/nvidia[0-9]*"))
    count = 0
    for entry in mask.split(","):
        entry = entry.strip()
        if not entry or entry.startswith("-") or entry == "NoDevFiles":
            break
        count += 1
    return count
