"""``python -m compat_hvd.legacy [-m module | script.py] args…``: plain Python, but ``horovod`` is compat_hvd."""

from __future__ import annotations

import sys

import compat_hvd.legacy.horovod  # noqa: F401
from compat_hvd.legacy import run

USAGE = "usage: python -m compat_hvd.legacy [-m module | script.py] [argument ...]"


def main(arguments: list[str]) -> None:
    """Runs what the command line names."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(f"{USAGE}\nRuns a script written for Horovod, with compat_hvd under the name horovod.")
    elif len(arguments) > 1 and arguments[0] == "-m":
        run.module(arguments[1], arguments[2:])
    elif arguments and not arguments[0].startswith("-"):
        run.script(arguments[0], arguments[1:])
    else:
        print(USAGE, file=sys.stderr)
        sys.exit(2)


main(sys.argv[1:])
