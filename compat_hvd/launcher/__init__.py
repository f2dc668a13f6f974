"""compat-hvdrun: starts the ranks of a job with the mpiexec that belongs to the MPI which mpi4py loads."""

from __future__ import annotations

import secrets
import shlex
import sys
from typing import Sequence

from compat_hvd.common import mpi
from compat_hvd.launcher.arguments import parse
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


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line ``argv`` (default: the process's) and returns the status for the shell.

    That is the first non-zero status of a rank, 128 + N for a rank killed by signal N, 2 if nothing could be started.
    """
    options = parse(argv)
    mark = "hvd" + secrets.token_hex(6)
    try:
        library = mpi.find_library()
        vendor = _vendor(library)
        environ = for_job(vendor, mark)
        mpiexec = options.mpiexec or find_mpiexec(vendor, library)
        command = [mpiexec, *vendor.arguments(options, environ, mark)]
        if options.verbose:
            print(f"compat-hvdrun: mpi4py loads {library}\n{shlex.join(command)}", file=sys.stderr, flush=True)
        output = Output(vendor.tags(library, mark) if options.separates else None, vendor.records(mark), options)
        return Job(command, environ, output).run()
    except (ImportError, OSError, LauncherError) as error:
        print(f"compat-hvdrun: {error}", file=sys.stderr)
        return USAGE_ERROR
