"""MPICH and Intel MPI: both start their ranks with Hydra."""

from __future__ import annotations

import shlex
from typing import Mapping, Sequence

from compat_hvd.common.mpi import MpiLibrary
from compat_hvd.launcher.arguments import Options
from compat_hvd.launcher.output import Marks, marks_after
from compat_hvd.launcher.vendor import LauncherError, Vendor


def _rank_step(command: list[str], mark: str) -> str:
    """A shell script for each rank: names the rank as Open MPI does, runs the command and reports its exit status.

    Hydra's own status is no substitute: it joins those of the ranks by "or" and is 0 when a rank vanishes by
    os._exit(0) and the others are killed for it. The shell stays beside the command, and the trap keeps it alive to
    report when a signal is sent to both; the command itself starts with the default action. Without /dev/null, ranks
    other than 0 would inherit an input that never ends. Inside the script no word of the command is taken for Hydra's
    ``:``.
    """
    return "\n".join(
        [
            "export OMPI_COMM_WORLD_RANK=$PMI_RANK OMPI_COMM_WORLD_SIZE=$PMI_SIZE",
            "export OMPI_COMM_WORLD_LOCAL_RANK=$MPI_LOCALRANKID OMPI_COMM_WORLD_LOCAL_SIZE=$MPI_LOCALNRANKS",
            "[ $PMI_RANK = 0 ] || exec </dev/null",
            "trap : HUP INT TERM USR1 USR2",
            " ".join(shlex.quote(word) for word in command),
            "status=$?",
            f'printf "<{mark}-exit-%s-%s>" $PMI_RANK $status 2>/dev/null',
            "exit $status",
        ]
    )


class Mpich(Vendor):
    """Runs as root, oversubscribes, binds nothing and forwards the environment without being asked."""

    name = "mpich"
    executables: Sequence[str] = ("mpiexec.mpich", "mpiexec.hydra", "mpiexec", "mpirun")

    def owns(self, version_text: str, library: MpiLibrary) -> bool:
        return "HYDRA build details" in version_text

    def arguments(self, options: Options, environ: Mapping[str, str], mark: str) -> list[str]:
        separation = ["-prepend-pattern", f"<{mark}-%r>"] if options.separates else []
        hosts = self._hosts(options.hosts) if options.hosts else []
        step = _rank_step(options.command, mark)
        return [*separation, *hosts, *options.mpi_args, "-n", str(options.ranks), "/bin/sh", "-c", step]

    def _hosts(self, hosts: str) -> list[str]:
        return ["-hosts", hosts]

    def tags(self, library: MpiLibrary, mark: str) -> Marks:
        return marks_after(f"<{mark}-", r"(\d+)>", r"\d*")

    def records(self, mark: str) -> Marks:
        return marks_after(f"<{mark}-exit-", r"(\d+)-(\d+)>", r"[\d-]*")


class IntelMpi(Mpich):
    """As MPICH, but pins each rank to a share of the cores unless told not to."""

    name = "intelmpi"
    executables: Sequence[str] = ("mpiexec.hydra", "mpiexec", "mpirun")

    def owns(self, version_text: str, library: MpiLibrary) -> bool:
        return "Intel(R) MPI Library" in version_text

    def _hosts(self, hosts: str) -> list[str]:
        """Intel's mpiexec takes one number of ranks for all hosts."""
        names, slots = zip(
            *((name, count or "1") for name, _, count in (host.partition(":") for host in hosts.split(",")))
        )
        if len(set(slots)) > 1:
            raise LauncherError(f"Intel MPI needs the same number of slots on each host, got --hosts {hosts}")
        return ["-hosts", ",".join(names), "-ppn", slots[0]]

    def environment(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        return {} if "I_MPI_PIN" in environ else {"I_MPI_PIN": "off"}
