"""docs/api.md is made from the docstrings; `python tests/test_api_page.py` writes it anew."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any, Iterator

import pytest
from test_api import DOORS, members, signature_text

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
HEAD = """\
# Reference

Every public name, made from the docstrings. [The TensorFlow interface](api-tensorflow.md) explains them by subject.
"""


def blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """Gives the parts of a docstring: the text before the first heading under "", then each heading's lines."""
    parts = re.split(r"^(\w[\w ]*):\n(?=    )", text, flags=re.MULTILINE)
    yield "", parts[0].strip().splitlines()
    for heading, body in zip(parts[1::2], parts[2::2]):
        yield heading, textwrap.dedent(body).strip().splitlines()


def entries(lines: list[str]) -> Iterator[str]:
    """Joins the lines of each entry: one begins where a line is not indented."""
    entry: list[str] = []
    for line in lines:
        if entry and not line.startswith(" "):
            yield " ".join(entry)
            entry = []
        entry.append(line.strip())
    yield " ".join(entry)


def markdown(docstring: str) -> Iterator[str]:
    for heading, lines in blocks(docstring):
        if not heading:
            yield from lines
        elif heading in ("Args", "Attributes", "Raises"):
            yield from ["", f"{heading}:", ""]
            for entry in entries(lines):
                names, _, meaning = entry.partition(": ")
                yield f"- `{names}`: {meaning}"
        else:
            yield from ["", f"{heading}: {lines[0]}", *lines[1:]]


def code(text: str) -> list[str]:
    return ["```python", text, "```", ""]


def of_name(name: str, value: Any) -> Iterator[str]:
    yield from ["", f"### {name}", ""]
    if inspect.isclass(value):
        yield from of_class(name, value)
    elif callable(value):
        yield from [*code(f"{name}{signature_text(value)}"), *markdown(inspect.getdoc(value) or "")]
    elif inspect.ismodule(value):
        yield from markdown(inspect.getdoc(value) or "")
    else:
        yield f"`{value!r}`" if isinstance(value, int) else f"The `{type(value).__name__}` of all ranks."


def of_class(name: str, cls: type) -> Iterator[str]:
    if "__init__" in vars(cls):
        yield from code(f"{name}{signature_text(cls)}")
    yield from markdown(inspect.getdoc(cls) or "")
    for member, value in members(cls):
        if inspect.isfunction(value) and not member.startswith("_"):
            yield from ["", f"#### {name}.{member}", "", *code(f"{member}{signature_text(value)}")]
            yield from markdown(inspect.getdoc(value) or "")
        elif inspect.isclass(value):
            yield from ["", f"#### {name}.{member}", "", *markdown(inspect.getdoc(value) or "")]


def page() -> str:
    lines, first_at = [HEAD], {}
    for door in DOORS:
        module = importlib.import_module(door)
        lines += [f"## {door}", "", *markdown(inspect.getdoc(module) or "")]
        known: dict[str, list[str]] = {}
        for name in sorted(name for name in module.__all__ if not name.startswith("_")):
            text = "\n".join(of_name(name, getattr(module, name)))
            if first_at.setdefault(text, door) == door:
                lines.append(text)
            else:
                known.setdefault(first_at[text], []).append(f"`{name}`")
        lines += [f"\nAs in {other}: {', '.join(names)}." for other, names in known.items()]
        lines.append("")
    return re.sub(r"(?<!`)``([^`\n]+)``(?!`)", r"`\1`", "\n".join(lines)).rstrip() + "\n"


def test_the_page_is_that_of_the_docstrings() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew with: python tests/test_api_page.py"


def public_functions() -> Iterator[tuple[str, Any]]:
    for door in DOORS:
        module = importlib.import_module(door)
        for name in module.__all__:
            value = getattr(module, name)
            if not name.startswith("_") and callable(value):
                yield f"{door}.{name}", value


@pytest.mark.parametrize("door", DOORS)
def test_every_argument_is_described(door: str) -> None:
    missing = []
    for name, function in public_functions():
        described = {
            word
            for heading, lines in blocks(inspect.getdoc(function) or "")
            if heading == "Args"
            for entry in entries(lines)
            for word in re.findall(r"[\w*]+", entry.partition(":")[0])
        }
        if name.startswith(f"{door}.") and described:
            given = set(inspect.signature(function).parameters)
            missing += [f"{name}: {argument}" for argument in given - {word.lstrip("*") for word in described}]
    assert missing == []


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
