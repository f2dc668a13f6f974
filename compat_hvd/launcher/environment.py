"""The environment that a job starts with."""

from __future__ import annotations

import os
import re

from compat_hvd.launcher.guard import JOB_VARIABLE
from compat_hvd.launcher.vendor import Vendor

# Left by a launcher that started this process; with them the new ranks would take themselves for part of that job.
_TRACES = re.compile(
    r"PMI_|PMIX_(?!MCA_)|OMPI_COMM_WORLD_|OMPI_MCA_(num_procs|initial_wdir|cpu_type|PREFIXES)$|OMPI_(WORLD_|UNIVERSE_SIZE|"
    r"FILE_LOCATION|NUM_APP_CTX|TOOL_NAME|COMMAND|ARGV|VERSION)|OMPI_MCA_(orte_|ess_|pmix_base_)|PRTE_LAUNCHED|"
    r"MPI_LOCAL(NRANKS|RANKID)|HYDI?_|HYDRA_BSTRAP_|COMPAT_HVD_(JOB|LAUNCHER|RESTART)$"
)


def for_job(vendor: Vendor, mark: str) -> dict[str, str]:
    """Returns this process's environment without another launcher's traces and with what each rank is promised.

    ``mark`` names the job: whatever of it still runs at the end is found by it.
    """
    environ = {name: text for name, text in os.environ.items() if not _TRACES.match(name)}
    environ.setdefault("PYTHONUNBUFFERED", "1")
    environ.update(vendor.environment(environ))
    environ["COMPAT_HVD_LAUNCHER"] = vendor.name
    environ[JOB_VARIABLE] = mark
    return environ
