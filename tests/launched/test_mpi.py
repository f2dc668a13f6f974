"""What the rest of the package gets from MPI, before there is an engine."""

from __future__ import annotations

import sys
import textwrap

import pytest
from children import LAUNCHER, run

HEAD = """
import ctypes
from compat_hvd.common import mpi
"""


def run_ranks(ranks, body):
    code = HEAD + textwrap.dedent(body)
    ended = run([*LAUNCHER, "-np", ranks, sys.executable, "-c", code], timeout=60)
    assert ended.returncode == 0, ended
    return sorted(ended.stdout.splitlines())


def test_communicators_and_integers():
    printed = run_ranks(
        3,
        """
        world = mpi.start().COMM_WORLD
        rank = world.rank
        assert mpi.thread_multiple()
        mine = mpi.dup(world)
        assert mine != world and mine.size == 3 and mine.rank == rank
        assert mpi.split_shared(mine).size == 3 and mpi.split_shared(mine).rank == rank
        assert mpi.allgather_int64(mine, [rank, -(2**62) * rank]) == [[r, -(2**62) * r] for r in range(3)]
        assert mpi.allgather_int64(mine, []) == [[], [], []]
        some = mpi.from_ranks([2, 0])
        assert (some is None) == (rank == 1)
        if some is not None:
            assert some.size == 2 and some.rank == (0 if rank == 2 else 1)
        for wrong in ([], [0, 0], [-1], [3]):
            try:
                mpi.from_ranks(wrong)
            except ValueError as error:
                assert "different numbers from 0 to 2" in str(error)
            else:
                raise AssertionError(wrong)
        print("right")
        mpi.finalize_if_owned()
        """,
    )
    assert printed == [f"[{rank}]<stdout>:right" for rank in range(3)]


def test_handles_call_the_mpi_that_is_loaded():
    """Bytes go from rank 0 to rank 1 by addresses and raw handles only, as the engine sends them."""
    printed = run_ranks(
        2,
        """
        rank = mpi.start().COMM_WORLD.rank
        handles = mpi.handles(mpi.dup(mpi.start().COMM_WORLD))
        assert sorted(handles.functions) == ["MPI_Abort", "MPI_Irecv", "MPI_Isend", "MPI_Test"]
        word = ctypes.c_uint64
        transfer = ctypes.CFUNCTYPE(ctypes.c_int, word, ctypes.c_int, word, ctypes.c_int, ctypes.c_int, word, word)
        test = ctypes.CFUNCTYPE(ctypes.c_int, word, word, word)(handles.functions["MPI_Test"])
        data = ctypes.create_string_buffer(b"bytes" if rank == 0 else b"?????")
        request, status, done = (ctypes.create_string_buffer(8) for _ in range(3))
        status = ctypes.create_string_buffer(256)
        start = transfer(handles.functions["MPI_Isend" if rank == 0 else "MPI_Irecv"])
        assert start(ctypes.addressof(data), 5, handles.byte, 1 - rank, 7, handles.comm, ctypes.addressof(request)) == 0
        while not any(done.raw[:4]):
            assert test(*(ctypes.addressof(each) for each in (request, done, status))) == 0
        print(data.value.decode())
        mpi.finalize_if_owned()
        """,
    )
    assert printed == [f"[{rank}]<stdout>:bytes" for rank in range(2)]


@pytest.mark.parametrize("imported_before", [True, False])
def test_only_who_initialised_mpi_finalises_it(imported_before):
    first = "from mpi4py import MPI" if imported_before else "pass"
    body = f"""
        {first}
        MPI = mpi.start()
        assert MPI.Is_initialized() and not MPI.Is_finalized()
        mpi.start()
        mpi.finalize_if_owned()
        print(MPI.Is_finalized())
        mpi.finalize_if_owned()
        try:
            mpi.start()
        except RuntimeError as error:
            print(error)
    """
    printed = run_ranks(1, body)
    if imported_before:
        assert printed == ["[0]<stdout>:False"]
    else:
        assert printed[1] == "[0]<stdout>:True"
        assert "cannot be started again" in printed[0]


def test_abort_ends_every_rank():
    code = (
        HEAD
        + "mpi.abort(3); rank = mpi.start().COMM_WORLD.rank\nif rank == 1: mpi.abort(6)\nimport time; time.sleep(60)"
    )
    ended = run([*LAUNCHER, "-np", 2, sys.executable, "-c", code], timeout=30)
    assert ended.returncode == 6, ended


def test_nothing_is_initialised_by_looking():
    code = (
        HEAD
        + "print(mpi.find_library().vendor); mpi.check_launch(); from mpi4py import MPI; print(MPI.Is_initialized())"
    )
    ended = run([sys.executable, "-c", code], timeout=30)
    assert ended.stdout.split()[1] == "False", ended
