"""`POST /operations/…`: who may, what goes in, and what comes out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import MISSING, fields
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from actors import App, Context
from actors._faust.setup import Setup
from actors.admin.forget import Forget
from actors.admin.operation import Answer, Caller, Operation, name_of
from actors.admin.operations import OPERATIONS
from actors.admin.parked.operations import DropParked, ListParked, RetryParked
from actors.admin.parked.reader import ParkedError
from actors.errors import ActorsError, BrokerUnavailableError, ConfigurationError, UsageError
from actors.web import operations
from actors.web.operations import MAX_READERS, MAX_UNDER_WAY, arguments_of, description, operation_of
from tests.documents import ROOT
from tests.unit.web.web_part import ADMIN, READ, TOKENS, bearer


class Site:
    """A web server whose operations are noted in place of being carried out; `error` is raised in their place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Operation, Caller]] = []
        self.answer = Answer(content={"a": 1}, lines=["done"], remarks=["more"])
        self.error: Exception | None = None
        self.may_end: asyncio.Event | None = None

        async def run(operation: Operation, _: Any, caller: Caller) -> Answer:
            self.calls.append((operation, caller))
            if self.may_end is not None:
                await self.may_end.wait()
            if self.error is not None:
                raise self.error
            return self.answer

        for kind in (DropParked, Forget, ListParked, RetryParked):
            monkeypatch.setattr(kind, "run", run)
        self.app = app = App("p", broker="kafka://127.0.0.1:1", **TOKENS)

        @app.actor(app.topic("in", key_type=str, value_type=str), on_error="park")
        async def talk(ctx: Context, value: str) -> None: ...

        service: Any = SimpleNamespace(setup=Setup(app))
        app._actor_service = service
        self.web_app = web.Application()
        self.actions = app.extensions["web"].actions
        operations.mount(app, self.web_app, self.actions)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch)


@pytest.fixture
async def client(site: Site) -> AsyncIterator[TestClient[Any, Any]]:
    async with TestClient(TestServer(site.web_app)) as client:
        yield client


async def test_a_body_has_the_command_lines_names_and_the_reply_its_answer(site: Site, client: Any) -> None:
    body = {"actor": "talk", "key": "a", "id": "in-0-1", "timeout": 5, "yes": True}
    reply = await client.post("/operations/parked/drop", json=body, headers=bearer(ADMIN))
    assert (reply.status, reply.headers["Cache-Control"]) == (200, "no-store")
    assert await reply.json() == {"content": {"a": 1}, "lines": ["done"], "remarks": ["more"]}
    ((operation, caller),) = site.calls
    assert operation == DropParked(actor="talk", key="a", entry_id="in-0-1", timeout_s=5, is_agreed=True)
    assert caller.name == "admin token 1"
    with pytest.raises(UsageError, match=r'^Drop all\? Add "yes": true$'):
        caller.confirm("Drop all?")
    (action,) = site.actions.recent
    assert (action.text[:12], action.asked_by, action.outcome) == ("parked drop ", "admin token 1", "done")


async def test_all_of_it_is_for_administrators(site: Site, client: Any) -> None:
    for path, headers, status in (
        ("parked/list", {}, 401),
        ("parked/list", bearer(READ), 403),
        ("parked/list", bearer(ADMIN), 200),
        ("parked/retry", bearer(READ), 403),
        ("state/forget", bearer(READ), 403),
        ("parked", bearer(ADMIN), 404),
        ("nothing", bearer(READ), 403),
    ):
        body = {"name": "x"} if path == "state/forget" else {}
        assert (await client.post(f"/operations/{path}", json=body, headers=headers)).status == status, path
    assert (await client.get("/operations/parked/list", headers=bearer(ADMIN))).status == 405
    assert [type(operation) for operation, _ in site.calls] == [ListParked]
    # What only looks isn't an action of the pages.
    assert site.actions.recent == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"actor": 1}',
        b'{"actor": "talk", "is_all": true}',
        b'{"actor": "talk", "partition": -1}',
        b'{"actor": "talk", "what": "timer"}',
        b'{"actor": "talk", "since": "yesterday"}',
        b'{"actor": "talk", "timeout": null}',
    ],
)
async def test_other_bodies_are_refused_with_the_reason(site: Site, client: Any, body: bytes) -> None:
    headers = {**bearer(ADMIN), "Content-Type": "application/json"}
    reply = await client.post("/operations/parked/retry", data=body, headers=headers)
    problem = await reply.json()
    assert (reply.status, problem["type"]) == (400, "urn:faust-actors:problem:bad-body")
    assert problem["detail"].startswith("parked retry: ")
    form = await client.post("/operations/parked/retry", data={"actor": "talk"}, headers=bearer(ADMIN))
    assert (form.status, site.calls) == (415, [])


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (BrokerUnavailableError("no broker answers"), 503, "not-ready"),
        (UsageError("name ACTOR and KEY"), 400, "bad-parameter"),
        (ConfigurationError("no such actor"), 400, "bad-parameter"),
        (ParkedError("nothing is parked"), 409, "refused"),
        (ActorsError("no"), 409, "refused"),
        (ZeroDivisionError("x"), 500, "failed"),
    ],
    ids=repr,
)
async def test_errors_are_problems(site: Site, client: Any, error: Exception, status: int, kind: str) -> None:
    site.error = error
    for path in ("parked/retry", "parked/list"):
        reply = await client.post(f"/operations/{path}", json={}, headers=bearer(ADMIN))
        assert (reply.status, (await reply.json())["type"].rpartition(":")[2]) == (status, kind)


async def test_what_is_not_done_is_a_conflict_with_what_was(site: Site, client: Any) -> None:
    site.answer = Answer(content=[1], lines=["1 handled"], failure="1 of 2 keys are still parked")
    reply = await client.post("/operations/parked/retry", json={"all": True}, headers=bearer(ADMIN))
    problem = await reply.json()
    assert (reply.status, problem["detail"]) == (409, "1 of 2 keys are still parked")
    assert (problem["content"], problem["lines"], problem["remarks"]) == ([1], ["1 handled"], [])


@pytest.mark.parametrize(("path", "most"), [("parked/retry", MAX_UNDER_WAY), ("parked/list", MAX_READERS)])
async def test_only_so_many_run_at_a_time(site: Site, client: Any, path: str, most: int) -> None:
    site.may_end = asyncio.Event()
    post = [
        asyncio.create_task(client.post(f"/operations/{path}", json={}, headers=bearer(ADMIN))) for _ in range(most + 1)
    ]
    done, _ = await asyncio.wait(post, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result().status for task in done] == [503]
    site.may_end.set()
    assert sorted([(await task).status for task in post]) == [200] * most + [503]


async def test_a_starting_worker_says_so(site: Site, client: Any) -> None:
    site.app._actor_service.setup = None  # type: ignore[union-attr]
    reply = await client.post("/operations/parked/list", json={}, headers=bearer(ADMIN))
    assert (reply.status, (await reply.json())["detail"]) == (503, "this worker is starting")


def test_the_description_has_each_operation_with_the_names_of_its_arguments(site: Site) -> None:
    document = description(site.app)
    assert len(document["paths"]) == len(OPERATIONS)
    for kind in OPERATIONS:
        schema = document["components"]["schemas"][kind.__name__]
        assert schema["properties"].keys() == {name_of(field) for field in fields(kind)}
        needed = {name_of(field) for field in fields(kind) if field.default is MISSING}
        assert set(schema.get("required", ())) == needed
    limit = document["components"]["schemas"]["ListParked"]["properties"]["limit"]
    assert (limit["minimum"], limit["default"]) == (1, 1_000)


def test_the_page_shows_requests_that_are_taken() -> None:
    page = (ROOT / "docs/reference/command-line.md").read_text()
    shown = re.findall(r"^\| `POST /operations/(\S+)` \| `(.+)` \|$", page, re.MULTILINE)
    kinds = {kind.command.replace(" ", "/"): kind for kind in OPERATIONS}
    taken = [operation_of(kinds[path], arguments_of(kinds[path]), body.encode()) for path, body in shown]
    assert [operation.command for operation in taken] == ["pause", "parked retry", "timers list", "timers drop"]
