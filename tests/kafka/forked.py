"""Runs `python -m faust …` as forks of a process that has imported everything but the app.

The imports take more than a second of CPU time in each process. A test of the start itself uses a process of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import connection
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import io

ROOT = Path(__file__).resolve().parents[2]

# A start polls all processes. What ended has one exit code to read: the second of two threads would find 255.
_polled = threading.Lock()
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    [
        "actors.cli",
        "actors.web.server",
        "actors._faust.service",
        "faust.cli.faust",
        "faust.cli.worker",
        "tests.kafka.warm",
    ]
)


class Fork:
    """A running `python -m faust ARGUMENTS`, with as much of `subprocess.Popen` as the tests need."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], files: Sequence[int], *, folder: Path = ROOT
    ) -> None:
        """Start it in `folder`, with `files` as its standard input, output and error."""
        descriptors = tuple(_Descriptor(number) for number in files)
        self._process = _server.Process(target=_run, args=(arguments, environment, descriptors, folder), daemon=True)
        with _polled:
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        with _polled:
            return self._process.exitcode

    def wait(self, timeout: float) -> int:
        connection.wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("faust", timeout)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()


def faust(
    *arguments: str, environment: Mapping[str, str], stdin: bytes = b"", timeout_s: float = 60.0, folder: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run `python -m faust ARGUMENTS` in `folder`, with `environment` added to this process's; blocks until it ends."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        given.write(stdin)
        given.seek(0)
        files = [file.fileno() for file in (given, out, errors)]
        process = Fork(arguments, {**os.environ, **environment}, files, folder=folder)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read().decode(), errors.read().decode())


class _Descriptor:
    """A file descriptor that is handed to the fork."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _detach, (DupFd(self._number),)


def _detach(copy: Any) -> int:
    number: int = copy.detach()
    return number


def _run(arguments: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int], folder: Path) -> None:
    from faust.cli.faust import cli

    os.setsid()
    os.chdir(folder)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - it is the process's own
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    if "PYTHONUNBUFFERED" in environment:
        cast("io.TextIOWrapper", sys.stdout).reconfigure(write_through=True)
    sys.argv[:] = ["faust", *arguments]
    cli()
