"""The only reader of the environment: one table of every variable the package understands."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping, Sequence


def _flag(text: str) -> bool:
    """Horovod's rule: a flag is on when its text is a non-zero number; common words are accepted as well."""
    lowered = text.strip().lower()
    if lowered in ("true", "yes", "on"):
        return True
    if lowered in ("", "false", "no", "off"):
        return False
    return float(lowered) != 0


def _groups(text: str) -> tuple[int, ...]:
    """Sizes of consecutive groups of ranks: ``"2,2"`` is ranks 0–1 and ranks 2–3."""
    sizes = tuple(int(part) for part in text.split(","))
    if min(sizes) < 1:
        raise ValueError("sizes must be positive")
    return sizes


@dataclass(frozen=True)
class Variable:
    """One environment variable: how to read it, what it is without being set, what it is for."""

    parse: Callable[[str], Any]
    default: Any
    meaning: str
    empty_counts: bool = False  # an empty text is a value, not the same as unset


TABLE: dict[str, Variable] = {
    "HOROVOD_FUSION_THRESHOLD": Variable(int, 128 << 20, "bytes that one fused response may carry; 0 turns fusion off"),
    "HOROVOD_CACHE_CAPACITY": Variable(int, 1024, "collectives whose negotiation is remembered; 0 turns the cache off"),
    "HOROVOD_TIMELINE": Variable(str, None, "file for rank 0's timeline; DYNAMIC: none until start_timeline is called"),
    "HOROVOD_TIMELINE_MARK_CYCLES": Variable(_flag, False, "marks each response in the timeline"),
    "HOROVOD_STALL_CHECK_DISABLE": Variable(_flag, False, "turns the stall check off"),
    "HOROVOD_STALL_CHECK_TIME_SECONDS": Variable(
        float, 60.0, "seconds after which a waiting collective is warned about"
    ),
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": Variable(
        float, 0.0, "seconds after which a waiting collective fails; 0 is never"
    ),
    "COMPAT_HVD_DEADLOCK_SECONDS": Variable(
        float, 25.0, "seconds after which ranks that wait for each other fail; 0 is never"
    ),
    "COMPAT_HVD_ALLOW_SINGLETON": Variable(_flag, False, "let a process that a launcher started be a world of its own"),
    "COMPAT_HVD_NODE_SPLIT": Variable(_groups, None, "for tests: sizes of groups of ranks that act as separate nodes"),
    "COMPAT_HVD_CHUNK_BYTES": Variable(int, 256 << 10, "bytes of one shared-memory slot"),
    "COMPAT_HVD_LAUNCHER": Variable(str, None, "MPI whose mpiexec compat-hvdrun used; set by it for each rank"),
    "COMPAT_HVD_COMMIT_FILE": Variable(str, None, "file to which rank 0 writes the commits of an elastic state"),
    "HOROVOD_RANK": Variable(int, None, "rank given by Horovod's launcher to a job without MPI"),
    "HOROVOD_SIZE": Variable(int, None, "number of ranks of such a job"),
    "PMI_RANK": Variable(int, None, "rank given by the mpiexec of MPICH or Intel MPI, or srun --mpi=pmi2"),
    "PMI_SIZE": Variable(int, None, "ranks that the mpiexec of MPICH or Intel MPI, or srun --mpi=pmi2, started"),
    "PMI_FD": Variable(int, None, "file descriptor of a rank's connection to the mpiexec of MPICH or Intel MPI"),
    "PMIX_RANK": Variable(int, None, "rank given by a launcher that speaks PMIx: Open MPI's, or srun --mpi=pmix"),
    "PMIX_NAMESPACE": Variable(str, None, "job given by a launcher that speaks PMIx"),
    "OMPI_COMM_WORLD_RANK": Variable(int, None, "rank given by Open MPI's mpiexec, or compat-hvdrun"),
    "OMPI_COMM_WORLD_SIZE": Variable(int, None, "ranks that Open MPI's mpiexec, or compat-hvdrun, started"),
    "SLURM_STEP_NUM_TASKS": Variable(int, None, "processes that srun started"),
    "I_MPI_PMI_LIBRARY": Variable(str, None, "library by which Intel MPI speaks with another launcher"),
    "CUDA_VISIBLE_DEVICES": Variable(str, None, "GPUs that CUDA shows to this process", empty_counts=True),
}


def get(name: str, environ: Mapping[str, str] | None = None) -> Any:
    """Returns the parsed value of the variable ``name``, or its default when it is unset or (unless it counts) empty.

    Raises:
        KeyError: ``name`` is not in the table.
        ValueError: the text does not parse; the message names the variable and what it is for.
    """
    variable = TABLE[name]
    text = (os.environ if environ is None else environ).get(name)
    if text is None or (text == "" and not variable.empty_counts):
        return variable.default
    try:
        return variable.parse(text)
    except ValueError as error:
        raise ValueError(
            f"environment variable {name}={text!r} is not valid ({error}); it means: {variable.meaning}"
        ) from None


@contextlib.contextmanager
def hidden(prefixes: Sequence[str]) -> Iterator[None]:
    """Takes the variables whose names begin with one of ``prefixes`` out of the environment while the block runs.

    For C libraries called in the block: they read the process's environment by themselves.
    """
    taken = {name: text for name, text in os.environ.items() if name.startswith(tuple(prefixes))}
    for name in taken:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(taken)


@contextlib.contextmanager
def replaced(**values: Any) -> Iterator[None]:
    """Gives environment variables other values while the block runs; those given as None are left alone."""
    before = {name: os.environ.get(name) for name, value in values.items() if value is not None}
    os.environ.update({name: str(values[name]) for name in before})
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = text
