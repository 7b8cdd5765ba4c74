"""`faust worker --processes N`: real processes, kill -9 of each kind, rolling restarts, the shared port."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from actors.local_kafka.ports import is_free
from dev.kafka import free_port
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

PARTITIONS = 4
KEYS = [f"key-{number}" for number in range(24)]
READY_S = 150.0
READY = re.compile(r"process (\d+) \(pid (\d+)\) is ready")


def three_ports() -> int:
    """A free port, with two free ones above it."""
    while True:
        port = free_port()
        if all(is_free(port + above) for above in (1, 2)):
            return port


class Supervised(WorkerProcess):
    """A supervisor with its workers."""

    count = 2
    port = 0

    def command(self, *, web: bool) -> list[str]:
        return [*super().command(web=web), "--processes", str(self.count), "--web-port", str(self.port)]

    def ready(self) -> list[tuple[str, int]]:
        """The processes that were ready, in order, with their ids."""
        return [(index, int(pid)) for index, pid in READY.findall(self.log())]

    def pids(self) -> dict[str, int]:
        """The newest process of each number."""
        return dict(self.ready())

    async def get(self, path: str, above: int = 0) -> tuple[int, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.port + above}{path}") as reply,
        ):
            return reply.status, await reply.text()

    async def has(self, number: int) -> bool:
        """Whether each key was counted so often, as the shared port says."""
        with contextlib.suppress(aiohttp.ClientError):
            for key in KEYS:
                status, text = await self.get(f"/actors/counts/{key}")
                if status != 200 or f'"value":{number},' not in text.replace(" ", ""):
                    return False
            return True
        return False


def runs(pid: int) -> bool:
    """Whether a process runs; one that has ended and wasn't waited for doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def supervised(brokers: str, tmp_path: Path, **environment: str) -> tuple[Supervised, str]:
    name = unique("many")
    await make_topics(brokers, f"{name}-in", f"{name}-accounts", f"{name}-out", partitions=PARTITIONS)
    worker = Supervised(
        "tests.kafka.apps.query_app", brokers, tmp_path / "data", APP_NAME=name, WEB_BIND_TO="127.0.0.1", **environment
    )
    worker.port = three_ports()
    worker.start(web=True, spawned=True)
    return worker, name


async def count_all(brokers: str, name: str) -> None:
    await send(brokers, f"{name}-in", [(key.encode(), b'"x"') for key in KEYS], partitions=PARTITIONS)


@pytest.mark.nightly
async def test_two_workers_share_a_port_and_survive_kills_and_replacements(tmp_path, brokers):
    worker, name = await supervised(brokers, tmp_path, INSTANCE_ID="host")
    await eventually(lambda: len(worker.ready()) == 2, deadline_s=READY_S, what=worker.log)
    first = worker.pids()
    assert sorted(first) == ["0", "1"]
    await count_all(brokers, name)
    await eventually(lambda: worker.has(1), what=worker.log)
    assert {"0", "1"} <= {path.name for path in worker.folder.iterdir()}

    async def gathered(up: int) -> bool:
        _, text = await worker.get("/metrics")
        owned = re.findall(r'faust_actors_assigned_partitions\{actor="count".*process="(\d)"\} (\d)', text)
        is_up = text.count('faust_actors_process_up{process="0"} 1.0') + text.count('process_up{process="1"} 1.0')
        return is_up == up and sum(int(number) for _, number in owned) == PARTITIONS and len(owned) == up

    await eventually(lambda: gathered(2), what=worker.log)
    names = Counter(re.findall(r"^# TYPE (\S+)", (await worker.get("/metrics"))[1], re.MULTILINE))
    assert max(names.values()) == 1
    assert 'process="' not in (await worker.get("/metrics", above=1))[1]

    os.kill(first["1"], signal.SIGKILL)
    await eventually(lambda: len(worker.ready()) == 3, deadline_s=READY_S, what=worker.log)
    assert f"process 1 (pid {first['1']}) ended, SIGKILL: restarted in 1 s" in worker.log()
    await count_all(brokers, name)
    await eventually(lambda: worker.has(2), what=worker.log)

    second, refused = worker.pids(), []
    asking = asyncio.create_task(ask_on(worker, refused))
    worker.signal(signal.SIGHUP)
    await eventually(lambda: len(worker.ready()) == 5, deadline_s=READY_S, what=worker.log)
    asking.cancel()
    await asyncio.wait([asking])
    assert refused == []
    assert [index for index, _ in worker.ready()[3:]] == ["0", "1"]
    assert not set(worker.pids().values()) & set(second.values())
    await count_all(brokers, name)
    await eventually(lambda: worker.has(3), what=worker.log)
    found = Counter(record.key for record in await read_all(brokers, f"{name}-out"))
    assert found == Counter({key.encode(): 3 for key in KEYS})

    third = worker.pids()
    assert worker.terminate() == 0, worker.log()[-3000:]
    assert not any(runs(pid) for pid in third.values())


async def ask_on(worker: Supervised, refused: list[object]) -> None:
    """Ask the shared port again and again; note where nobody listens."""
    while True:
        try:
            await worker.get("/health/live")
        except aiohttp.ClientConnectorError as error:
            refused.append(error)
        except aiohttp.ClientError:
            continue
        await asyncio.sleep(0)


async def test_workers_end_with_a_supervisor_that_is_killed(tmp_path, brokers):
    worker, _ = await supervised(brokers, tmp_path)
    await eventually(lambda: len(worker.ready()) == 2, deadline_s=READY_S, what=worker.log)
    worker.signal(signal.SIGKILL)
    await eventually(lambda: not any(runs(pid) for pid in worker.pids().values()), what=worker.log)
    assert worker.log().count("Closing event loop") == 2


@pytest.mark.nightly
async def test_a_start_that_is_refused_ends_all(tmp_path, brokers):
    name = unique("none")
    worker = Supervised(
        "tests.kafka.apps.query_app", brokers, tmp_path / "data", APP_NAME=name, WEB_BIND_TO="127.0.0.1"
    )
    worker.port = three_ports()
    worker.start(web=True, spawned=True)
    assert await asyncio.to_thread(worker.wait, READY_S) == 1
    assert worker.log().count("ended before any was ready, exit code 1") == 1
    assert f"{name}-in" in worker.log()


@pytest.mark.nightly
async def test_a_port_that_is_taken_is_one_line(tmp_path, brokers):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        worker = Supervised(
            "tests.kafka.apps.query_app", brokers, tmp_path / "data", APP_NAME="x", WEB_BIND_TO="127.0.0.1"
        )
        worker.port = taken.getsockname()[1]
        worker.start(web=True, spawned=True)
        assert await asyncio.to_thread(worker.wait, READY_S) == 1
    # Before it, Faust warns of any option that an app's own setting is overridden with.
    (line,) = [line for line in worker.log().splitlines() if line.startswith("Error")]
    assert "Traceback" not in worker.log()
    assert line.startswith(f"Error: the web server can't listen at web_bind='127.0.0.1', web_port={worker.port}")
