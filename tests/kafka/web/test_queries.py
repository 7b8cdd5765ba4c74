"""What can be asked, how it is answered, and how what can't be is refused."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from yarl import URL

from actors.client import StateClient, StateRequestError, StateUnavailableError, SyncStateClient
from dev.kafka import free_port
from tests import documents
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, send, unique

PARTITIONS = 3
KEYS = sorted({f"key {number}" for number in range(40)} | {"a/b", "..", "é ü", "100%", "_count", 'q"'})


@dataclass
class Asked:
    """Two workers whose state is asked for."""

    brokers: str
    name: str
    urls: list[str]
    session: aiohttp.ClientSession
    workers: list[WorkerProcess]

    async def get(self, path: str, url: str = "", **options: Any) -> tuple[int, Any]:
        """Ask for a path as it stands there; checks what all answers have."""
        method = options.pop("method", "GET")
        async with self.session.request(method, URL((url or self.urls[0]) + path, encoded=True), **options) as reply:
            content = await reply.json(content_type=None)
        assert reply.headers["Cache-Control"] == "no-store"
        is_problem = reply.content_type == "application/problem+json"
        assert is_problem == (reply.status >= 400)
        if is_problem:
            assert content["status"] == reply.status
            assert content["title"]
            assert content["detail"]
            assert content["type"].startswith("urn:faust-actors:problem:")
        return reply.status, content

    async def many(self, store: str, body: Any, **options: Any) -> tuple[int, Any]:
        """Ask for many keys."""
        return await self.get(f"/actors/{store}/_many", method="POST", json=body, **options)

    def log(self) -> str:
        """The ends of all logs."""
        return "\n".join(worker.log()[-2000:] for worker in self.workers)


@pytest.fixture(scope="module")
async def asked(brokers: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Asked]:
    name, folder = unique("asked"), tmp_path_factory.mktemp("asked")
    await make_topics(brokers, f"{name}-in", f"{name}-out", f"{name}-accounts", partitions=PARTITIONS)
    ports = [free_port(), free_port()]
    workers = [
        WorkerProcess(
            "tests.kafka.apps.query_app", brokers, folder / str(port), APP_NAME=name, WEB_PORT=str(port)
        ).start(web=True)
        for port in ports
    ]
    try:
        async with aiohttp.ClientSession() as session:
            found = Asked(brokers, name, [f"http://127.0.0.1:{port}" for port in ports], session, workers)
            await eventually(lambda: sum(w.log().count(" owns ") for w in workers) >= 2 * PARTITIONS, what=found.log)
            messages = [(key.encode(), b"count") for key in KEYS]
            messages += [(b"blob", b"blob some bytes"), (b"key 1", b"anywhere 42"), (b"gone", b"count")]
            messages += [(b"gone", b"delete"), (b"lasts", b"brief 3600000"), (b"passes", b"brief 1")]
            await send(brokers, f"{name}-in", messages, partitions=PARTITIONS)
            await send(brokers, f"{name}-accounts", [(b"ada", b'{"amount":5}')], partitions=PARTITIONS)

            async def is_there() -> bool:
                (_, count) = await found.get("/actors/counts/_count?exact=true")
                (_, account) = await found.get("/actors/Account/ada")
                return count.get("count") == len(KEYS) + 3 and account.get("value") == {"amount": 5}

            await eventually(is_there, what=found.log)
            yield found
        assert [worker.terminate() for worker in workers] == [0, 0], found.log()
    finally:
        for worker in workers:
            worker.kill()


@pytest.mark.nightly
async def test_both_workers_say_the_same_of_every_key(asked: Asked) -> None:
    _, overview = await asked.get("/actors")
    assert {one["worker"] for one in overview["partitions"]} == {
        (await asked.get("/actors", url))[1]["worker"] for url in asked.urls
    }
    for key in KEYS:
        for encoding, text in (("", key), ("json", json.dumps(key)), ("base64", base64.b64encode(key.encode()))):
            path = f"/actors/counts/{quote(text, safe='')}"
            if key == "_count" and not encoding:
                continue
            answers = [await asked.get(path + (f"?encoding={encoding}" if encoding else ""), url) for url in asked.urls]
            assert [status for status, _ in answers] == [200, 200], answers
            assert answers[0] == answers[1]
            value = answers[0][1]
            assert (value["key"], value["expires_at_ms"], value["staleness_ms"]) == (key, None, 0)
            assert value["value"] == (2 if key == "key 1" else 1)
            assert value["position"]["partition"] == value["partition"]
    status, gone = await asked.get("/actors/counts/gone")
    assert (status, gone["type"]) == (404, "urn:faust-actors:problem:no-such-key")
    assert gone["position"]["epoch"] >= 1


async def test_keys_and_values_of_every_kind(asked: Asked) -> None:
    found = [await asked.get(f"/actors/anywhere/42?partition={number}") for number in range(PARTITIONS)]
    assert sorted(status for status, _ in found) == [200, 404, 404]
    assert next(value["value"] for status, value in found if status == 200) == "key 1"
    encoded = base64.urlsafe_b64encode(b"blob").decode()
    status, blob = await asked.get(f"/actors/blobs/{quote(encoded)}")
    assert (status, base64.b64decode(blob["value"]), blob["key"]) == (200, b"some bytes", "YmxvYg==")
    _, raw = await asked.get("/actors/counts/key%201?raw=true")
    assert (base64.b64decode(raw["key"]), base64.b64decode(raw["value"])) == (b"key 1", b"2")
    (status, brief), (past, _) = await asked.get("/actors/brief/lasts"), await asked.get("/actors/brief/passes")
    assert (status, past) == (200, 404)
    assert time.time() * 1000 < brief["expires_at_ms"] < (time.time() + 3700) * 1000


async def test_many_keys_come_in_the_order_of_the_question(asked: Asked) -> None:
    keys = [*KEYS, "nobody", KEYS[0]]
    for url in asked.urls:
        status, said = await asked.many("counts", {"keys": keys}, url=url)
        assert status == 200
        assert [result["key"] for result in said["results"]] == keys
        assert [result["found"] for result in said["results"]] == [key in KEYS for key in keys]
        assert {result["partition"] for result in said["results"]} == {int(number) for number in said["positions"]}
        encoded = [base64.b64encode(key.encode()).decode() for key in keys]
        body = {"encoding": "base64", "raw": True, "keys": encoded}
        status, raw = await asked.many("counts", body, url=url)
        assert status == 200
        assert raw["store"] == "counts"
        for given, one, same in zip(encoded, raw["results"], said["results"], strict=True):
            assert (one["key"], one["expires_at_ms"]) == (given, None)
            value = None if one["value"] is None else int(base64.b64decode(one["value"]))
            assert (value, one["partition"]) == (same["value"], same["partition"])
        for position in raw["positions"].values():
            assert position.keys() >= {"changelog_offset", "epoch", "source_offset"}
    assert (await asked.many("counts", {"keys": []}))[1]["results"] == []


async def test_a_range_is_in_order_whatever_the_size_of_its_pages(asked: Asked) -> None:
    stored = sorted([key.encode() for key in KEYS] + [b"blob", b"lasts", b"passes"])

    async def all_of(parameters: str, limit: int, url: str) -> list[bytes]:
        found: list[bytes] = []
        cursor = ""
        while True:
            _, page = await asked.get(f"/actors/counts?limit={limit}{parameters}{cursor}", url)
            assert len(page["items"]) <= limit
            found += [item["key"].encode() for item in page["items"]]
            if page["next"] is None:
                return found
            cursor = f"&cursor={page['next']}"

    for url in asked.urls:
        for limit in (1, 7, 1000):
            assert await all_of("", limit, url) == stored
        assert await all_of("&prefix=key%201", 4, url) == [key for key in stored if key.startswith(b"key 1")]
        between = [key for key in stored if b"key 2" <= key < b"lasts"]
        assert await all_of("&from=key%202&to=lasts", 5, url) == between
        assert (await asked.get("/actors/counts/_count?prefix=key%201", url))[1]["count"] == 11
        assert (await asked.get("/actors/brief", url))[1]["items"][0]["key"] == "lasts"
        assert (await asked.get("/actors/brief/_count?exact=true", url))[1]["count"] == 1


async def test_an_actors_queries(asked: Asked) -> None:
    for url in asked.urls:
        status, said = await asked.get("/actors/Account/_ask/balance/ada?currency=USD", url)
        assert (status, said["value"]) == (200, "5 USD")
        assert (await asked.get("/actors/Account/_ask/balance/nobody", url))[1]["value"] == "0 EUR"
        path, body = "/actors/count/_ask/status/key%201", {"times": 3, "loud": True}
        assert (await asked.get(path, url, method="POST", json=body))[1]["value"] == "KEY 1: 6"
        assert (await asked.get(f"{path}?times=3", url))[1]["value"] == "key 1: 6"
    for how in ("write", "delete", "send", "look+around"):
        status, said = await asked.get(f"/actors/count/_ask/misbehave/key%201?how={how}")
        assert (status, said["type"]) == (500, "urn:faust-actors:problem:read-only"), said
    assert (await asked.get("/actors/Account/_ask/steal/ada"))[0] == 500
    assert (await asked.get("/actors/Account/ada"))[1]["value"] == {"amount": 5}
    status, said = await asked.get("/actors/count/_ask/misbehave/key%201?how=reject")
    assert (status, said["detail"]) == (422, "not today")
    status, said = await asked.get("/actors/count/_ask/misbehave/key%201?how=raise")
    assert status == 500
    assert "secret" not in str(said)


BAD = [
    ("/actors/nothing/k", 404, "unknown-store"),
    ("/actors/nothing", 404, "unknown-store"),
    ("/actors/nothing/_ask/status/k", 404, "unknown-actor"),
    ("/actors/count/_ask/nothing/k", 404, "unknown-query"),
    ("/actors/anywhere/forty-two?partition=0", 400, "bad-key"),
    ("/actors/anywhere/42", 400, "no-partition"),
    ("/actors/anywhere/42?partition=3", 400, "bad-parameter"),
    ("/actors/counts/%FF", 400, "bad-key"),
    ("/actors/counts/k?encoding=json", 400, "bad-key"),
    ("/actors/counts/42?encoding=json", 400, "bad-key"),
    ("/actors/counts/@@@?encoding=base64", 400, "bad-key"),
    ("/actors/counts/" + "%5B" * 2000 + "?encoding=json", 400, "bad-key"),
    ("/actors/count/_ask/status/_w?encoding=base64", 400, "bad-key"),
    ("/actors/counts/%2525?encoding=morse", 400, "bad-parameter"),
    ("/actors/counts/a/b", 400, "bad-key"),
    ("/actors/counts/../../../etc/passwd", 400, "bad-key"),
    ("/actors/counts/..%2F..%2Fetc%2Fpasswd", 404, "no-such-key"),
    ("/actors/counts/%00", 404, "no-such-key"),
    ("/actors/..%2Fcounts/k", 404, "unknown-store"),
    ("/actors/counts?limit=0", 400, "bad-parameter"),
    ("/actors/counts?limit=1001", 400, "bad-parameter"),
    ("/actors/counts?limit=-1", 400, "bad-parameter"),
    ("/actors/counts?limit=many", 400, "bad-parameter"),
    ("/actors/counts?limit=1&limit=2", 400, "bad-parameter"),
    ("/actors/counts?limti=1", 400, "bad-parameter"),
    ("/actors/counts?cursor=%40%40", 400, "bad-parameter"),
    ("/actors/counts?prefix=a&from=b", 400, "bad-parameter"),
    ("/actors/counts/_count?exact=perhaps", 400, "bad-parameter"),
    ("/actors/counts/k?read=nonsense", 400, "bad-parameter"),
    ("/actors/counts/k?read=standby", 404, "no-such-key"),
    ("/actors/counts/_count?read=standby", 400, "bad-parameter"),
    ("/actors/count/_ask/status/k?times=often", 400, "bad-argument"),
    ("/actors/count/_ask/misbehave/k", 400, "bad-argument"),
    ("/actors/count/_ask/status/k?other=1", 400, "bad-parameter"),
]


async def test_what_cant_be_understood_is_refused_with_a_reason(asked: Asked) -> None:
    for path, status, kind in BAD:
        for url in asked.urls:
            found, said = await asked.get(path, url)
            assert (found, said["type"].rpartition(":")[2]) == (status, kind), (path, said)


async def test_bodies_that_cant_be_understood(asked: Asked) -> None:
    path, kinds = "/actors/counts/_many", {"Content-Type": "application/json"}
    for body, status in [
        (b"", 400),
        (b"{", 400),
        (b"\xff", 400),
        (b"[]", 400),
        (b"{}", 400),
        (b'{"keys": "abc"}', 400),
        (b'{"keys": ["a"], "more": 1}', 400),
        (b'{"keys": [1]}', 400),
        (b'{"keys": [null]}', 400),
        (b'{"keys": ["@@"], "encoding": "base64"}', 400),
        (b'{"keys": ["a"], "encoding": "morse"}', 400),
        (b'{"keys": ["a"], "partition": 99}', 400),
        (b'{"keys": ["a"], "read": "nonsense"}', 400),
        (json.dumps({"keys": ["a"] * 1001}).encode(), 400),
        (json.dumps({"keys": ["a" * 70_000]}).encode(), 400),
        (b'{"keys": ["' + b"a" * (2 << 20) + b'"]}', 413),
        (b'{"keys": ' + b"[" * 100_000, 400),
    ]:
        found, said = await asked.get(path, method="POST", data=io.BytesIO(body), headers=kinds)
        assert found == status, (body[:50], said)
    assert (await asked.get(path, method="POST", data='{"keys": []}'))[0] == 415
    assert (await asked.get("/actors/counts/k", method="DELETE"))[0] == 405
    assert (await asked.get("/actors/counts/k", headers={"Host": "evil.example"}))[0] == 403
    for header in ("99", "x", ""):
        headers = {"Actors-Hop": "1", "Actors-Partitions": header}
        assert (await asked.get("/actors/counts", headers=headers))[0] == 421
    assert await asked.get("/actors/counts/key%201")


async def test_any_text_is_a_key(asked: Asked) -> None:
    chance = random.Random(7)
    for _ in range(150):
        key = "".join(chr(chance.choice([chance.randrange(1, 128), chance.randrange(0x80, 0xD800)])) for _ in range(5))
        status, said = await asked.get(f"/actors/counts/{quote(key, safe='')}")
        assert (status, said["type"]) == (404, "urn:faust-actors:problem:no-such-key"), key
        raw = bytes(chance.randrange(256) for _ in range(6))
        encoded = quote(base64.urlsafe_b64encode(raw).decode())
        status, said = await asked.get(f"/actors/blobs/{encoded}")
        assert (status, base64.b64decode(said["key"])) == (404, raw)


async def test_a_question_that_was_passed_on_isnt_passed_on_again(asked: Asked) -> None:
    for key in [key for key in KEYS if key != "_count"][:10]:
        path, headers = f"/actors/counts/{quote(key, safe='')}", {"Actors-Hop": "1"}
        found = [await asked.get(path, url, headers=headers) for url in asked.urls]
        assert sorted(status for status, _ in found) == [200, 421], (key, found, asked.log())


async def test_the_description_is_valid_and_has_all_routes(asked: Asked) -> None:
    # Its import takes seconds of CPU time, which each process of a test run would pay.
    from openapi_spec_validator import validate

    _, said = await asked.get("/actors/openapi.json")
    validate(said)
    assert {path.partition("/_ask")[0] for path in said["paths"]} >= {"/actors", "/actors/{store}", "/actors/count"}
    assert "/actors/Account/_ask/steal/{key}" in said["paths"]
    with pytest.raises(Exception, match="responses"):
        validate({**said, "paths": {"/actors": {"get": {"responses": 1}}}})


async def test_the_clients_errors(asked: Asked) -> None:
    async with StateClient(asked.urls) as state:
        assert await state.get("counts", "nobody", "default") == "default"
        assert await state.get("anywhere", 42, partition=0) in (None, "key 1")
        assert await state.get("blobs", b"blob") == base64.b64encode(b"some bytes").decode()
        for store, kind in (("nothing", "unknown-store"), ("anywhere", "no-partition")):
            with pytest.raises(StateRequestError) as caught:
                await state.get(store, 1)
            assert caught.value.kind == kind
        seen = (await state.lookup("counts", "key 1")).position
        state._seen["counts", seen.partition] = (
            type(seen)(seen.partition, seen.changelog_offset + 1, 0, seen.epoch, seen.changelog_id),
            0.0,
        )
        state._timeout_s = 0.3
        with pytest.raises(StateUnavailableError, match="an earlier one"):
            await state.get("counts", "key 1")
    with pytest.raises(StateUnavailableError, match="can't be reached"):
        await asyncio.to_thread(_ask_nobody)
    assert await asyncio.to_thread(_ask_in_a_thread, asked.urls) == (2, {"key 1": 2}, "5 EUR")


def _ask_nobody() -> None:
    from datetime import timedelta

    with SyncStateClient(f"http://127.0.0.1:{free_port()}", timeout=timedelta(seconds=0.3)) as state:
        state.get("counts", "k")


def _ask_in_a_thread(urls: list[str]) -> Any:
    with SyncStateClient(urls) as state:
        return (
            state.get("counts", "key 1"),
            state.get_many("counts", ["key 1", "nobody"]),
            state.ask("Account", "balance", "ada"),
        )


async def test_large_values_come_in_several_answers_from_whoever_is_asked(asked: Asked) -> None:
    """They are on both workers. It leaves further keys in the stores."""
    keys = [b"large %d" % number for number in range(10)]
    messages = [(key, b"blob " + b"x" * 600_000) for key in keys]
    await send(asked.brokers, f"{asked.name}-in", messages, partitions=PARTITIONS)
    encoded = [base64.urlsafe_b64encode(key).decode() for key in keys]

    async def are_there() -> bool:
        return {(await asked.get(f"/actors/blobs/{quote(key)}"))[0] for key in encoded} == {200}

    await eventually(are_there, what=asked.log)
    prefix = quote(base64.urlsafe_b64encode(b"large").decode())
    for url in asked.urls:
        _, page = await asked.get(f"/actors/blobs?limit=1000&prefix={prefix}", url)
        assert 0 < len(page["items"]) < len(keys)
        assert page["next"] is not None
        _, said = await asked.many("blobs", {"keys": encoded * 100}, url=url)
        assert 0 < len(said["results"]) == said["next"] < len(keys)
        async with StateClient([url], follow_owners=False) as state:
            assert (await state.get_many("blobs", keys)).keys() == set(keys)
            rows = [base64.b64decode(key) async for key, _ in state.range("blobs", prefix=b"large")]
            assert rows == sorted(keys)


async def test_a_partition_that_stands_still_goes_on_answering(asked: Asked) -> None:
    """The last test on these workers: it leaves them with one partition less."""
    await send(asked.brokers, f"{asked.name}-in", [(b"key 5", b"count"), (b"key 5", b"fail")], partitions=PARTITIONS)
    await eventually(lambda: any("is stopped on" in worker.log() for worker in asked.workers), what=asked.log)
    for url in asked.urls:
        assert (await asked.get("/actors/counts/key%205", url))[1]["value"] == 2


async def test_an_open_port_without_a_word_is_refused(brokers: str, tmp_path: Path) -> None:
    name = unique("open")
    await make_topics(brokers, f"{name}-in", f"{name}-out", f"{name}-accounts")
    worker = WorkerProcess(
        "tests.kafka.apps.query_app",
        brokers,
        tmp_path / "open",
        APP_NAME=name,
        WEB_PORT=str(free_port()),
        WEB_BIND_TO="0.0.0.0",
    ).start(web=True)
    assert worker.wait(60) == 1
    assert "queries_unprotected" in worker.log()
    assert "owns" not in worker.log()


async def test_the_examples_of_the_page(brokers: str, tmp_path: Path) -> None:
    """Each command of the page, and that of the example, is run as it stands there, at another port."""
    port = free_port()
    await make_topics(brokers, "bank-accounts", "bank-transfers", "bank-outcomes")
    worker = WorkerProcess("examples.bank_accounts", brokers, tmp_path / "bank", WEB_PORT=str(port)).start(web=True)
    try:
        await eventually(lambda: worker.log().count(" owns ") >= 4, what=worker.log)
        money = {"ada": 500, "alan": 70, "alonzo": 10, "bob": 1}
        deposits = [(key.encode(), b'{"type":"deposit","amount":%d}' % cents) for key, cents in money.items()]
        await send(brokers, "bank-accounts", deposits)

        async def is_there() -> bool:
            count = documents.Command("curl 'localhost:6066/actors/Account/_count?exact=true'")
            return documents.shows(await documents.run(count, port), {"count": 4})

        await eventually(is_there, what=worker.log)
        for command in documents.commands_of("docs/reference/queries.md"):
            said = await documents.run(command, port)
            assert documents.shows(said, command.answer), (command, said)
        assert not documents.shows(said, {"status": 200})
        addresses = {'["http://10.0.0.1:6066", "http://10.0.0.2:6066"]': f'["http://127.0.0.1:{port}"]'}
        added = 'state.ask("Account", "can_pay", "ada", cents=300)'
        shown = documents.block("docs/reference/queries.md", "From Python")
        names = await shown.run_async({}, changes={**addresses, f"await {added}": f"answer = await {added}"})
        assert (names["answer"], names["key"], names["value"]) == (True, "alonzo", {"cents": 10})
        (command,) = documents.commands_of("examples/bank_accounts.py")
        assert documents.shows(await documents.run(command, port), {"key": "ada", "value": True})
    finally:
        assert worker.terminate() == 0, worker.log()[-3000:]
