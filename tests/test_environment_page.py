"""docs/environment.md names every variable that the package reads, with its default."""

from __future__ import annotations

import re
from pathlib import Path

from compat_hvd.common import config

PAGE = (Path(__file__).parents[1] / "docs" / "environment.md").read_text(encoding="utf-8")
ROWS = {
    name: cells
    for names, cells in re.findall(r"^\| (`[^|]+`) \|(.*)\|$", PAGE, flags=re.MULTILINE)
    for name in re.findall(r"`(\w+)`", names)
}


def test_every_variable_has_its_row() -> None:
    assert set(ROWS) == set(config.TABLE)


def test_defaults_are_those_of_the_table() -> None:
    for name, variable in config.TABLE.items():
        if variable.default is not None:
            default = ROWS[name].split("|")[0].strip()
            assert variable.parse(default) == variable.default, name
