"""The page's FastAPI app under uvicorn, on a real broker: asks, queries, shutdown, failures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dev.kafka import free_port
from tests.documents import ROOT, block
from tests.kafka.helpers import eventually, make_topics, unique

pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

CRASH = """
@api.post("/crash")
async def crash() -> None:
    app.actor_service._fail(RuntimeError("planted"))
"""
ACCOUNTS = 12
LONG = "60s"
"""The session's time-out: partitions that move sooner were handed over."""


class Server:
    """One uvicorn process with the page's app."""

    def __init__(self, folder: Path, brokers: str, **environment: str) -> None:
        self.port, self.log_file = free_port(), folder.with_suffix(".log")
        settings = {
            "DATADIR": str(folder),
            "WEB_PORT": str(free_port()),
            "BROKER_SESSION_TIMEOUT": LONG,
            "BROKER_HEARTBEAT_INTERVAL": "500ms",
        }
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "uvicorn", "bank:api", "--port", str(self.port)],
                cwd=folder.parent,
                env={
                    **os.environ,
                    "PYTHONPATH": f"{folder.parent}:{ROOT}",
                    "KAFKA_URL": ";".join(f"kafka://{broker}" for broker in brokers.split(",")),
                    **{f"FAUST_ACTORS_{name}": value for name, value in settings.items()},
                    **environment,
                },
                stdout=log,
                stderr=log,
            )

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    async def call(self, method: str, path: str) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method)

        def fetch() -> Any:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.loads(reply.read())

        return await asyncio.to_thread(fetch)

    async def is_up(self) -> bool:
        assert self.process.poll() is None, self.log()[-3000:]
        try:
            await self.call("GET", "/accounts/nobody")
        except OSError:
            return False
        return True

    async def end(self) -> int:
        return await asyncio.to_thread(self.process.wait, 30)


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    started: list[Server] = []
    yield started
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait(20)


async def app_in(folder: Path, brokers: str, *, after: str = "", with_topic: bool = True) -> None:
    """Write the page's module, with names that no other test uses."""
    name = unique("asgi")
    code = block("docs/how-to/asgi.md", "Actors in a FastAPI or other ASGI app").code
    text = code.replace('App("bank"', f'App("{name}"').replace('"accounts"', f'"{name}-accounts"')
    (folder / "bank.py").write_text(text + after)
    if with_topic:
        await make_topics(brokers, f"{name}-accounts", partitions=4)


@pytest.mark.nightly
async def test_two_servers_share_the_partitions_and_hand_them_over(
    brokers: str, tmp_path: Path, servers: list[Server]
) -> None:
    await app_in(tmp_path, brokers)
    for folder in ("one", "two"):
        servers.append(Server(tmp_path / folder, brokers))
        await eventually(servers[-1].is_up, what=servers[-1].log)
    first, second = servers
    assert await first.call("POST", "/accounts/ada/deposit?amount=5") == {"left": 5}
    assert await second.call("POST", "/accounts/ada/withdraw?amount=2") == {"left": 3}
    assert await first.call("GET", "/accounts/ada") == await second.call("GET", "/accounts/ada") == {"cents": 3}
    with pytest.raises(urllib.error.HTTPError) as refused:
        await first.call("POST", "/accounts/ada/withdraw?amount=4")
    assert (refused.value.code, b"there are 3" in refused.value.read()) == (409, True)

    answered, asked, is_over = dict.fromkeys(range(ACCOUNTS), 0), dict.fromkeys(range(ACCOUNTS), 0), asyncio.Event()

    async def feed(account: int) -> None:
        while not is_over.is_set():
            server = first if account % 2 and first.process.poll() is None else second
            asked[account] += 1
            with contextlib.suppress(OSError):
                await server.call("POST", f"/accounts/a{account}/deposit?amount=1")
                answered[account] += 1

    feeding = [asyncio.create_task(feed(account)) for account in range(ACCOUNTS)]
    try:
        await eventually(lambda: min(answered.values()) > 3, what=lambda: (answered, first.log()[-2000:]))
        first.process.send_signal(signal.SIGTERM)
        # uvicorn ends by the signal that it was sent.
        assert await first.end() in (0, -signal.SIGTERM), first.log()[-3000:]
        before = dict(answered)
        # All of them are answered again by the one that is left, long before the session of the other would end.
        await eventually(
            lambda: all(answered[account] > before[account] + 1 for account in answered),
            deadline_s=20,
            what=lambda: (before, answered, second.log()[-3000:]),
        )
    finally:
        is_over.set()
        await asyncio.gather(*feeding)
    for account in range(ACCOUNTS):
        held = (await second.call("GET", f"/accounts/a{account}"))["cents"]
        assert answered[account] <= held <= asked[account]
    assert "stopping took longer" not in first.log()


@pytest.mark.parametrize("what", ["no broker", pytest.param("no topic", marks=pytest.mark.nightly)])
async def test_a_worker_that_cannot_start_fails_the_lifespan_with_its_reason(
    brokers: str, tmp_path: Path, servers: list[Server], what: str
) -> None:
    await app_in(tmp_path, brokers, with_topic=False)
    server = Server(tmp_path / "one", brokers if what == "no topic" else f"127.0.0.1:{free_port()}")
    servers.append(server)
    assert await server.end() == 3, server.log()[-3000:]
    said = "no broker answers at" if what == "no broker" else "isn't on the broker. Make them"
    (_,) = [one for one in server.log().splitlines() if one.startswith("actors.errors.") and said in one]
    assert "Application startup failed" in server.log()


async def test_a_worker_that_ends_ends_the_server(brokers: str, tmp_path: Path, servers: list[Server]) -> None:
    await app_in(tmp_path, brokers, after=CRASH)
    server = Server(tmp_path / "one", brokers)
    servers.append(server)
    await eventually(server.is_up, what=server.log)
    with contextlib.suppress(OSError):
        await server.call("POST", "/crash")
    assert await server.end() != 0
    assert "has ended, and this process handles no messages any more" in server.log()
    assert "RuntimeError: planted" in server.log()
