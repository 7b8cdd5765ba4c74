"""Questions for the store of a join: they are refused with what to do, and no list offers them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from actors import Context
from actors.client import StateClient, StateRequestError
from actors.web.queries.openapi import description
from tests.unit.web.query_server import Served, get, spec_of

BODY = b'{"keys": ["a"]}'


class JoinServed(Served):
    """A server whose app has a join beside its other actor."""

    def __init__(self) -> None:
        super().__init__()
        orders, payments = (self.app.topic(name, key_type=str, value_type=int) for name in ("orders", "payments"))

        @self.app.join(orders, payments, within=timedelta(minutes=1), how="outer")
        async def paid(ctx: Context, order: int | None, payment: int | None) -> None: ...

        windows = self.app.actors["paid"].windows
        rows = tuple(store.rows for store in windows)
        spec = spec_of("paid", "orders", paid, rows, windows=windows)
        service: Any = self.app._actor_service
        service.copies = []
        self.queries.actors["paid"] = self.queries.stores["paid"] = spec


@asynccontextmanager
async def served() -> AsyncIterator[JoinServed]:
    found = JoinServed()
    found.server.init_server()
    await found.server.start_server()
    try:
        yield found
    finally:
        await found.server.stop_server()
        await found.queries.workers.close()
        await found.lease.close()


async def ask(found: Served, request: bytes) -> tuple[int, Any]:
    connection = await found.connect()
    try:
        connection.send(request)
        status, _, body = await connection.answer()
    finally:
        await connection.close()
    return status, json.loads(body)


@pytest.mark.parametrize(
    "request_",
    [
        get("/actors/paid/a"),
        get("/actors/paid/a?from=0&to=1"),
        get("/actors/paid/a?read=standby"),
        get("/actors/paid"),
        get("/actors/paid/_count"),
        get("/actors/paid/_many", "Content-Type: application/json", f"Content-Length: {len(BODY)}", method="POST")
        + BODY,
    ],
)
async def test_each_question_is_refused_with_what_to_do(request_: bytes) -> None:
    async with served() as found:
        status, said = await ask(found, request_)
    assert (status, said["type"].rpartition(":")[2]) == (400, "has-a-join")
    assert said["detail"] == (
        "store paid has the records that join paid may still match, and can't be asked: send what the join makes of "
        "them to a topic, or keep it in a store"
    )


async def test_its_changelog_is_compared_all_the_same() -> None:
    body = b'{"partition": 3, "as_of_ms": 0}'
    headers = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    async with served() as found:
        status, said = await ask(found, get("/actors/paid/_digests", *headers, method="POST") + body)
    # The partition is another worker's.
    assert (status, said["title"]) == (503, "The state can't be read now")


async def test_the_client_shows_it() -> None:
    async with served() as found, StateClient(f"http://127.0.0.1:{found.app.conf.web_port}") as client:
        with pytest.raises(StateRequestError, match="may still match, and can't be asked"):
            await client.get("paid", "a")
        with pytest.raises(StateRequestError, match="may still match, and can't be asked"):
            await client.windows("paid", "a")


async def test_no_list_has_it() -> None:
    async with served() as found:
        _, overview = await ask(found, get("/actors"))
        assert sorted(one["store"] for one in overview["stores"]) == ["numbers", "words"]
        assert '"paid"' not in json.dumps(description(found.app))
