"""Small functions that scripts and tests of Horovod reach for."""

from __future__ import annotations

import functools
from typing import Any, Callable

import tensorflow as tf

from compat_hvd.common.util import check_extension, split_list
from compat_hvd.common.util import num_rank_is_power_2 as check_num_rank_power_of_2

__all__ = [
    "_cache",
    "_executing_eagerly",
    "_make_subgraph",
    "check_extension",
    "check_num_rank_power_of_2",
    "refs_to_vars",
    "split_list",
    "vars_to_refs",
]


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
