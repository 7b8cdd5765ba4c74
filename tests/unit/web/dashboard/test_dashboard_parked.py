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
from actors.admin.parked.reader import ParkedQueue, ParkedReader
from actors.web.dashboard import pages

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
        while len(done) < len(waiting) - pages.MAX_READERS:
            pending = [one for one in waiting if not one.done()]
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            done = {one for one in waiting if one.done()}
        for task in done:
            assert task.result().status == 503
            assert task.result().headers["Retry-After"] == "1"
            assert (await task.result().json())["type"] == "urn:faust-actors:problem:busy"
        assert changelog.readers == pages.MAX_READERS
        changelog.may_end.set()
        replies = await asyncio.gather(*waiting)
        assert sorted(reply.status for reply in replies) == [404] * pages.MAX_READERS + [503] * 3
        assert (await client.get(PATH)).status == 404
