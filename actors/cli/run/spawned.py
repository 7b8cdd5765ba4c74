"""The supervisor's end of a worker that is its child."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

import click
import msgspec

from actors._core.logs import escaping
from actors.cli.run.child import READY, VARIABLE, Assignment
from actors.cli.run.json_logs import JsonFormatter

logger = escaping(logging.getLogger(__name__))

STOP_S = 10.0
"""After so long a child that was told to end is killed; a worker is gone 8 s after SIGTERM."""


class Say(Protocol):
    """Writes a line beside the workers' logs."""

    def __call__(self, text: str, level: int = logging.INFO) -> None:
        """Write it; `level` is the one of `logging`."""


def say(text: str, level: int = logging.INFO) -> None:
    """Print a line with the time, for people, whatever its level."""
    click.echo(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr)


def say_as_json(app: str, logfile: str | None) -> Say:
    """Have this process log as JSON, as its workers do: to the same file, or to the standard error.

    Args:
        app: the app's id.
        logfile: the file of `--logfile`.
    """
    handler = logging.FileHandler(logfile) if logfile else logging.StreamHandler()
    handler.setFormatter(JsonFormatter(app))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logger.setLevel(logging.INFO)

    def say(text: str, level: int = logging.INFO) -> None:
        logger.log(level, "%s", text)

    return say


class Spawned:
    """A child process.

    Attributes:
        ready: set when the worker is ready.
    """

    def __init__(self, process: Process, control: socket.socket, say: Say) -> None:
        self._process, self._control, self._say = process, control, say
        self.ready = asyncio.Event()
        asyncio.get_running_loop().add_reader(control, self._heard)

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        front: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        say: Say = say,
        **told: Any,
    ) -> Self:
        """Start a child in a session of its own: a signal of the terminal goes to the supervisor only.

        Args:
            command: the child's command line.
            front: the listening sockets that it gets.
            environment: variables beside this process's own.
            say: writes what becomes of it.
            told: the other fields of `Assignment`.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            assignment = Assignment(control=theirs.fileno(), front=list(front), **told)
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), *front),
                    start_new_session=True,
                    env={**os.environ, **(environment or {}), VARIABLE: msgspec.json.encode(assignment).decode()},
                )
            except BaseException:
                ours.close()
                raise
        return cls(process, ours, say)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def wait(self) -> int:
        """Wait for its end, and return its exit code: below 0, the signal that ended it."""
        code = await self._process.wait()
        if not self.ready.is_set() and self._control.fileno() >= 0:
            # It may have told that it is ready just before its end.
            self._heard()
        self._close()
        return code

    async def stop(self, within_s: float = STOP_S) -> None:
        """End it, in good order, or after `within_s` by SIGKILL. May be called twice."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(within_s):
                await self._process.wait()
        except TimeoutError:
            self._say(f"process {self.pid} still runs {within_s:g} s after SIGTERM: it is killed", logging.WARNING)
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        self._close()

    def _heard(self) -> None:
        try:
            heard = self._control.recv(1)
        except BlockingIOError:
            return
        except OSError:
            heard = b""
        if heard == READY:
            self.ready.set()
        elif not heard:
            asyncio.get_running_loop().remove_reader(self._control)

    def _close(self) -> None:
        if self._control.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()


def ending(code: int) -> str:
    """Return how a process ended, for people."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def signalled(*signals: signal.Signals) -> asyncio.Event:
    """Return an event that any of these signals sets, instead of what they do by default."""
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    for one in signals:
        loop.add_signal_handler(one, event.set)
    return event
