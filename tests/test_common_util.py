"""The small functions of compat_hvd.common.util, and those of Horovod's runner that scripts and tests use."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import pytest

from compat_hvd.common import util
from compat_hvd.legacy.horovod_package.runner.common.util.env import get_env_rank_and_size
from compat_hvd.legacy.horovod_package.runner.util.threads import in_thread


@pytest.mark.parametrize(
    ("version", "target", "expected"),
    [
        ("2.13.0", "2.13.0", True),
        ("2.13.1", "2.13.0", True),
        ("2.9.3", "2.13.0", False),
        ("2.21", "2.21.0", True),
        ("3", "2.99.99", True),
        ("2.16.0rc1", "2.16.0", False),
        ("2.16.0-rc1", "2.15.9", True),
        ("2.16.1.dev20240101", "2.16.1", False),
        ("2.15.1+cpu", "2.15.1", True),
        ("2.15.1.post1", "2.15.1", True),
    ],
)
def test_versions_are_compared_as_numbers(version, target, expected):
    assert util.is_version_greater_equal_than(version, target) is expected


def test_other_forms_of_versions_are_refused():
    with pytest.raises(ValueError, match=r"1\.2\.3"):
        util.is_version_greater_equal_than("2.13.0", "2.13")
    with pytest.raises(ValueError, match="unknown"):
        util.is_version_greater_equal_than("unknown", "2.13.0")


def test_env_gives_variables_for_a_while(monkeypatch):
    monkeypatch.setenv("COMPAT_TEST_A", "before")
    monkeypatch.delenv("COMPAT_TEST_B", raising=False)
    with util.env(COMPAT_TEST_A="during", COMPAT_TEST_B=1, COMPAT_TEST_C=None):
        assert (os.environ["COMPAT_TEST_A"], os.environ["COMPAT_TEST_B"]) == ("during", "1")
        assert "COMPAT_TEST_C" not in os.environ
    assert os.environ["COMPAT_TEST_A"] == "before"
    assert "COMPAT_TEST_B" not in os.environ


def test_what_is_built():
    assert (util.mpi_built(verbose=True), util.gloo_built(), util.nccl_built()) == (True, False, 0)
    assert (util.ddl_built(), util.ccl_built()) == (False, False)
    assert util.extension_available("tensorflow")
    assert not util.extension_available("torch", verbose=True)


def test_a_missing_library_makes_the_extension_unavailable(monkeypatch, capsys):
    monkeypatch.setattr(util.native, "tensorflow_library_path", lambda: "/nowhere/library.so")
    assert not util.extension_available("tensorflow", verbose=True)
    assert "/nowhere/library.so" in capsys.readouterr().out


def test_average_in_terms_of_given_reduce_ops():
    meant = util.get_average_backwards_compatibility_fun(SimpleNamespace(Average="mean", Sum="sum"))
    assert (meant(None, None), meant("max", None)) == ("mean", "max")
    with pytest.warns(DeprecationWarning, match="average"):
        assert meant(None, False) == "sum"


def test_iterables():
    assert all(util.is_iterable(x) for x in ([], "ab", {1: 2}, (x for x in ())))
    assert not any(util.is_iterable(x) for x in (1, None, 1.5))


def test_cache_computes_once():
    calls = []
    remembered = util._cache(lambda *args, **kwargs: calls.append((args, kwargs)) or len(calls))
    assert [remembered(1), remembered(1), remembered(2, key=3), remembered(2, key=3)] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (0, 1)),
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, (1, 3)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, (2, 4)),
        ({"HOROVOD_RANK": "5", "HOROVOD_SIZE": "6", "PMI_RANK": "1", "PMI_SIZE": "3"}, (5, 6)),
        ({"HOROVOD_RANK": "5", "PMI_RANK": "1", "PMI_SIZE": "3"}, (1, 3)),
    ],
)
def test_rank_and_size_by_the_environment(monkeypatch, given, expected):
    for launcher in ("HOROVOD", "OMPI_COMM_WORLD", "PMI"):
        for what in ("RANK", "SIZE"):
            monkeypatch.delenv(f"{launcher}_{what}", raising=False)
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    assert get_env_rank_and_size() == expected


def test_in_thread(monkeypatch):
    printed = []
    monkeypatch.setattr(threading, "excepthook", printed.append)
    seen = []
    thread = in_thread(lambda *args: seen.append((args, threading.current_thread().name)), (1, 2), name="named")
    thread.join(10)
    assert thread.daemon
    assert seen == [((1, 2), "named")]
    in_thread(lambda: 1 / 0, silent=True).join(10)
    assert not printed
    in_thread(lambda: 1 / 0).join(10)
    assert printed[0].exc_type is ZeroDivisionError
    with pytest.raises(ValueError, match="tuple"):
        in_thread(print, "text")
