"""The public names with their signatures are those of tests/api.txt; `python tests/test_api.py` prints them anew."""

from __future__ import annotations

import inspect
from pathlib import Path

LISTING = Path(__file__).with_name("api.txt")


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


def class_lines(name, cls):
    yield f"class {name}"
    for member, value in sorted(vars(cls).items()):
        value = inspect.unwrap(getattr(value, "__func__", value))
        if inspect.isfunction(value) and (member == "__init__" or not member.startswith("_")):
            yield f"    {member}{signature_text(value)}"
        elif isinstance(value, (property, type)) and not member.startswith("_"):
            yield f"    {member}"


def api_lines(module):
    assert list(module.__all__) == sorted(module.__all__)
    for name in module.__all__:
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
    import compat_hvd.tensorflow as hvd

    return "\n".join(["# compat_hvd.tensorflow", *api_lines(hvd)]) + "\n"


def test_public_names_and_signatures():
    assert listing() == LISTING.read_text(encoding="utf-8")


def test_every_public_function_says_what_it_does():
    import compat_hvd.tensorflow as hvd

    silent = [name for name in hvd.__all__ if callable(getattr(hvd, name)) and not inspect.getdoc(getattr(hvd, name))]
    assert silent == []


def test_nothing_else_is_in_the_door():
    import compat_hvd.tensorflow as hvd

    public = {name for name in vars(hvd) if not name.startswith("_") and not inspect.ismodule(getattr(hvd, name))}
    assert public - set(hvd.__all__) == {"annotations"}


def test_submodules_are_attributes():
    import compat_hvd.tensorflow as hvd

    assert hvd.mpi_ops._allreduce is hvd._allreduce
    assert hvd.functions.broadcast_variables is hvd.broadcast_variables
    assert hvd.compression.Compression is hvd.Compression
    assert hvd.util._executing_eagerly is hvd._executing_eagerly


if __name__ == "__main__":
    print(listing(), end="")
