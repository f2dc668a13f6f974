"""Telling ranks' output apart does not depend on where the stream is cut."""

from __future__ import annotations

import random

import pytest

from compat_hvd.common.mpi import MpiLibrary
from compat_hvd.launcher.arguments import parse
from compat_hvd.launcher.mpich import Mpich
from compat_hvd.launcher.openmpi import OpenMpi
from compat_hvd.launcher.output import Output

MARK = "hvd0123456789ab"


def printed_by_hydra(pieces):
    """Hydra puts a tag before each piece and before each line in it."""
    for rank, text in pieces:
        for line in text.splitlines(keepends=True):
            yield f"<{MARK}-{rank}>{line}"


def printed_by_openmpi(separator):
    def print_(pieces):
        for rank, text in pieces:
            for line in text.splitlines(keepends=True):
                yield f"[1,{rank}]<stdout>:{separator}{line}"

    return print_


CASES = {
    "mpich": (Mpich(), MpiLibrary("mpich", "5.0.2", ""), printed_by_hydra),
    "openmpi 5": (OpenMpi(), MpiLibrary("openmpi", "5.0.11", ""), printed_by_openmpi(" ")),
    "openmpi 4": (OpenMpi(), MpiLibrary("openmpi", "4.1.8", ""), printed_by_openmpi("")),
}

PIECES = [
    (0, "whole\n"),
    (1, "half "),
    (0, " <hvd, [1,x] and [1 are text\n"),
    (12, "twelve"),
    (1, "line\n\nthird"),
    (0, "10%\r20%\r100%\r\n"),
]
LINES = {
    "[0]<stdout>:whole",
    "[1]<stdout>:half line",
    "[0]<stdout>: <hvd, [1,x] and [1 are text",
    "[12]<stdout>:twelve",
    "[1]<stdout>:",
    "[1]<stdout>:third",
    "[0]<stdout>:10%",
    "[0]<stdout>:20%",
    "[0]<stdout>:100%\r",
    "mpiexec itself",
}


def feed(case, data, cuts, *words):
    vendor, library, _ = CASES[case]
    output = Output(vendor.tags(library, MARK), vendor.records(MARK), parse(["-np", "13", *words, "true"]))
    for begin, end in zip([0, *cuts], [*cuts, len(data)]):
        output.feed("stdout", data[begin:end])
    output.close()
    return output


def stream(case):
    text = "".join(CASES[case][2](PIECES)) + "\nmpiexec itself\n"
    return text.encode()


@pytest.mark.parametrize("case", CASES)
def test_lines_are_the_same_wherever_the_stream_is_cut(case, capfd):
    data = stream(case)
    draw = random.Random(0)
    every_byte = list(range(1, len(data)))
    for cuts in [[], every_byte, *(sorted(draw.sample(every_byte, 5)) for _ in range(200))]:
        feed(case, data, cuts)
        printed = capfd.readouterr().out.split("\n")
        assert {line for line in printed if line} == LINES, f"cut at {cuts}"


@pytest.mark.parametrize("case", CASES)
def test_files_hold_the_bytes_of_each_rank(case, tmp_path, capfd):
    data = stream(case)
    feed(case, data, list(range(1, len(data))), "--output-filename", str(tmp_path), "--no-tag")
    for rank in (0, 1, 12):
        written = "".join(text for owner, text in PIECES if owner == rank)
        held = (tmp_path / f"rank.{rank:02}" / "stdout").read_bytes().decode()
        assert held.rstrip("\n") == written.rstrip("\n")
    assert "mpiexec itself" in capfd.readouterr().out


@pytest.mark.parametrize("tagged", [True, False])
def test_records_of_status_are_taken_out_and_kept_in_order(tagged, capfd):
    def record(rank, status):
        return f"<{MARK}-exit-{rank}-{status}>"

    text = f"<{MARK}-1>last words{record(1, 0)}<{MARK}-0>{record(0, 3)}<{MARK}-2>{record(2, 137)}\nmpiexec's own\n"
    if not tagged:
        text = f"last words{record(1, 0)}{record(0, 3)}{record(2, 137)}\nmpiexec's own\n"
    data = text.encode()
    for cuts in ([], list(range(1, len(data)))):
        vendor, library, _ = CASES["mpich"]
        options = parse(["-np", "4", *([] if tagged else ["--no-tag"]), "true"])
        output = Output(vendor.tags(library, MARK) if tagged else None, vendor.records(MARK), options)
        for begin, end in zip([0, *cuts], [*cuts, len(data)]):
            output.feed("stdout", data[begin:end])
        output.close()
        rank = "[1]<stdout>:last words\n" if tagged else "last words"
        assert capfd.readouterr().out == rank + "\nmpiexec's own\n"
        assert (output.first_to_end, output.first_failure, output.silent_ranks) == (1, (0, 3), [3])
