"""What the launcher asks of an MPI, and the search for the mpiexec that belongs to it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from typing import Iterator, Mapping, Sequence

from compat_hvd.common.mpi import MpiLibrary
from compat_hvd.launcher.arguments import Options
from compat_hvd.launcher.output import Marks


class LauncherError(RuntimeError):
    """The job cannot be started; the message says why and what to do."""


class Vendor(ABC):
    """One MPI: how its mpiexec is recognised, called and understood.

    ``mark`` below is a word made up for one job, so that no program prints it by chance.
    """

    name: str
    executables: Sequence[str]
    """Names under which its mpiexec is installed, the most specific first."""

    @abstractmethod
    def owns(self, version_text: str, library: MpiLibrary) -> bool:
        """Returns whether the mpiexec that prints ``version_text`` for --version starts ranks of ``library``."""

    @abstractmethod
    def arguments(self, options: Options, environ: Mapping[str, str], mark: str) -> list[str]:
        """Returns what follows mpiexec on the command line."""

    @abstractmethod
    def tags(self, library: MpiLibrary, mark: str) -> Marks:
        """Returns the marks that mpiexec puts before a rank's output; group 1 is the rank."""

    def records(self, mark: str) -> Marks | None:
        """Returns the marks that report a rank (group 1) and its exit status (group 2), if the ranks print such."""
        return None

    def environment(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the variables to add to ``environ``."""
        return {}


def _directories(library: MpiLibrary) -> Iterator[str]:
    """Where to look: above the library (…/lib/libmpi.so → …/bin), beside this Python, then PATH."""
    for file in (library.path, os.path.realpath(library.path)):
        parent = os.path.dirname(file)
        while parent != os.path.dirname(parent):
            parent = os.path.dirname(parent)
            yield os.path.join(parent, "bin")
    yield os.path.dirname(sys.executable)
    yield os.path.join(sys.prefix, "bin")
    yield from os.environ.get("PATH", os.defpath).split(os.pathsep)


def _version_text(mpiexec: str) -> str:
    try:
        process = subprocess.run(
            [mpiexec, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return process.stdout.decode(errors="replace")


def find_mpiexec(vendor: Vendor, library: MpiLibrary) -> str:
    """Returns the path of the first mpiexec found that belongs to ``library``.

    Raises:
        LauncherError: there is none; the message names those that belong to another MPI.
    """
    others = []
    # Open MPI derives its prefix from the path it is called by, and refuses the one of /bin where that is a link.
    for directory in dict.fromkeys(map(os.path.realpath, _directories(library))):
        for executable in vendor.executables:
            path = shutil.which(executable, path=directory)
            if path is None:
                continue
            if vendor.owns(_version_text(path), library):
                return path
            others.append(path)
    found = f" (but of another MPI: {', '.join(others)})" if others else ""
    raise LauncherError(
        f"mpi4py loads {library}, but no mpiexec of that MPI was found above it, beside this Python or on PATH{found}. "
        "Install it, name it with --mpiexec PATH, or let mpi4py load another MPI with MPI4PY_LIBMPI."
    )
