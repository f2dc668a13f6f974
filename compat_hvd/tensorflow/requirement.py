"""Importing this module says clearly what to install when TensorFlow is missing or too old."""

from __future__ import annotations

import importlib

LOWEST = (2, 13)
_CURE = 'install it with: pip install "compat_hvd[tensorflow-cpu]" (or "compat_hvd[tensorflow]" for GPUs)'


def check_tensorflow() -> None:
    """Imports TensorFlow and compares its version with the lowest one whose C kernel API suffices.

    Raises:
        ImportError: TensorFlow is not installed, or is older than 2.13. A TensorFlow that is installed but fails to
            import raises its own error.
    """
    lowest = ".".join(map(str, LOWEST))
    try:
        tensorflow = importlib.import_module("tensorflow")
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise ImportError(
            f"compat_hvd.tensorflow needs TensorFlow {lowest} or newer, but none is here; {_CURE}"
        ) from None
    version = getattr(tensorflow, "__version__", "0.0")
    if tuple(int(part) for part in version.split(".")[:2]) < LOWEST:
        raise ImportError(f"compat_hvd.tensorflow needs TensorFlow {lowest} or newer, but found {version}; {_CURE}")


check_tensorflow()
