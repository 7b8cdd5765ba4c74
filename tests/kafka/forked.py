"""Workers without the seconds of their imports: for tests that start many."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.kafka.helpers import ROOT, WorkerProcess

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["actors", "actors._faust.service", "faust.cli.faust", "faust.cli.worker"])


class ForkedWorker(WorkerProcess):
    """A `faust worker` that is forked off a process which has imported everything but the app."""

    def start(self, *, web: bool = False, within: Sequence[str] = (), **environment: str) -> WorkerProcess:
        """Start it, with further variables for this one time; the log is appended to."""
        assert not within
        self.folder.mkdir(parents=True, exist_ok=True)
        self._process = _Fork(self.command(web=web), {**self._environment, **environment}, self.log_file)
        return self


class _Fork:
    """As much of `subprocess.Popen` as a worker needs."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._process = _server.Process(target=_run, args=(command, environment, log), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("worker", timeout)
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()


def _run(command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
    from faust.cli.faust import cli

    os.setsid()
    os.chdir(ROOT)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = command
    cli()
