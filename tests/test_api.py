"""The public names with their signatures are those of tests/api.txt; `python tests/test_api.py` prints them anew."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

LISTING = Path(__file__).with_name("api.txt")

# The modules that are public: people import from them.
DOORS = [
    "compat_hvd.tensorflow",
    "compat_hvd.tensorflow.keras",
    "compat_hvd.tensorflow.keras.callbacks",
    "compat_hvd.tensorflow.keras.elastic",
    "compat_hvd.keras",
    "compat_hvd.keras.callbacks",
    "compat_hvd.keras.elastic",
]


def default_text(value):
    import compat_hvd.tensorflow as hvd

    if value is hvd.global_process_set:
        return "global_process_set"
    return value.__name__ if isinstance(value, type) else repr(value)


def signature_text(function):
    """Names and defaults; annotations are left out, since their text depends on the version of Python."""
    texts = []
    for parameter in inspect.signature(function).parameters.values():
        text = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "") + parameter.name
        if parameter.default is not parameter.empty:
            text += f"={default_text(parameter.default)}"
        texts.append(text)
    return f"({', '.join(texts)})"


def members(cls):
    ours = [vars(one) for one in reversed(cls.__mro__) if one.__module__.startswith("compat_hvd.")]
    for member, value in sorted({name: value for one in ours for name, value in one.items()}.items()):
        value = inspect.unwrap(getattr(value, "__func__", value))
        public = not member.startswith("_") or (member == "__init__" and inspect.isfunction(value))
        if public and (inspect.isfunction(value) or isinstance(value, (property, type))):
            yield member, value


def class_lines(name, cls):
    yield f"class {name}"
    for member, value in members(cls):
        yield f"    {member}{signature_text(value) if inspect.isfunction(value) else ''}"


def api_lines(module):
    for name in sorted(module.__all__):
        value = getattr(module, name)
        if name.startswith("_"):
            continue
        if inspect.ismodule(value):
            yield f"module {name}"
        elif inspect.isclass(value):
            yield from class_lines(name, value)
        elif callable(value):
            yield f"{name}{signature_text(value)}"
        else:
            yield f"{name} = {default_text(value)}"


def listing():
    lines = []
    for door in DOORS:
        lines += [f"# {door}", *api_lines(importlib.import_module(door))]
    return "\n".join(lines) + "\n"


def test_public_names_and_signatures():
    assert listing() == LISTING.read_text(encoding="utf-8")


@pytest.mark.parametrize("door", DOORS)
def test_every_public_function_says_what_it_does(door):
    module = importlib.import_module(door)
    values = {name: getattr(module, name) for name in module.__all__}
    assert [name for name, value in values.items() if callable(value) and not inspect.getdoc(value)] == []


@pytest.mark.parametrize("door", DOORS)
def test_nothing_else_is_in_the_door(door):
    module = importlib.import_module(door)
    public = {name for name in vars(module) if not name.startswith("_") and not inspect.ismodule(getattr(module, name))}
    assert public - set(module.__all__) == {"annotations"}


def test_submodules_are_attributes():
    import compat_hvd.tensorflow as hvd

    assert hvd.mpi_ops._allreduce is hvd._allreduce
    assert hvd.functions.broadcast_variables is hvd.broadcast_variables
    assert hvd.compression.Compression is hvd.Compression
    assert hvd.util._executing_eagerly is hvd._executing_eagerly


if __name__ == "__main__":
    print(listing(), end="")
