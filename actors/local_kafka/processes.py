"""Processes known by pid and start time, so that a pid in use again is never signalled.

A pidfd is opened first and the start time compared after: from then on the pidfd can only mean that process.
"""

import os
import select
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

# fields of /proc/<pid>/stat, counted from the one after the command's name (proc(5): 3 and 22)
_STATE, _START_TIME = 0, 19


@dataclass(frozen=True, slots=True)
class Process:
    """One process, not merely one pid.

    Attributes:
        pid: Its process id.
        start_ticks: When it started, in clock ticks since boot.
    """

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> Self:
        """Return the process that has a pid now.

        Raises:
            ProcessLookupError: none has it.
        """
        fields = _stat(pid)
        if fields is None:
            raise ProcessLookupError(pid)
        return cls(pid, int(fields[_START_TIME]))

    def running(self) -> bool:
        """Return whether the process hasn't ended; a paused one counts as running."""
        with self._pidfd() as pidfd:
            return pidfd is not None

    def paused(self) -> bool:
        """Return whether the process is stopped by SIGSTOP."""
        fields = _stat(self.pid)
        return fields is not None and fields[_STATE] in "Tt" and self._is(fields)

    def send(self, signum: signal.Signals) -> bool:
        """Sends a signal, unless the process ended or its pid is another's now; returns if it was sent."""
        with self._pidfd() as pidfd:
            if pidfd is None:
                return False
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signum)
                return True
            return False

    def wait(self, timeout_s: float) -> bool:
        """Waits until it has ended; returns False if it still runs after `timeout_s` seconds."""
        with self._pidfd() as pidfd:
            if pidfd is None:
                return True
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            if not poller.poll(max(0.0, timeout_s) * 1000):
                return False
        _reap(self.pid)
        return True

    def _is(self, fields: list[str]) -> bool:
        return int(fields[_START_TIME]) == self.start_ticks

    @contextmanager
    def _pidfd(self) -> Iterator[int | None]:
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            yield None
            return
        try:
            fields = _stat(self.pid)
            same = fields is not None and self._is(fields)
            if same and fields is not None and fields[_STATE] in "ZX":
                _reap(self.pid)
                same = False
            yield pidfd if same else None
        finally:
            os.close(pidfd)


def spawn(command: Sequence[str], output: Path) -> Process:
    """Starts a process in a session of its own, which outlives ours, its output appended to a file."""
    # not subprocess: a Popen object complains when it is dropped while its process runs, and these may
    pid = os.posix_spawn(
        command[0],
        list(command),
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(output), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    return Process.of(pid)  # it is our child and not reaped, so /proc has it


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # the command's name is in brackets and may hold spaces and brackets itself
    return text.rpartition(")")[2].split()


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):  # another process started it: not ours to reap
        os.waitpid(pid, os.WNOHANG)
