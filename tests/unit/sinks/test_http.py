"""Webhooks against a server in this process: keys of repeats, waits, refusals."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from aiohttp import web

from actors.errors import Rejected
from actors.sinks import Batch, Lookup, Record
from actors.sinks.http import GetJson, ServiceError, Webhook


class Service:
    """Answers with `answers` in turn, then with 200; `calls` has the requests."""

    def __init__(self) -> None:
        self.answers: list[web.Response] = []
        self.calls: list[tuple[Any, Any]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.calls.append((dict(request.headers), json.loads(body) if body else request.path))
        return self.answers.pop(0) if self.answers else web.json_response({"rate": 2})


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """A running one."""
    service, app = Service(), web.Application()
    app.router.add_route("*", "/{tail:.*}", service.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield service
    await runner.cleanup()


BATCH = Batch(
    topic="orders",
    partition=3,
    first=7,
    next=9,
    token=5,
    records=[Record("orders", 3, offset, "k", None, 0, []) for offset in (7, 8)],
)


async def test_rows_are_an_array_with_a_key_that_a_repeat_has_too(service: Service) -> None:
    target = Webhook(service.url + "/in", headers={"Authorization": "Bearer x"})
    await target.write(BATCH, [{"a": 1}, None])
    service.answers = [web.Response(status=500, text="down")]
    with pytest.raises(ServiceError, match="answered 500: down"):
        await target.write(BATCH, [{"a": 1}, None])
    await target.write(BATCH, [{"a": 1}, None])
    await target.close()
    assert [body for _, body in service.calls] == [[{"a": 1}]] * 3
    headers = service.calls[0][0]
    assert headers["Idempotency-Key"] == "orders-3-7-8"
    assert headers["Fencing-Token"] == "5"
    assert headers["Authorization"] == "Bearer x"
    assert {call[0]["Idempotency-Key"] for call in service.calls} == {"orders-3-7-8"}


async def test_nothing_is_sent_where_there_is_no_row(service: Service) -> None:
    target = Webhook(service.url)
    await target.write(BATCH, [None, None])
    assert service.calls == []


@pytest.mark.parametrize("status", [400, 409, 413, 415, 422])
async def test_a_status_that_refuses_the_batch_is_a_refusal(service: Service, status: int) -> None:
    target = Webhook(service.url)
    service.answers = [web.Response(status=status, text="no such customer")]
    with pytest.raises(Rejected, match=f"answered {status}: no such customer"):
        await target.write(BATCH, [1, 2])
    await target.close()


@pytest.mark.parametrize("row", [object(), 1j, "\ud800"], ids=["object", "complex", "text"])
async def test_a_row_that_json_can_not_say_is_a_refusal(service: Service, row: Any) -> None:
    target = Webhook(service.url)
    with pytest.raises(Rejected, match="can't become JSON"):
        await target.write(BATCH, [1, row])
    assert service.calls == []
    await target.close()


async def test_a_wait_that_is_no_number_is_none(service: Service) -> None:
    target = Webhook(service.url)
    service.answers = [web.Response(status=503, headers={"Retry-After": "nan"})]
    with pytest.raises(ServiceError):
        await target.write(BATCH, [1, 2])
    await target.close()


@pytest.mark.parametrize("status", [401, 403, 404, 408, 429, 500, 503])
async def test_any_other_status_is_a_failure_that_may_pass(service: Service, status: int) -> None:
    target = Webhook(service.url)
    service.answers = [web.Response(status=status)]
    with pytest.raises(ServiceError):
        await target.write(BATCH, [1, 2])
    await target.close()


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("said", "least_s"),
    [(lambda: "0.2", 0.2), (lambda: format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True), 0.9)],
    ids=["seconds", "date"],
)
async def test_it_waits_as_long_as_the_service_says(
    service: Service, status: int, said: Callable[[], str], least_s: float
) -> None:
    target = Webhook(service.url)
    service.answers = [web.Response(status=status, headers={"Retry-After": said()})]
    begin_s = time.monotonic()
    await target.write(BATCH, [1, 2])
    assert time.monotonic() - begin_s >= least_s
    assert len(service.calls) == 2
    await target.close()


async def test_a_lookup_asks_a_service_with_a_quoted_key(service: Service) -> None:
    lookup: Lookup[str, Any] = Lookup(GetJson(service.url + "/rates/{key}"))
    assert await lookup.get("a/b c") == {"rate": 2}
    service.answers = [web.Response(status=404), web.Response(status=500)]
    assert await lookup.get("b") is None
    with pytest.raises(ServiceError, match="answered 500"):
        await lookup.get("c")
    service.answers = [web.Response(text="<html>")]
    with pytest.raises(ServiceError, match="isn't JSON"):
        await lookup.get("d")
    service.calls.pop()
    await lookup.close()
    assert [call[1] for call in service.calls] == ["/rates/a/b c", "/rates/b", "/rates/c"]
