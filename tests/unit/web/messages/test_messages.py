"""Messages by HTTP, through the FastAPI router and the test driver: each is handled once, and the wrong are refused."""

from __future__ import annotations

import base64
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from starlette.requests import ClientDisconnect

from actors import App, Context
from actors._core.keys import make_place
from actors.runtime.quarantine.entries import ENTRY, ParkedMessage
from actors.runtime.queries.queries import HeldTask
from actors.web.access.limits import MAX_BODY_BYTES
from actors.web.events.followers import EventStream
from actors.web.messages.sending import Messages, Sending
from actors.web.problems import Problem
from actors.web.router import _Stream
from stores._core.record import Position, encode_metadata
from stores.memory import MemoryStore
from tests.unit.web.messages.bank import ADMIN, PROBLEM, READ, WRITE, Balance, serving

ADA = "/actors/Account/ada/deposit"


def test_an_ask_has_the_answer_of_the_commit() -> None:
    with serving() as bank:
        assert bank.post(ADA, {"cents": 5}, Prefer="wait=5") == (
            200,
            {"actor": "Account", "message": "deposit", "state": "answered", "value": 5},
        )
        assert bank.driver.get("Account", "ada") == Balance(5, 1)


def test_a_tell_is_accepted_and_says_where_its_answer_will_be() -> None:
    with serving() as bank:
        status, answer = bank.post(ADA, {"cents": 5})
        assert (status, answer["state"]) == (202, "accepted")
        assert answer["status"].startswith("/actors/Account/_sent/deposit/")
        bank.driver.settle()
        assert bank.driver.get("Account", "ada") == Balance(5, 1)


@pytest.mark.parametrize("first", [{}, {"Prefer": "wait=5"}])
@pytest.mark.parametrize("repeat", [{}, {"Prefer": "wait=5"}])
def test_a_repeat_changes_nothing_and_gets_the_first_answer(first: dict[str, str], repeat: dict[str, str]) -> None:
    with serving() as bank:
        bank.post(ADA, {"cents": 5}, Idempotency_Key="one", **first)
        bank.post(ADA, {"cents": 7}, Idempotency_Key="two")
        bank.driver.crash(keep_disk=False)
        again = bank.post(ADA, b' { "cents" : 5 } ', Idempotency_Key='"one"', **repeat)
        bank.driver.settle()
        if repeat:
            assert again == (200, {"actor": "Account", "message": "deposit", "state": "answered", "value": 5})
        assert bank.driver.get("Account", "ada") == Balance(12, 2)


def test_a_repeat_with_another_body_or_message_is_refused() -> None:
    with serving() as bank:
        asked = {"Prefer": "wait=5", "Idempotency_Key": "one"}
        assert bank.post(ADA, {"cents": 5}, **asked)[0] == 200
        for path, cents in ((ADA, 6), ("/actors/Account/ada/withdraw", 5)):
            status, problem = bank.post(path, {"cents": cents}, **asked)
            assert (status, problem["type"]) == (422, PROBLEM + "idempotency-key-reused")
        # A refused one takes nothing from the first.
        assert bank.post(ADA, {"cents": 5}, **asked)[1]["value"] == 5
        assert bank.driver.get("Account", "ada") == Balance(5, 1)


def test_the_same_key_of_another_actor_or_account_is_another_message() -> None:
    with serving() as bank:
        for name in ("ada", "bob"):
            assert bank.post(f"/actors/Account/{name}/deposit", {"cents": 5}, Idempotency_Key="one")[0] == 202
        bank.driver.settle()
        assert bank.driver.get("Account", "bob") == Balance(5, 1)


def test_what_the_actor_rejects_is_a_conflict_with_its_reason_each_time() -> None:
    with serving() as bank:
        for _ in range(2):
            answer = bank.post("/actors/Account/ada/withdraw", {"cents": 9}, Prefer="wait=5", Idempotency_Key="one")
            status, problem = answer
            assert (status, problem["type"]) == (409, PROBLEM + "rejected")
            assert (problem["reason"], problem["data"]) == ("there are 0", {"cents": 0})
            bank.post(ADA, {"cents": 50})


def test_a_message_that_fails_says_why() -> None:
    with serving() as bank:
        status, problem = bank.post("/actors/Account/ada/break", {}, Prefer="wait=5")
        assert (status, problem["type"], problem["error"]) == (500, PROBLEM + "failed", "ValueError")


def test_an_answer_that_comes_later_than_the_client_waits_is_accepted() -> None:
    with serving() as bank:
        status, answer = bank.post("/actors/Account/ada/wait", {}, Prefer="wait=1")
        assert (status, answer["state"]) == (202, "accepted")


WRONG: list[tuple[str, Any, dict[str, str], int, str]] = [
    (ADA, {"cents": "five"}, {}, 400, "bad-body"),
    (ADA, b"{", {}, 400, "bad-body"),
    (ADA, b"", {}, 400, "bad-body"),
    (ADA, b"\xff", {}, 400, "bad-body"),
    (ADA, b"[" * 100_000, {}, 400, "bad-body"),
    (ADA, {"type": "withdraw", "cents": 5}, {}, 400, "bad-body"),
    (ADA, b" " * (MAX_BODY_BYTES + 1), {}, 413, "large-body"),
    (ADA, {"cents": 5}, {"Content_Type": "text/plain"}, 415, "not-json"),
    (ADA, {"cents": 5}, {"Content_Encoding": "gzip"}, 415, "not-json"),
    (ADA, {"cents": 5}, {"Idempotency_Key": ""}, 400, "bad-idempotency-key"),
    (ADA, {"cents": 5}, {"Idempotency_Key": "k" * 256}, 400, "bad-idempotency-key"),
    (ADA, {"cents": 5}, {"Idempotency_Key": "a\tb"}, 400, "bad-idempotency-key"),
    (ADA + "?wait=5", {"cents": 5}, {}, 400, "bad-parameter"),
    (ADA + "?encoding=rot13", {"cents": 5}, {}, 400, "bad-parameter"),
    ("/actors/Account/a/b/deposit", {"cents": 5}, {}, 400, "bad-key"),
    ("/actors/Account/%ff/deposit", {"cents": 5}, {}, 400, "bad-key"),
    ("/actors/log/ada/message", {"cents": 5}, {}, 400, "bad-key"),
    ("/actors/log/1/message", {}, {"Idempotency_Key": "one"}, 400, "no-answers"),
    ("/actors/note/%21/bytes", "AAAA", {}, 400, "bad-key"),
    ("/actors/note/AAAA/bytes", "!", {}, 400, "bad-body"),
]


@pytest.mark.parametrize(("path", "body", "headers", "status", "kind"), WRONG)
def test_what_cant_be_sent_is_refused_and_changes_nothing(
    path: str, body: Any, headers: dict[str, str], status: int, kind: str
) -> None:
    with serving() as bank:
        found, problem = bank.post(path, body, **headers)
        assert (found, problem["type"]) == (status, PROBLEM + kind), problem
        bank.driver.settle()
        assert bank.driver.items("Account") == {}


def test_keys_and_messages_of_all_kinds_arrive() -> None:
    with serving() as bank:
        assert bank.post("/actors/Account/a%2Fb%20%3F/deposit", {"cents": 1}, Prefer="wait=5")[0] == 200
        assert bank.post("/actors/Account/%22q%22/deposit?encoding=json", {"cents": 2}, Prefer="wait=5")[0] == 200
        raw = base64.b64encode(b"\xff\x00").decode()
        path = f"/actors/note/{raw.replace('/', '%2F')}/bytes"
        assert bank.post(path, raw, Prefer="wait=5", Idempotency_Key="1")[1]["state"] == "answered"
        assert bank.post("/actors/log/7/message", {"any": ["thing", None]}, Prefer="wait=5")[0] == 202
        bank.driver.settle()
        assert bank.driver.items("Account") == {"a/b ?": Balance(1, 1), "q": Balance(2, 1)}
        assert bank.driver.get(bank.app.stores["entries"], 7) == {"any": ["thing", None]}


@pytest.mark.parametrize(
    ("token", "status"), [(None, 401), ("wrong-0123456789-abcd", 401), (READ, 403), (WRITE, 202), (ADMIN, 202)]
)
def test_messages_need_a_token_that_allows_to_write(token: str | None, status: int) -> None:
    with serving() as bank:
        assert bank.post(ADA, {"cents": 5}, token=token)[0] == status


def test_nobody_may_write_unless_a_setting_says_so() -> None:
    with serving(write_tokens=None) as bank:
        status, problem = bank.post(ADA, {"cents": 5}, token=ADMIN)
        assert (status, problem["type"]) == (403, PROBLEM + "writing-is-off")


@pytest.mark.parametrize(
    ("prefer", "wait_s"),
    [
        ("wait=5", 5),
        ("respond-async, wait=7", 7),
        ("wait=7; x=1", 7),
        ("Wait = 3", 3),
        ("wait=1000", 60),
        ("wait", 0),
        ("wait=-1", 0),
        ("wait=soon", 0),
        ("awaits=5", 0),
        ("", 0),
    ],
)
def test_the_wait_is_what_the_client_prefers(prefer: str, wait_s: int) -> None:
    assert Sending("/actors/a/b/c", {"prefer": prefer}).wait_s == wait_s


def test_the_document_of_fastapi_has_each_message() -> None:
    with serving() as bank:
        paths = bank.client.get("/openapi.json").json()["paths"]
        operation = paths["/actors/Account/{key}/deposit"]["post"]
        assert operation["summary"] == "Put money in."
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        assert schema["properties"]["cents"] == {"type": "integer"}


@pytest.mark.parametrize("path", ["/actors/Account/Account/ada/deposit", "/actors/Account/a/b/deposit"])
def test_a_slash_in_a_key_leads_to_no_other_actor(path: str) -> None:
    with serving() as bank:
        status, problem = bank.post(path, {"cents": 5})
        assert (status, problem["detail"]) == (400, "a slash in a key has to be written as %2F")
        bank.driver.settle()
        assert bank.driver.items("Account") == {}


async def test_a_stream_is_left_if_the_client_goes_away_before_its_first_byte() -> None:
    left: list[EventStream] = []
    broadcast: Any = SimpleNamespace(leave=left.append)
    follower = EventStream(None, {0: 1}, tag="", clock_s=lambda: 0.0, take=lambda _: None)

    async def hung_up(*_: Any) -> Any:
        raise OSError("the client has hung up")

    with pytest.raises(ClientDisconnect):
        await _Stream(broadcast, follower)({"type": "http", "asgi": {"spec_version": "2.4"}}, hung_up, hung_up)
    assert left == [follower]


@pytest.mark.parametrize(("first", "status"), [(5, 202), (8, 202), (9, 410), (None, 410)])
async def test_a_message_that_is_parked_behind_another_is_accepted(first: int | None, status: int) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")

    @app.actor(app.topic("in", key_type=str, value_type=str), on_error="park", answer_ttl=timedelta(hours=1))
    async def talk(ctx: Context, word: str) -> None: ...

    store = MemoryStore()
    position = Position(10, 20, 0, 1, "id")
    store.apply([], position)
    if first is not None:
        parked = ParkedMessage(
            topic="in", partition=0, offset=first, timestamp_ms=0, key=b"ada", value=b"x", headers=[]
        )
        raw = encode_metadata(1, 1) + msgspec.json.encode(parked)
        store.apply([(make_place(ENTRY, b"ada", 0), raw)], position)
    task = HeldTask(0, {"talk-answers": MemoryStore(), "talk-parked": store}, now_ms=0)
    task.stores["talk-answers"].apply([], position)
    try:
        answer = (await Messages(app).answer_in(task, "talk", "str", id="0" * 32, key=b"ada", offset=8)).status
    except Problem as problem:
        answer = problem.status
    assert answer == status
