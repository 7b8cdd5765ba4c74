"""The page of one key's parked messages: how many are made at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from actors import App, Context
from actors.admin.operation import Answer, Caller
from actors.admin.parked.operations import DropParked, RetryParked
from actors.admin.parked.reader import Entry, ParkedQueue, ParkedReader
from actors.web import operations
from actors.web.dashboard import pages
from tests.unit.web.web_part import ADMIN, TOKENS, bearer, password

PATH = "/dashboard/parked?actor=talk&what=message&partition=0&key=YQ=="


class Changelog:
    """Is read when it is told to; nothing is in it."""

    def __init__(self) -> None:
        self.readers = 0
        self.may_end = asyncio.Event()

    @contextlib.asynccontextmanager
    async def connect(self, _: Any) -> AsyncIterator[Changelog]:
        yield self

    async def line(self, *_: Any) -> ParkedQueue | None:
        self.readers += 1
        await self.may_end.wait()
        return None


async def test_few_pages_read_the_changelog_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    app, changelog, web_app = App("p", broker="kafka://127.0.0.1:1"), Changelog(), web.Application()

    @app.actor(app.topic("in", key_type=str, value_type=str), on_error="park")
    async def talk(ctx: Context, value: str) -> None: ...

    queries = SimpleNamespace(actors={"talk": SimpleNamespace(partition_count=4)})
    service: Any = SimpleNamespace(setup=object())
    app.extensions["web"].queries = queries
    app._actor_service = service
    monkeypatch.setattr(ParkedReader, "connect", changelog.connect)
    pages.mount(app, web_app)
    async with TestClient(TestServer(web_app)) as client, asyncio.timeout(20):
        waiting = [asyncio.create_task(client.get(PATH)) for _ in range(5)]
        done: set[asyncio.Task[Any]] = set()
        while len(done) < len(waiting) - operations.MAX_READERS:
            pending = [one for one in waiting if not one.done()]
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            done = {one for one in waiting if one.done()}
        for task in done:
            assert task.result().status == 503
            assert task.result().headers["Retry-After"] == "1"
            assert (await task.result().json())["type"] == "urn:faust-actors:problem:busy"
        assert changelog.readers == operations.MAX_READERS
        changelog.may_end.set()
        replies = await asyncio.gather(*waiting)
        assert sorted(reply.status for reply in replies) == [404] * operations.MAX_READERS + [503] * 3
        assert (await client.get(PATH)).status == 404


class Line:
    """The changelog of one key with two parked messages, without their contents."""

    @contextlib.asynccontextmanager
    async def connect(self, _: Any) -> AsyncIterator[Line]:
        yield self

    async def line(self, *_: Any) -> ParkedQueue:
        entries = [Entry(sequence=0, id="in-0-0", error="it <failed>", attempts=1), Entry(sequence=1, id="in-0-1")]
        return ParkedQueue(actor="talk", topic="in", what="message", partition=0, key=b"a", entries=entries)

    async def contents(self, *_: Any) -> dict[int, Any]:
        return {}


class Pace:
    """Makes pages at once."""

    async def run(self, rows: Any) -> list[Any]:
        return list(rows)


async def test_an_administrator_resolves_a_key_from_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    app, web_app = App("p", broker="kafka://127.0.0.1:1", **TOKENS), web.Application()

    @app.actor(app.topic("in", key_type=str, value_type=str), on_error="park")
    async def talk(ctx: Context, value: str) -> None: ...

    runs: list[Any] = []

    async def run(operation: Any, _: Any, caller: Caller) -> Answer:
        runs.append((operation, caller.name))
        return Answer(content=None, lines=["1 dropped; 1 message is still parked"])

    router = SimpleNamespace(reader=SimpleNamespace(pace=Pace()))
    queries = SimpleNamespace(actors={"talk": SimpleNamespace(partition_count=4)}, router=router)
    service: Any = SimpleNamespace(setup=object())
    app._actor_service = service
    app.extensions["web"].queries = queries
    monkeypatch.setattr(ParkedReader, "connect", Line().connect)
    for operation in (RetryParked, DropParked):
        monkeypatch.setattr(operation, "run", run)
    pages.mount(app, web_app)
    form = {"actor": "talk", "what": "message", "partition": "0", "key": "YQ=="}
    async with TestClient(TestServer(web_app)) as client, asyncio.timeout(20):
        own = {"Origin": str(client.make_url("")).rstrip("/"), **password(ADMIN)}
        page = await (await client.get(PATH, headers=own)).text()
        assert "it &lt;failed&gt;" in page
        assert page.count('action="/dashboard/parked/') == 3
        for verb, more, status in (
            ("retry", {}, 303),
            ("drop", {"id": "in-0-0", "back": "actor"}, 303),
            ("drop-all", {}, 303),
            ("drop", {}, 400),
            ("retry", {"partition": "4"}, 400),
            ("retry", {"what": "timer"}, 400),
            ("retry", {"actor": "tolk"}, 404),
        ):
            reply = await client.post(
                f"/dashboard/parked/{verb}", data=form | more, headers=bearer(ADMIN), allow_redirects=False
            )
            assert reply.status == status, verb
    place: dict[str, Any] = {"actor": "talk", "what": "message", "partition": 0, "key": b"a"}
    assert [operation for operation, _ in runs] == [
        RetryParked(**place),
        DropParked(**place, entry_id="in-0-0"),
        DropParked(**place, is_all=True),
    ]
    assert all(name.endswith("admin token 1") for _, name in runs)
