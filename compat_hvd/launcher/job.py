"""Runs mpiexec: passes output and signals on, ends what does not end by itself, and decides the exit status."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Iterator, Mapping, Sequence

from compat_hvd.launcher.guard import JOB_VARIABLE, guarded, kill_marked
from compat_hvd.launcher.output import Output

FAILED_RANK_GRACE_S = 5.0
"""For so long the others may go on after a rank has failed, and say what they know."""
SIGNAL_GRACE_S = 10.0
"""For so long the ranks may clean up after a signal."""
TERMINATE_GRACE_S = 3.0
DRAIN_S = 1.0
_TICK_S = 0.1
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Job:
    """One run of mpiexec, in a session of its own so that a Ctrl-C reaches it once: through here."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], output: Output) -> None:
        self._command = command
        self._environ = environ
        self._mark = environ[JOB_VARIABLE]
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None
        self._signal: int | None = None
        self._terminate_at: float | None = None
        self._kill_at: float | None = None

    def run(self) -> int:
        """Runs the job and returns the status for the shell; nothing of a job that failed is left on this host."""
        with guarded(self._mark), self._handled_signals():
            self._process = subprocess.Popen(
                self._command,
                env=dict(self._environ),
                stdin=_stdin(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            if self._signal is not None:
                self._send(self._signal)
            returncode = self._wait(self._process)
            with self._broken_pipe_ends_the_job():
                self._output.close()
            status = self._status(returncode)
            if status:
                kill_marked(self._mark)
        return status

    @property
    def told_to_end(self) -> bool:
        """Whether a signal, or the loss of its reader, has ended the job."""
        return self._signal is not None

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """Returns mpiexec's status (negative: a signal) when it has ended and what it printed has been passed on."""
        with selectors.DefaultSelector() as selector:
            assert process.stdout is not None
            assert process.stderr is not None
            selector.register(process.stdout, selectors.EVENT_READ, "stdout")
            selector.register(process.stderr, selectors.EVENT_READ, "stderr")
            give_up_at = float("inf")
            while selector.get_map() and time.monotonic() < give_up_at:
                for key, _ in selector.select(_TICK_S):
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fileobj)
                    with self._broken_pipe_ends_the_job():
                        self._output.feed(key.data, data)
                self._enforce()
                if process.poll() is not None:
                    give_up_at = min(give_up_at, time.monotonic() + DRAIN_S)
        while process.poll() is None:
            self._enforce()
            time.sleep(_TICK_S)
        return process.returncode

    def _enforce(self) -> None:
        """Ends a job in which a rank has failed or a signal has come: waits, SIGTERM to mpiexec, SIGKILL to all."""
        now = time.monotonic()
        if self._kill_at is not None:
            if now >= self._kill_at:
                kill_marked(self._mark)
                self._kill_at = now + TERMINATE_GRACE_S
        elif self._terminate_at is not None:
            if now >= self._terminate_at:
                self._send(signal.SIGTERM)
                self._kill_at = now + TERMINATE_GRACE_S
        elif self._output.first_failure:
            self._terminate_at = now + FAILED_RANK_GRACE_S

    def _receive(self, number: int, frame: FrameType | None = None) -> None:
        """Passes the first signal on; with the second, patience ends."""
        if self._signal is None:
            self._signal = number
            self._send(number)
            self._kill_at = time.monotonic() + SIGNAL_GRACE_S
        else:
            self._kill_at = time.monotonic()

    @contextlib.contextmanager
    def _handled_signals(self) -> Iterator[None]:
        before = {number: signal.getsignal(number) for number in _PASSED_ON}
        heeded = [number for number, handler in before.items() if handler != signal.SIG_IGN]
        for number in heeded:
            signal.signal(number, self._receive)
        try:
            yield
        finally:
            for number in heeded:
                signal.signal(number, before[number])

    @contextlib.contextmanager
    def _broken_pipe_ends_the_job(self) -> Iterator[None]:
        """Nobody reads any more, as in ``compat-hvdrun … | head``: end as a program does that writes there itself."""
        try:
            yield
        except BrokenPipeError:
            if self._signal is None:
                self._signal = signal.SIGPIPE
                self._send(signal.SIGTERM)
                self._kill_at = time.monotonic() + SIGNAL_GRACE_S

    def _send(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _status(self, returncode: int) -> int:
        """The first non-zero status of a rank; else mpiexec's; else 1 if a rank was killed without a word.

        When a rank vanishes by os._exit(0) and the others are killed for it, Hydra's status is 0 or 9 by chance.
        """
        failure = self._output.first_failure
        first = self._output.first_to_end
        silent = self._output.silent_ranks
        status = returncode if returncode >= 0 else 128 - returncode
        if failure is not None:
            rank, status = failure
            self._say(f"rank {rank} {_describe(status)}")
        elif silent and first is not None and status in (0, signal.SIGKILL):
            killed = ", ".join(f"rank {rank}" for rank in silent)
            self._say(f"rank {first} left in the middle of the job with status 0; mpiexec has killed {killed}")
            status = 1
        elif status:
            self._say(f"the job {_describe(status)}")
        return 128 + self._signal if status and self._signal is not None else status

    def _say(self, message: str) -> None:
        """Explains the end, unless it was asked for."""
        if self._signal is None:
            print(f"compat-hvdrun: {message}", file=sys.stderr, flush=True)


def _describe(status: int) -> str:
    """What a shell's status means; above 128 it is a signal's number, but a program may end with such a one itself."""
    try:
        return f"was killed by {signal.Signals(status - 128).name}" if status > 128 else f"ended with status {status}"
    except ValueError:
        return f"ended with status {status}"


def _stdin() -> int | None:
    """What rank 0 reads: the launcher's own input, or nothing if that is closed or the terminal of somebody else."""
    try:
        os.fstat(0)
        if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
            return subprocess.DEVNULL
    except OSError:
        return subprocess.DEVNULL
    return None
