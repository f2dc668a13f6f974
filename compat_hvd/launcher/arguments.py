"""The command line of compat-hvdrun."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import sys
from typing import NamedTuple, Sequence

from compat_hvd import __version__


class Options(NamedTuple):
    """What the command line asks for."""

    ranks: int
    command: list[str]
    hosts: str | None
    mpiexec: str | None
    mpi_args: list[str]
    output_directory: str | None
    tag: bool
    restarts: int
    commit_file: str | None
    verbose: bool

    @property
    def separates(self) -> bool:
        """Whether it must be known which rank wrote what."""
        return self.tag or self.output_directory is not None


def _rank_count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError
    return count


_rank_count.__name__ = "number of ranks"


def _restart_count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise ValueError
    return count


_restart_count.__name__ = "number of restarts"


def _hosts(text: str) -> str:
    if not re.fullmatch(r"[^\s:,]+(:[1-9]\d*)?(,[^\s:,]+(:[1-9]\d*)?)*", text):
        raise argparse.ArgumentTypeError(f"expected host:slots,host:slots but got {text!r}")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="compat-hvdrun",
        usage="compat-hvdrun -np N [options] [--] command ...",
        description="Run a command as N ranks, with the mpiexec that belongs to the MPI which mpi4py loads.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-np", "-n", "--num-proc", dest="ranks", metavar="N", type=_rank_count, required=True, help="number of ranks")
    add(
        "-H",
        "--hosts",
        type=_hosts,
        metavar="H:N,...",
        help="hosts and slots (default: the scheduler's, or this one)",
    )
    add("--mpiexec", metavar="PATH", help="mpiexec to use in place of the one found near the MPI library")
    add("--mpi-args", metavar="ARGS", default="", help='more options for mpiexec, as in --mpi-args="-iface eth0"')
    add("--output-filename", dest="output_directory", metavar="DIR", help="also write DIR/rank.R/stdout and stderr")
    add("--no-tag", dest="tag", action="store_false", help="print output as it comes, without [rank]<stream>:")
    add(
        "--restarts",
        metavar="N",
        type=_restart_count,
        default=0,
        help="start the job again, at most N times, when a rank has failed",
    )
    add(
        "--commit-file",
        metavar="PATH",
        help="where rank 0 keeps the last commit of an elastic state (default with --restarts: a file that is removed)",
    )
    add("--verbose", action="store_true", help="print the mpiexec command line")
    add("-v", "--version", action="version", version=f"compat_hvd {__version__}")
    add("command", nargs=argparse.REMAINDER, help="program and arguments; script.py is run with this Python")
    return parser


def _runnable(command: list[str]) -> list[str] | None:
    """The command as it can be executed, or None if there is no such program."""
    program = command[0]
    is_script = program.endswith(".py") and os.path.isfile(program)
    if is_script and not (os.path.dirname(program) and os.access(program, os.X_OK)):
        return [sys.executable, *command]
    return command if shutil.which(program) else None


def parse(argv: Sequence[str] | None = None) -> Options:
    """Returns what ``argv`` (default: the process's arguments) asks for.

    Raises:
        SystemExit: after printing help (status 0) or what is wrong with the arguments (status 2).
    """
    parser = _parser()
    given = parser.parse_args(argv)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        parser.error("what to run is missing: compat-hvdrun -np 2 python train.py")
    runnable = _runnable(command)
    if runnable is None:
        parser.error(f"cannot run {command[0]!r}: no such program here")
    if given.mpiexec is not None and shutil.which(given.mpiexec) is None:
        parser.error(f"--mpiexec: no such program: {given.mpiexec!r}")
    return Options(
        ranks=given.ranks,
        command=runnable,
        hosts=given.hosts,
        mpiexec=given.mpiexec,
        mpi_args=shlex.split(given.mpi_args),
        output_directory=given.output_directory,
        tag=given.tag,
        restarts=given.restarts,
        commit_file=given.commit_file and os.path.abspath(given.commit_file),
        verbose=given.verbose,
    )
