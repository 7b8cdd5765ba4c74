"""The supervisor of `worker --processes`, with small programs as its workers: restarts, replacements, kills."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from actors.cli.run.spawned import Spawned
from actors.cli.run.supervisor import Supervisor

WORKER = """
import json, os, signal, socket, sys
told = json.loads(os.environ["SUPERVISED_WORKER"])
if os.path.exists(os.path.join(sys.argv[1], "broken")):
    sys.exit(3)
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
control = socket.socket(fileno=told["control"])
control.send(b"R")
if "brief" in sys.argv:
    sys.exit(4)
control.recv(1)
"""
READY = re.compile(r"process (\d) \(pid (\d+)\) is ready")
ENDED = re.compile(r"process \d \(pid \d+\) ended, (.+)")


def command(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", WORKER, str(folder), *words]


class Run:
    """A supervisor at work: what it says, and its clock and waits."""

    def __init__(self, folder: Path, count: int, *words: str) -> None:
        self.now_s = 1000.0
        self.rests: list[float] = []
        self.may_restart = asyncio.Event()
        self.may_restart.set()
        self.said: list[tuple[str, int]] = []
        self._news = asyncio.Event()
        self.supervisor = Supervisor(
            command(folder, *words), count, say=self.say, rest=self.rest, now_s=lambda: self.now_s
        )

    def say(self, text: str, level: int = logging.INFO) -> None:
        self.said.append((text, level))
        self._news.set()

    async def rest(self, stopping: asyncio.Event, delay_s: float) -> None:
        self.rests.append(delay_s)
        self._news.set()
        allowed, stopped = (asyncio.ensure_future(one.wait()) for one in (self.may_restart, stopping))
        await asyncio.wait([allowed, stopped], return_when=asyncio.FIRST_COMPLETED)
        allowed.cancel()
        stopped.cancel()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not is_so():
                self._news.clear()
                await self._news.wait()

    @property
    def lines(self) -> list[str]:
        return [text for text, _ in self.said]

    def ready(self) -> list[tuple[str, int]]:
        """The processes that were ready, in order, with their ids."""
        return [(found[1], int(found[2])) for line in self.lines if (found := READY.fullmatch(line))]

    def ended(self) -> list[str]:
        return [found[1] for line in self.lines if (found := ENDED.fullmatch(line))]

    async def has_ready(self, count: int) -> int:
        """Wait until so many were ready; return the newest one's id."""
        await self.until(lambda: len(self.ready()) >= count)
        return self.ready()[-1][1]


@contextlib.asynccontextmanager
async def running(folder: Path, count: int, *words: str) -> AsyncIterator[Run]:
    run = Run(folder, count, *words)
    working = asyncio.create_task(run.supervisor.run())
    await run.has_ready(count)
    try:
        yield run
    finally:
        # Its handler is there: it says nothing before.
        os.kill(os.getpid(), signal.SIGTERM)
        assert await working == 0


async def test_a_process_that_keeps_dying_is_restarted_after_longer_and_longer_waits(tmp_path: Path) -> None:
    async with running(tmp_path, 1) as run:
        for number in range(1, 8):
            os.kill(await run.has_ready(number), signal.SIGKILL)
            await run.until(lambda number=number: len(run.rests) == number)
        assert run.rests == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
        assert run.ended()[:2] == ["SIGKILL: restarted in 1 s", "SIGKILL: restarted in 2 s"]
        assert {level for text, level in run.said if ENDED.fullmatch(text)} == {logging.WARNING}
        # One that ran for long begins with the shortest wait again.
        pid = await run.has_ready(8)
        run.now_s += 61
        os.kill(pid, signal.SIGKILL)
        await run.until(lambda: len(run.rests) == 8)
        assert run.rests[-1] == 1.0
        os.kill(await run.has_ready(9), signal.SIGKILL)
        await run.until(lambda: len(run.rests) == 9)
        assert run.rests[-1] == 2.0
        await run.has_ready(10)


async def test_a_replacement_stops_at_the_first_process_that_does_not_come_up(tmp_path: Path) -> None:
    async with running(tmp_path, 2) as run:
        first = dict(run.ready())
        run.may_restart.clear()
        (tmp_path / "broken").touch()
        os.kill(os.getpid(), signal.SIGHUP)
        await run.until(lambda: any("stay as they are" in line for line in run.lines))
        assert run.said[-1] == ("process 0 ended before it was ready: the others stay as they are", logging.ERROR)
        assert run.ended() == ["exit code 3: restarted in 1 s"], "process 1 wasn't touched"
        os.kill(first["1"], 0)
        # It goes on trying, and the next replacement is of both, one after the other.
        (tmp_path / "broken").unlink()
        run.may_restart.set()
        await run.has_ready(3)
        second = dict(run.ready())
        assert (second["0"] != first["0"], second["1"]) == (True, first["1"])
        os.kill(os.getpid(), signal.SIGHUP)
        await run.has_ready(5)
        assert [index for index, _ in run.ready()[3:]] == ["0", "1"]
        assert not set(dict(run.ready()).values()) & {*second.values()}
        assert run.rests == [1.0], "a process that is replaced isn't one that died"


async def test_a_process_that_was_ready_and_ended_at_once_does_not_end_the_others(tmp_path: Path) -> None:
    async with running(tmp_path, 1, "brief") as run:
        await run.until(lambda: len(run.rests) >= 2)
        assert run.ended()[:2] == ["exit code 4: restarted in 1 s", "exit code 4: restarted in 2 s"]


async def test_a_start_that_fails_ends_all(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    run = Run(tmp_path, 2)
    assert await run.supervisor.run() == 1
    gave_up = [(text, level) for text, level in run.said if "before any was ready" in text]
    assert len(gave_up) == 1
    assert re.fullmatch(r"process \d ended before any was ready, exit code 3: the log above says why", gave_up[0][0])
    assert gave_up[0][1] == logging.CRITICAL


async def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    said: list[tuple[str, int]] = []
    child = await Spawned.start(
        command(tmp_path, "deaf"), say=lambda text, level=logging.INFO: said.append((text, level))
    )
    async with asyncio.timeout(60):
        await child.ready.wait()
        await child.stop(within_s=0.05)
        assert await child.wait() == -signal.SIGKILL
    assert said == [(f"process {child.pid} still runs 0.05 s after SIGTERM: it is killed", logging.WARNING)]
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
    await child.stop()


async def test_a_process_that_ends_in_time_is_not_killed(tmp_path: Path) -> None:
    said: list[str] = []
    child = await Spawned.start(command(tmp_path), say=lambda text, level=logging.INFO: said.append(text))
    async with asyncio.timeout(60):
        await child.ready.wait()
        await child.stop()
        assert await child.wait() == -signal.SIGTERM
    assert said == []


async def test_what_a_process_told_just_before_its_end_is_heard(tmp_path: Path) -> None:
    child = await Spawned.start(command(tmp_path, "brief"))
    # Its end is seen before its last word.
    asyncio.get_running_loop().remove_reader(child._control)
    async with asyncio.timeout(60):
        assert await child.wait() == 4
    assert child.ready.is_set()
