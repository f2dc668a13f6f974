"""A pytest plugin: writes what becomes of each test of this rank as it happens, so that a hang leaves its trace."""

from __future__ import annotations

import json
import os

FOLDER = os.environ["HOROVOD_OUTCOMES"]
RANK = os.environ.get("OMPI_COMM_WORLD_RANK", "0")


def write(test: str, outcome: str, message: str = "") -> None:
    """Appends one line to this rank's file."""
    with open(os.path.join(FOLDER, f"{RANK}.jsonl"), "a", encoding="utf-8") as file:
        print(json.dumps([test, outcome, message]), file=file)


def last_line(report) -> str:
    """The line of a report that says what went wrong."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash else str(report.longrepr)).strip().splitlines() or [""]
    return lines[0] if crash else lines[-1]


def pytest_runtest_logstart(nodeid, location):
    write(nodeid, "started")


def pytest_runtest_logreport(report):
    if report.failed:
        write(report.nodeid, "failed", f"in {report.when}: {last_line(report)}")
    elif report.skipped or report.when == "teardown":
        write(report.nodeid, "skipped" if report.skipped else "ended")


def pytest_collectreport(report):
    if report.failed:
        write(report.nodeid, "failed", f"in collection: {last_line(report)}")
