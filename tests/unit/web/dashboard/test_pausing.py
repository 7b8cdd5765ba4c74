"""What the dashboard shows of paused partitions, and its buttons."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from actors import App, Context
from actors._faust.setup import Setup
from actors.admin import pausing
from actors.errors import BrokerUnavailableError, ConfigurationError
from actors.web import operations
from actors.web.dashboard import pages
from actors.web.dashboard.group import ClusterStatus
from actors.web.dashboard.rendering import Pages
from actors.web.dashboard.view import PAUSED, build
from tests.browser.statuses import picture, seen, task
from tests.unit.web.web_part import ADMIN, READ, TOKENS, bearer, password


def group(*, paused: tuple[int, ...]) -> ClusterStatus:
    tasks = [
        replace(task("a", number), paused_at_ms=1_785_412_800_000, paused_by="ann")
        if number in paused
        else task("a", number)
        for number in range(3)
    ]
    return picture([seen("w", tasks)], {"a": 3})


def test_a_pause_is_no_trouble_and_is_named() -> None:
    view = build(group(paused=(1,)))
    assert (view.tone, view.verdict) == ("busy", "Partitions are paused")
    (notice,) = view.notices
    assert (notice.tone, notice.text.split(", since")[0]) == ("busy", "a is paused in 1 of 3 partitions")
    assert notice.text.endswith(" by ann")
    assert [row.condition is PAUSED for row in view.partitions] == [False, True, False]
    (row,) = view.actors
    assert (row.condition.word, row.running, row.is_paused) == ("Paused", 2, False)
    whole = build(group(paused=(0, 1, 2)))
    assert (whole.actors[0].is_paused, whole.notices[0].text.split(",")[0]) == (True, "a is paused")


def test_a_partition_that_stands_still_is_not_shown_as_paused() -> None:
    halted = replace(task("a", 0, state="halted"), paused_at_ms=7, paused_by="ann", reason="it failed")
    view = build(picture([seen("w", [halted])], {"a": 1}))
    assert (view.tone, view.partitions[0].condition.word) == ("bad", "Halted")


@pytest.mark.parametrize("may_act", [True, False])
def test_buttons_are_for_those_who_may(may_act: bool) -> None:
    view = build(group(paused=(1,)), "a")
    text = Pages().render(
        "actor.html",
        view=view,
        app="shop",
        recent=[],
        plots=[],
        chosen=None,
        is_polled=True,
        is_live=False,
        may_act=may_act,
    )
    assert text.count('action="/dashboard/pause"') == (3 if may_act else 0)
    assert text.count('action="/dashboard/resume"') == (1 if may_act else 0)
    assert ('aria-label="Resume a, partition 1"' in text) is may_act


class World:
    """The dashboard of an app that asks for tokens, with what it was told to pause or resume."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.app = app = App("p", broker="kafka://127.0.0.1:1", **TOKENS)
        self.told: list[tuple[str, int | None, bool, str]] = []
        self.error: Exception | None = None

        @app.actor(app.topic("in", key_type=str, value_type=str))
        async def talk(ctx: Context, value: str) -> None: ...

        @asynccontextmanager
        async def connect(*_: Any) -> AsyncIterator[Any]:
            if self.error is not None:
                raise self.error
            yield SimpleNamespace(topics=topics)

        async def topics(names: list[str]) -> dict[str, Any]:
            return {name: SimpleNamespace(partitions=4) for name in names}

        async def write(_: Any, topic: str, pause: Any) -> None:
            self.told.append((pause.actor, pause.partition, pause.is_paused, pause.by))

        queries = SimpleNamespace(actors={"talk": SimpleNamespace(partition_count=4, name="talk")}, actor=self._actor)
        service: Any = SimpleNamespace(setup=Setup(app))
        app.extensions["web"].queries = queries
        app._actor_service = service
        monkeypatch.setattr(pausing, "ControlPlane", SimpleNamespace(connect=connect))
        monkeypatch.setattr(pausing, "write_pause", write)
        self.web_app = web.Application()
        pages.mount(app, self.web_app)
        operations.mount(app, self.web_app, app.extensions["web"].actions)

    def _actor(self, name: str) -> Any:
        if name != "talk":
            raise pages.Problem(404, "unknown-actor", "There is no such actor", name)
        return SimpleNamespace(name=name)


async def test_an_administrator_pauses_and_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    async with TestClient(TestServer(world.web_app)) as client:
        own = {"Origin": str(client.make_url("")).rstrip("/"), **password(ADMIN)}
        reply = await client.post("/dashboard/pause", data={"actor": "talk"}, headers=own, allow_redirects=False)
        assert (reply.status, reply.headers["Location"]) == (303, "/dashboard/actor?name=talk")
        reply = await client.post("/operations/resume", json={"where": "talk:3"}, headers=bearer(ADMIN))
        answer = await reply.json()
        assert answer["content"] == {"actor": "talk", "partition": 3, "partitions": 1, "is_paused": False}
        assert "actor talk, partition 3: resumed. Workers go on" in answer["lines"][-1]
    recent = world.app.extensions["web"].actions.recent
    assert [action.text for action in recent] == ['resume {"where": "talk:3"}', "Pause talk, all partitions"]
    assert [told[:3] for told in world.told] == [("talk", None, True), ("talk", 3, False)]
    assert all(told[3].endswith("admin token 1") for told in world.told)


async def test_others_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    async with TestClient(TestServer(world.web_app)) as client:
        for headers, status in (
            ({}, 401),
            (bearer(READ), 403),
            (password(ADMIN), 403),
            ({"Origin": "http://evil.example", **password(ADMIN)}, 403),
        ):
            for verb in ("pause", "resume"):
                reply = await client.post(f"/dashboard/{verb}", data={"actor": "talk"}, headers=headers)
                assert reply.status == status
        assert (await client.get("/dashboard/pause", headers=bearer(ADMIN))).status == 405
    assert world.told == []


@pytest.mark.parametrize(
    ("data", "error", "status"),
    [
        ({}, None, 404),
        ({"actor": "tolk"}, None, 404),
        ({"actor": "talk", "partition": "x"}, None, 400),
        ({"actor": "talk", "partition": "-1"}, None, 400),
        ({"actor": "talk", "partition": "9"}, ConfigurationError("actor talk has no partition 9"), 400),
        ({"actor": "talk"}, BrokerUnavailableError("no broker answers"), 503),
    ],
    ids=str,
)
async def test_wrong_forms(
    monkeypatch: pytest.MonkeyPatch, data: dict[str, str], error: Exception | None, status: int
) -> None:
    world = World(monkeypatch)
    world.error = error
    async with TestClient(TestServer(world.web_app)) as client:
        reply = await client.post("/dashboard/pause", data=data, headers=bearer(ADMIN))
        assert reply.status == status
        if error is not None:
            assert (await reply.json())["detail"] == str(error)
    assert world.told == []
