"""Small functions that scripts and tests of Horovod reach for."""

from __future__ import annotations

import functools
import os
from typing import Any, Callable, Sequence

import tensorflow as tf

from compat_hvd.common import native


def _executing_eagerly() -> bool:
    """Whether ops run as they are written, that is outside graphs and ``tf.function``."""
    return bool(tf.executing_eagerly())


def _make_subgraph(f: Callable[..., Any]) -> Any:
    """Turns a function into a ``tf.function``."""
    return tf.function(f)


def _cache(f: Callable[..., Any]) -> Callable[..., Any]:
    """Remembers the results of a function of hashable arguments, apart for eager and graph mode."""
    results: dict[Any, Any] = {}

    @functools.wraps(f)
    def remembered(*args: Any, **kwargs: Any) -> Any:
        key = (args, tuple(sorted(kwargs.items())), _executing_eagerly())
        if key not in results:
            results[key] = f(*args, **kwargs)
        return results[key]

    return remembered


def vars_to_refs(vars: Any) -> Any:
    """Replaces each variable of a (nested) list or tuple by its hashable reference; None stays None."""
    if isinstance(vars, (list, tuple)):
        return tuple(vars_to_refs(one) for one in vars)
    return vars.ref() if hasattr(vars, "ref") else vars


def refs_to_vars(refs: Any) -> Any:
    """The inverse of ``vars_to_refs``; lists come back as tuples."""
    if isinstance(refs, (list, tuple)):
        return tuple(refs_to_vars(one) for one in refs)
    return refs.deref() if hasattr(refs, "deref") else refs


def split_list(elements: Sequence[Any], parts: int) -> list[list[Any]]:
    """Cuts a sequence into ``parts`` consecutive lists whose lengths differ by at most one."""
    short, longer = divmod(len(elements), parts)
    bounds = [i * short + min(i, longer) for i in range(parts + 1)]
    return [list(elements[begin:end]) for begin, end in zip(bounds, bounds[1:])]


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Whether a positive number is a power of two; False for others."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: Any) -> None:
    """Checks that the native library is there; the arguments are those of Horovod and only ``ext_name`` is used.

    Raises:
        ImportError: it is not.
    """
    path = native.tensorflow_library_path()
    if not os.path.exists(path):
        raise ImportError(f"Extension {ext_name} has not been built: {path} not found. Reinstall compat_hvd.")
