"""compat-hvdrun: starts the ranks of a job with the mpiexec that belongs to the MPI which mpi4py loads."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import sys
import tempfile
from typing import Iterator, Sequence

from compat_hvd.common import mpi
from compat_hvd.launcher.arguments import Options, parse
from compat_hvd.launcher.environment import for_job
from compat_hvd.launcher.job import Job
from compat_hvd.launcher.mpich import IntelMpi, Mpich
from compat_hvd.launcher.openmpi import OpenMpi
from compat_hvd.launcher.output import Output
from compat_hvd.launcher.vendor import LauncherError, Vendor, find_mpiexec

__all__ = ["main"]

USAGE_ERROR = 2


def _vendor(library: mpi.MpiLibrary) -> Vendor:
    for vendor in (Mpich(), IntelMpi(), OpenMpi()):
        if vendor.name == library.vendor:
            return vendor
    raise LauncherError(
        f"mpi4py loads {library}, which compat-hvdrun does not know; start the job with the mpiexec of that MPI"
    )


def _job(options: Options, attempt: int, commit_file: str | None) -> Job:
    """Returns the job, not yet started, for the first attempt (0) or a restart."""
    mark = "hvd" + secrets.token_hex(6)
    library = mpi.find_library()
    vendor = _vendor(library)
    environ = for_job(vendor, mark)
    environ["COMPAT_HVD_RESTART"] = str(attempt)
    if commit_file is not None:
        environ["COMPAT_HVD_COMMIT_FILE"] = commit_file
    mpiexec = options.mpiexec or find_mpiexec(vendor, library)
    command = [mpiexec, *vendor.arguments(options, environ, mark)]
    if options.verbose:
        print(f"compat-hvdrun: mpi4py loads {library}\n{shlex.join(command)}", file=sys.stderr, flush=True)
    tags = vendor.tags(library, mark) if options.separates else None
    return Job(command, environ, Output(tags, vendor.records(mark), options, append=attempt > 0))


@contextlib.contextmanager
def _commit_file(options: Options) -> Iterator[str | None]:
    """Gives the file for commits: the one asked for, or with restarts one that is gone afterwards."""
    if options.commit_file is not None or not options.restarts:
        yield options.commit_file
        return
    with tempfile.TemporaryDirectory(prefix="compat-hvdrun-") as directory:
        yield os.path.join(directory, "commit")


def _run(options: Options) -> int:
    with _commit_file(options) as commit_file:
        for attempt in range(options.restarts + 1):
            job = _job(options, attempt, commit_file)
            status = job.run()
            if status == 0 or job.told_to_end or attempt == options.restarts:
                break
            print(
                f"compat-hvdrun: starting the job again, restart {attempt + 1} of {options.restarts}",
                file=sys.stderr,
                flush=True,
            )
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line ``argv`` (default: the process's) and returns the status for the shell.

    That is the first non-zero status of a rank, 128 + N for a rank killed by signal N, 2 if nothing could be started;
    after restarts, that of the last job.
    """
    options = parse(argv)
    try:
        return _run(options)
    except (ImportError, OSError, LauncherError) as error:
        print(f"compat-hvdrun: {error}", file=sys.stderr)
        return USAGE_ERROR
