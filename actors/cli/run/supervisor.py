"""`faust worker --processes N`: N workers; what dies is restarted, and SIGHUP replaces one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from actors._core.backoff import Backoff
from actors._faust.setup import Setup
from actors._kafka.admin.control import ControlPlane
from actors.cli.run.spawned import Say, Spawned, ending, say, signalled
from actors.errors import ConfigurationError
from actors.runtime.cancellation import end
from actors.web.access.door import Connections, doors

LAST_PORT = 65_535
_BACKLOG = 128
_RESTARTS = Backoff(first_s=1.0, longest_s=30.0)
_STEADY_S = 60.0
"""A process that ran so long begins with the shortest wait again when it dies."""
_LOOK_S = 0.05


def run_processes(app: Any, count: int, *, say: Say = say) -> int:
    """Run `count` workers with this process's own command line, and return the exit code; `say` writes what happens.

    Raises:
        ConfigurationError: the port can't be listened at.
        BrokerUnavailableError: no broker answers.
    """
    if getattr(app, "actors", None) or getattr(app, "views", None):
        asyncio.run(_reach(Setup(app)))
    sockets = front_sockets(app.conf, count) if app.conf.web_enabled else []
    with contextlib.ExitStack() as open_sockets:
        for one in sockets:
            open_sockets.enter_context(one)
        command = [sys.executable, *sys.orig_argv[1:]]
        return asyncio.run(Supervisor(command, count, front=[one.fileno() for one in sockets], say=say).run())


async def _reach(setup: Setup) -> None:
    """Check that the brokers answer and are new enough: each worker would end with the same error."""
    async with ControlPlane.connect(setup.connection, setup.group) as control:
        await control.require_versions()


def front_sockets(conf: Any, count: int) -> Sequence[socket.socket]:
    """Return the sockets that listen at the app's own port, for all processes.

    Raises:
        ConfigurationError: they can't.
    """
    if conf.web_transport.scheme != "tcp":
        raise ConfigurationError(
            f"--processes needs a TCP port for the web server, not {conf.web_transport}: leave web_transport out, or "
            "run without a web server (--without-web)"
        )
    if conf.web_port + count > LAST_PORT:
        raise ConfigurationError(
            f"--processes {count} takes the ports {conf.web_port} to {conf.web_port + count}, and {LAST_PORT} is the "
            "last: choose a lower one (--web-port)"
        )
    try:
        found = doors(str(conf.web_bind), conf.web_port, Connections())
        for one in found:
            one.listen(_BACKLOG)
    except OSError as error:
        raise ConfigurationError(
            f"the web server can't listen at web_bind={conf.web_bind!r}, web_port={conf.web_port}: {error.strerror}. "
            "Choose another port (`worker --web-port PORT`), or run without one (`worker --without-web`)"
        ) from None
    return found


async def _rest(stopping: asyncio.Event, delay_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stopping.wait(), delay_s)


class Supervisor:
    """Keeps `count` children running.

    A child that ends before any child was ever ready ends all of them: its reason, a setting or a broker that is away,
    is theirs too.

    Args:
        command: the command line of a child.
        count: how many children there are.
        front: the listening sockets that all of them get.
        say: writes what happens.
        rest: waits so many seconds before a restart, or until the event is set.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        *,
        front: Sequence[int] = (),
        say: Say = say,
        rest: Callable[[asyncio.Event, float], Awaitable[None]] = _rest,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command, self._count, self._front = command, count, front
        self._say, self._rest, self._now_s = say, rest, now_s
        self._children: dict[int, Spawned] = {}
        self._newest: dict[int, Spawned] = {}
        self._replaced: set[Spawned] = set()
        self._stopping = asyncio.Event()
        self._was_ready = False
        self._code = 0

    async def run(self) -> int:
        """Run the processes until a signal comes; return the exit code."""
        self._stopping = signalled(signal.SIGTERM, signal.SIGINT)
        replacing = asyncio.create_task(self._replace_on(signalled(signal.SIGHUP)))
        count = f"{self._count} process{'es' * (self._count > 1)}"
        self._say(f"supervisor {os.getpid()}: {count}; SIGHUP replaces them one after the other")
        keeping = [asyncio.create_task(self._keep(index)) for index in range(self._count)]
        try:
            stopping = asyncio.create_task(self._stopping.wait())
            await asyncio.wait([stopping, replacing, *keeping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._stopping.set()
            await end(replacing)
            # A child that is just being started is in the table before its keeper waits again.
            while any(not one.done() for one in keeping):
                await asyncio.gather(*(child.stop() for child in list(self._children.values())))
                await asyncio.wait(keeping, timeout=_LOOK_S)
        for one in (*keeping, replacing):
            if not one.cancelled() and one.exception() is not None:
                await one
        return self._code

    async def _keep(self, index: int) -> None:
        failures = 0
        while not self._stopping.is_set():
            began_s = self._now_s()
            child = await Spawned.start(self._command, front=self._front, say=self._say, index=index, count=self._count)
            self._children[index] = self._newest[index] = child
            noting = asyncio.create_task(self._note_ready(index, child))
            code = await child.wait()
            await (noting if child.ready.is_set() else end(noting))
            del self._children[index]
            if self._stopping.is_set() or child in self._replaced:
                failures = 0
                self._replaced.discard(child)
                continue
            if not self._was_ready:
                self._give_up(index, code)
                return
            failures = 1 if self._now_s() - began_s > _STEADY_S else failures + 1
            delay_s = _RESTARTS.delay_s(failures)
            self._say(
                f"process {index} (pid {child.pid}) ended, {ending(code)}: restarted in {delay_s:g} s", logging.WARNING
            )
            await self._rest(self._stopping, delay_s)

    async def _note_ready(self, index: int, child: Spawned) -> None:
        await child.ready.wait()
        self._was_ready = True
        self._say(f"process {index} (pid {child.pid}) is ready")

    def _give_up(self, index: int, code: int) -> None:
        if not self._stopping.is_set():
            self._say(
                f"process {index} ended before any was ready, {ending(code)}: the log above says why", logging.CRITICAL
            )
            self._code = 1
            self._stopping.set()

    async def _replace_on(self, asked: asyncio.Event) -> None:
        while True:
            await asked.wait()
            asked.clear()
            self._say("SIGHUP: the processes are replaced, one after the other")
            for index in range(self._count):
                if not await self._replace(index):
                    self._say(f"process {index} ended before it was ready: the others stay as they are", logging.ERROR)
                    break

    async def _replace(self, index: int) -> bool:
        """End a process, wait until the one in its place is ready, and return whether it is."""
        former, running = self._newest.get(index), self._children.get(index)
        if running is not None:
            self._replaced.add(running)
            await running.stop()
        new = former
        while new is None or new is former:
            await asyncio.sleep(_LOOK_S)
            new = self._newest.get(index)
        while not new.ready.is_set():
            if self._children.get(index) is not new:
                return False
            await asyncio.sleep(_LOOK_S)
        return True
