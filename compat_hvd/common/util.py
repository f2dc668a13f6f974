"""Small functions without a framework, named as in ``horovod.common.util``, that scripts and tests reach for."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import warnings
from typing import Any, Callable, Sequence

from compat_hvd.common import basics, native
from compat_hvd.common.config import replaced as env
from compat_hvd.common.gpus import visible_gpus

__all__ = [
    "_cache",
    "ccl_built",
    "check_extension",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: Any) -> None:
    """Checks that the native library is there; the arguments are those of Horovod and only ``ext_name`` is used.

    Raises:
        ImportError: it is not.
    """
    path = native.tensorflow_library_path()
    if not os.path.exists(path):
        raise ImportError(f"Extension {ext_name} has not been built: {path} not found. Reinstall compat_hvd.")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether a framework can be used: "tensorflow" where it is installed; no other is supported."""
    if ext_base_name != "tensorflow" or importlib.util.find_spec("tensorflow") is None:
        return False
    try:
        check_extension(ext_base_name, "", "")
    except ImportError as error:
        if verbose:
            print(error)
        return False
    return True


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether this process sees a GPU; the arguments are those of Horovod and have no effect."""
    return visible_gpus() > 0


def mpi_built(verbose: bool = False) -> bool:
    """Returns True; ``verbose`` has no effect, here and below."""
    return basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """Returns False."""
    return basics.gloo_built()


def nccl_built(verbose: bool = False) -> int:
    """Returns 0: no NCCL version."""
    return basics.nccl_built()


def ddl_built(verbose: bool = False) -> bool:
    """Returns False."""
    return basics.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """Returns False."""
    return basics.ccl_built()


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[int | None, bool | None], int]:
    """Returns the function that knows which reduce op a call means; ``reduce_ops`` holds ``Average`` and ``Sum``."""

    def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
        """Returns the reduce op meant by ``op`` and the older ``average``: True Average, False Sum, neither Average.

        Raises:
            ValueError: both are given.
        """
        if average is None:
            return reduce_ops.Average if op is None else op
        if op is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        warnings.warn("Parameter `average` has been replaced with `op`.", DeprecationWarning, stacklevel=3)
        return reduce_ops.Average if average else reduce_ops.Sum

    return handle_average_backwards_compatibility


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a positive number is a power of two; False for others."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(elements: Sequence[Any], parts: int) -> list[list[Any]]:
    """Cuts a sequence into ``parts`` consecutive lists whose lengths differ by at most one."""
    short, longer = divmod(len(elements), parts)
    bounds = [i * short + min(i, longer) for i in range(parts + 1)]
    return [list(elements[begin:end]) for begin, end in zip(bounds, bounds[1:])]


def is_iterable(x: Any) -> bool:
    """Whether one can iterate over ``x``."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether a version is ``target`` or later. A pre-release comes before its release.

    Args:
        ver: a version such as "2.13.1" or "2.16.0rc1".
        target: "major.minor.patch".

    Raises:
        ValueError: ``target`` has another form, or ``ver`` does not begin with a number.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", target):
        raise ValueError(f"expected a version of the form 1.2.3, got {target!r}")
    parts = re.match(r"v?(\d+(?:\.\d+)*)(.*)", ver)
    if parts is None:
        raise ValueError(f"{ver!r} is no version")
    release, bound = ([int(part) for part in text.split(".")] for text in (parts[1], target))
    release += [0] * (3 - len(release))
    early = re.match(r"[._-]?(a|b|c|rc|alpha|beta|pre|preview|dev)(\d|[._-]|$)", parts[2], flags=re.IGNORECASE)
    return release >= bound and not (early and release[:3] == bound and not any(release[3:]))


def _cache(f: Callable[..., Any]) -> Callable[..., Any]:
    """Remembers the results of a function of hashable arguments."""
    return functools.lru_cache(maxsize=None)(f)
