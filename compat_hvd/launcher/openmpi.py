"""Open MPI, versions 4 and 5."""

from __future__ import annotations

import os
import re
import shlex
from typing import Mapping

from compat_hvd.common.mpi import MpiLibrary
from compat_hvd.launcher.arguments import Options
from compat_hvd.launcher.output import Marks
from compat_hvd.launcher.vendor import Vendor

# Of one host only, or not a name that mpiexec accepts.
_NOT_FORWARDED = re.compile(r"BASH_FUNC_|HOSTNAME$|PWD$|OLDPWD$|SHLVL$|_$|TMPDIR$|.*[^A-Za-z0-9_]")


def _one_program(command: list[str]) -> list[str]:
    """The command, hidden in a script if mpiexec would take one of its words for the ``:`` between two programs."""
    if ":" not in command:
        return command
    return ["/bin/sh", "-c", "exec " + " ".join(shlex.quote(word) for word in command)]


class OpenMpi(Vendor):
    """Refuses root and more ranks than cores, and binds ranks to cores, unless told otherwise."""

    name = "openmpi"
    executables = ("mpiexec.openmpi", "mpiexec", "mpirun.openmpi", "mpirun")

    def owns(self, version_text: str, library: MpiLibrary) -> bool:
        """Open MPI's mpiexec must be of the library's major version: what they speak changes with it."""
        version = re.search(r"(?:Open MPI|OpenRTE)\)? v?(\d+)\.", version_text)
        return version is not None and version.group(1) == library.version.split(".")[0]

    def arguments(self, options: Options, environ: Mapping[str, str], mark: str) -> list[str]:
        arguments = ["--oversubscribe", "--bind-to", "none"]
        if os.geteuid() == 0:
            arguments.append("--allow-run-as-root")
        if options.separates:
            arguments.append("--tag-output")
        if options.hosts:
            arguments += ["--host", options.hosts]
            for name in sorted(environ):
                if not _NOT_FORWARDED.match(name):
                    arguments += ["-x", name]
        return [*arguments, *options.mpi_args, "-np", str(options.ranks), *_one_program(options.command)]

    def tags(self, library: MpiLibrary, mark: str) -> Marks:
        space = "" if library.version.startswith("4.") else " "
        whole = rf"\[\d+,(\d+)\]<std(?:out|err|diag)>:{space}"
        partial = r"\[(?:\d+(?:,(?:\d+(?:\](?:<[a-z]*>?:?)?)?)?)?)?\Z"
        return Marks(re.compile(whole.encode()), re.compile(partial.encode()))
