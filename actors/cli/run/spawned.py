"""The supervisor's end of a worker that is its child."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from typing import Any, Self

import click
import msgspec

from actors.cli.run.child import READY, VARIABLE, Assignment

STOP_S = 10.0
"""After so long a child that was told to end is killed; a worker is gone 5 s after SIGTERM."""


class Spawned:
    """A child process.

    Attributes:
        ready: set when the worker is ready.
        started_s: when it was started, by the monotonic clock.
    """

    def __init__(self, process: Process, control: socket.socket) -> None:
        self._process, self._control = process, control
        self.ready = asyncio.Event()
        self.started_s = time.monotonic()
        asyncio.get_running_loop().add_reader(control, self._heard)

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        front: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        **told: Any,
    ) -> Self:
        """Start a child in a session of its own: a signal of the terminal goes to the supervisor only.

        Args:
            command: the child's command line.
            front: the listening sockets that it gets.
            environment: variables beside this process's own.
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
        return cls(process, ours)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def wait(self) -> int:
        """Wait for its end, and return its exit code: below 0, the signal that ended it."""
        code = await self._process.wait()
        self._close()
        return code

    async def stop(self) -> None:
        """End it, in good order, or after `STOP_S` by SIGKILL. May be called twice."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await self._process.wait()
        except TimeoutError:
            say(f"process {self.pid} still runs {STOP_S:g} s after SIGTERM: it is killed")
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


def say(text: str) -> None:
    """Print a line with the time, beside the workers' logs."""
    click.echo(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr)


def signalled(*signals: signal.Signals) -> asyncio.Event:
    """Return an event that any of these signals sets, instead of what they do by default."""
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    for one in signals:
        loop.add_signal_handler(one, event.set)
    return event
