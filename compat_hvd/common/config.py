"""The only reader of the environment: one table of every variable the package understands."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Callable, Mapping


def _flag(text: str) -> bool:
    """Horovod's rule: a flag is on when its text is a non-zero number; common words are accepted as well."""
    lowered = text.strip().lower()
    if lowered in ("true", "yes", "on"):
        return True
    if lowered in ("", "false", "no", "off"):
        return False
    return float(lowered) != 0


def _groups(text: str) -> tuple[int, ...]:
    """Sizes of consecutive groups of ranks: ``"2,2"`` is ranks 0–1 and ranks 2–3."""
    sizes = tuple(int(part) for part in text.split(","))
    if min(sizes) < 1:
        raise ValueError("sizes must be positive")
    return sizes


@dataclass(frozen=True)
class Variable:
    """One environment variable: how to read it, what it is without being set, what it is for."""

    parse: Callable[[str], Any]
    default: Any
    meaning: str


TABLE: dict[str, Variable] = {
    "HOROVOD_FUSION_THRESHOLD": Variable(int, 128 << 20, "bytes that one fused response may carry; 0 turns fusion off"),
    "HOROVOD_CACHE_CAPACITY": Variable(int, 1024, "collectives whose negotiation is remembered; 0 turns the cache off"),
    "COMPAT_HVD_ALLOW_SINGLETON": Variable(_flag, False, "let a process that a launcher started be a world of its own"),
    "COMPAT_HVD_NODE_SPLIT": Variable(_groups, None, "for tests: sizes of groups of ranks that act as separate nodes"),
    "COMPAT_HVD_CHUNK_BYTES": Variable(int, 256 << 10, "bytes of one shared-memory slot"),
}


def get(name: str, environ: Mapping[str, str] | None = None) -> Any:
    """Returns the parsed value of the variable ``name``, or its default when it is unset or empty.

    Raises:
        KeyError: ``name`` is not in the table.
        ValueError: the text does not parse; the message names the variable and what it is for.
    """
    variable = TABLE[name]
    text = (os.environ if environ is None else environ).get(name, "")
    if text == "":
        return variable.default
    try:
        return variable.parse(text)
    except ValueError as error:
        raise ValueError(f"environment variable {name}={text!r} is not valid ({error}); it means: {variable.meaning}") from None
