"""Tells the ranks' output apart: from what mpiexec prints to whole lines, each with its rank before it."""

from __future__ import annotations

import os
import re
from typing import Callable, Iterator, NamedTuple

from compat_hvd.launcher.arguments import Options

_LINE = re.compile(rb"[^\r\n]*(?:\r?\n|\r(?!\n|\Z))")
_LONGEST_MARK = 100

Sink = Callable[[bytes], None]


class Marks(NamedTuple):
    """Text that stands between pieces of a stream: a whole one, and what the end of a stream may hold of one."""

    whole: re.Pattern[bytes]
    partial: re.Pattern[bytes]


def marks_after(beginning: str, rest: str, partial_rest: str) -> Marks:
    """Returns the marks that consist of the literal text ``beginning`` and something that matches ``rest``."""
    cut_short = "|".join(re.escape(beginning[:length]) for length in range(1, len(beginning)))
    literal = re.escape(beginning)
    return Marks(
        re.compile(f"{literal}{rest}".encode()),
        re.compile(f"(?:{cut_short}|{literal}{partial_rest})\\Z".encode()),
    )


class _Scanner:
    """Finds marks in a stream that arrives in pieces, also a mark that is cut in two."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._held = b""

    def feed(self, data: bytes) -> Iterator[bytes | re.Match[bytes]]:
        """Yields marks and the bytes between them, but for the end of ``data`` where that may be part of a mark."""
        data = self._held + data
        partial = self._marks.partial.search(data, max(0, len(data) - _LONGEST_MARK))
        end = partial.start() if partial else len(data)
        self._held = data[end:]
        position = 0
        for match in self._marks.whole.finditer(data, 0, end):
            if match.start() > position:
                yield data[position : match.start()]
            yield match
            position = match.end()
        if position < end:
            yield data[position:end]

    def rest(self) -> bytes:
        held, self._held = self._held, b""
        return held


class _Lines:
    """Passes a stream on in whole lines behind ``tag``; the lone carriage return of a progress bar ends a line too."""

    def __init__(self, sink: Sink, tag: bytes) -> None:
        self._sink = sink
        self._tag = tag
        self._pending = b""

    def write(self, data: bytes) -> None:
        data = self._pending + data
        position = 0
        lines = []
        for match in _LINE.finditer(data):
            position = match.end()
            line = match.group()
            if line.endswith(b"\n"):
                lines.append(self._tag + line)
            elif line != b"\r":
                lines.append(self._tag + line[:-1] + b"\n")
        self._pending = data[position:]
        if lines:
            self._sink(b"".join(lines))

    def close(self) -> None:
        pending, self._pending = self._pending, b""
        if pending:
            self._sink(self._tag + pending + b"\n")


class _RankStream:
    """One stream of one rank (or of mpiexec itself, rank None) on its way to the launcher's stream and to its file."""

    def __init__(
        self, rank: int | None, name: str, sink: Sink, options: Options, records: Marks | None, append: bool
    ) -> None:
        self._rank = rank
        self._statuses: list[tuple[int, int]] = []
        self._records = _Scanner(records) if records else None
        self._lines = None
        if options.tag:
            self._lines = _Lines(sink, b"" if rank is None else f"[{rank}]<{name}>:".encode())
        self._sinks = [self._lines.write if self._lines else sink]
        self._file: int | None = None
        if rank is not None and options.output_directory is not None:
            width = len(str(options.ranks - 1))
            directory = os.path.join(options.output_directory, f"rank.{rank:0{width}}")
            os.makedirs(directory, exist_ok=True)
            mode = os.O_APPEND if append else os.O_TRUNC
            self._file = os.open(os.path.join(directory, name), os.O_WRONLY | os.O_CREAT | mode, 0o666)
            self._sinks.append(_writer(self._file))

    def write(self, data: bytes) -> bytes:
        """Takes ``data`` up to the record of the rank's end; returns what follows that, which is mpiexec's own."""
        pieces = self._records.feed(data) if self._records else iter((data,))
        for piece in pieces:
            if isinstance(piece, bytes):
                self._pass_on(piece)
                continue
            self._statuses.append((int(piece.group(1)), int(piece.group(2))))
            if self._lines:
                self._lines.close()
            if self._rank is not None:
                return b"".join(rest for rest in pieces if isinstance(rest, bytes))
        return b""

    def take_statuses(self) -> list[tuple[int, int]]:
        """Returns the (rank, exit status) records found since the last call."""
        found, self._statuses = self._statuses, []
        return found

    def close(self) -> None:
        if self._records:
            self._pass_on(self._records.rest())
        if self._lines:
            self._lines.close()
        if self._file is not None:
            os.close(self._file)

    def _pass_on(self, data: bytes) -> None:
        for sink in self._sinks:
            sink(data)


class Output:
    """Takes what mpiexec prints and writes it to the launcher's own streams and to the ranks' files.

    ``tags`` precede a rank's output and give the rank; ``records`` tell a rank's exit status and are taken out. With
    ``append`` the ranks' files keep what they have.
    """

    def __init__(self, tags: Marks | None, records: Marks | None, options: Options, append: bool = False) -> None:
        self._statuses: list[tuple[int, int]] = []
        self._tags = {name: _Scanner(tags) for name in ("stdout", "stderr")} if tags else {}
        self._current: dict[str, int | None] = {"stdout": None, "stderr": None}
        self._streams: dict[tuple[int | None, str], _RankStream] = {}
        self._records = records
        self._options = options
        self._append = append
        if options.output_directory is not None:
            for rank in range(options.ranks):
                for name in self._current:
                    self._stream(rank, name)

    @property
    def first_failure(self) -> tuple[int, int] | None:
        """The first rank to report a status other than 0, and that status; None if none has."""
        return next(((rank, status) for rank, status in self._statuses if status), None)

    @property
    def first_to_end(self) -> int | None:
        """The rank that reported its status first."""
        return self._statuses[0][0] if self._statuses else None

    @property
    def silent_ranks(self) -> list[int]:
        """The ranks that have not reported, if ranks of this MPI do."""
        return sorted(set(range(self._options.ranks)) - {rank for rank, _ in self._statuses}) if self._records else []

    def feed(self, name: str, data: bytes) -> None:
        """Takes ``data`` that mpiexec has written to its stream ``name``, ``"stdout"`` or ``"stderr"``."""
        if name not in self._tags:
            self._write(None, name, data)
            return
        for piece in self._tags[name].feed(data):
            if isinstance(piece, bytes):
                self._write_current(name, piece)
            else:
                self._current[name] = int(piece.group(1))

    def close(self) -> None:
        """Writes what is left: lines that never ended."""
        for name, scanner in self._tags.items():
            self._write_current(name, scanner.rest())
        for stream in self._streams.values():
            stream.close()

    def _write_current(self, name: str, data: bytes) -> None:
        """A tag holds to the end of its line or of its rank; what follows without another tag is mpiexec's own."""
        if self._current[name] is not None:
            head, newline, data = data.partition(b"\n")
            self._write(self._current[name], name, head + newline)
            if newline:
                self._current[name] = None
        if data:
            self._write(None, name, data)

    def _write(self, rank: int | None, name: str, data: bytes) -> None:
        stream = self._stream(rank, name)
        rest = stream.write(data)
        ended = stream.take_statuses()
        if ended:
            self._statuses += ended
            self._current[name] = None
        if rest:
            self._write(None, name, rest)

    def _stream(self, rank: int | None, name: str) -> _RankStream:
        if (rank, name) not in self._streams:
            sink = _writer(1 if name == "stdout" else 2)
            self._streams[rank, name] = _RankStream(rank, name, sink, self._options, self._records, self._append)
        return self._streams[rank, name]


def _writer(descriptor: int) -> Sink:
    """Unbuffered: a failed write must not come back when the interpreter flushes its streams at exit."""

    def write(data: bytes) -> None:
        while data:
            data = data[os.write(descriptor, data) :]

    return write
