"""Runs one test file on any number of ranks: ``mpiexec -n N python -m pytest tests/parallel``.

After each test the ranks agree on its outcome, on a communicator of the tests' own: a test fails on all ranks if it
failed on one, and the ranks stay in step. A test that takes too long ends the job, with the stack of every thread.
"""

from __future__ import annotations

import faulthandler
import io
import os
import sys
import zlib

import pytest
from world import RANK, SIZE, allgather

TIME_LIMIT_SECONDS = 120
_OUTCOMES = ("passed", "failed", "skipped")
_stderr = sys.stderr


def pytest_addoption(parser):
    parser.addoption("--time-limit", type=float, default=TIME_LIMIT_SECONDS, help="seconds that one test may take")


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    global _stderr
    config.addinivalue_line("markers", "time_limit(seconds): how long the test may take instead of --time-limit")
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        _stderr = os.fdopen(os.dup(2), "w", buffering=1)
    if RANK > 0:
        reporter = config.pluginmanager.getplugin("terminalreporter")
        reporter._tw._file = io.StringIO()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if SIZE != 2 and item.get_closest_marker("two_ranks"):
            item.add_marker(pytest.mark.long)


def pytest_unconfigure(config):
    _stderr.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    marker = item.get_closest_marker("time_limit")
    limit = marker.args[0] if marker else item.config.getoption("--time-limit", TIME_LIMIT_SECONDS)
    faulthandler.dump_traceback_later(limit, exit=True, file=_stderr)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    report = (yield).get_result()
    if report.when == "teardown" or (report.when == "setup" and report.passed):
        return
    others = allgather([zlib.crc32(item.nodeid.encode()), _OUTCOMES.index(report.outcome)])
    if len({test for test, _ in others}) > 1:
        print(f"rank {RANK}: at {item.nodeid}, where another rank is at another test", file=_stderr)
        os._exit(1)
    if report.failed and RANK > 0:
        print(f"\nrank {RANK} of {SIZE}: {item.nodeid} failed\n{report.longreprtext}", file=_stderr)
    outcomes = [_OUTCOMES[outcome] for _, outcome in others]
    if report.outcome != "failed" and set(outcomes) != {report.outcome}:
        listed = ", ".join(f"rank {rank} {outcome}" for rank, outcome in enumerate(outcomes))
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: {listed}"


@pytest.fixture(scope="session")
def hvd():
    import compat_hvd.tensorflow as hvd

    hvd.init()
    return hvd


@pytest.fixture
def session(hvd):
    """A session on a new graph, both the default; ``fed`` gives it values through placeholders."""
    import tensorflow as tf

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        yield session
