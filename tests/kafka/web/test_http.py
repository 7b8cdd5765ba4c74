"""Messages by HTTP and streams of changes, with real workers that are killed."""

from __future__ import annotations

import asyncio
import functools
import io
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from schemathesis import openapi

from dev.kafka import free_port
from tests import documents
from tests.generated import attack
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, unique

PARTITIONS, KEYS = 4, [f"key {number}" for number in range(6)]
WRITE, READ = "writer-0123456789-abcd", "reader-0123456789-abcd"
PROBLEM = "urn:faust-actors:problem:"


@dataclass
class Farm:
    """Workers of the app, and a client of any of them."""

    brokers: str
    name: str
    folder: Path
    session: aiohttp.ClientSession
    urls: list[str] = field(default_factory=list)
    workers: list[WorkerProcess] = field(default_factory=list)

    def start(self) -> WorkerProcess:
        """Start one more."""
        port = free_port()
        worker = WorkerProcess(
            "tests.kafka.apps.http_app",
            self.brokers,
            self.folder / f"worker-{len(self.workers)}",
            APP_NAME=self.name,
            WEB_PORT=str(port),
        ).start(web=True)
        self.workers.append(worker)
        self.urls.append(f"http://127.0.0.1:{port}")
        return worker

    def log(self) -> str:
        """The ends of all logs."""
        return "\n".join(worker.log()[-3000:] for worker in self.workers)

    async def own_all(self, least: int) -> None:
        """Wait until all workers together took so many partitions over."""
        await eventually(lambda: sum(w.log().count(" owns ") for w in self.workers) >= least, what=self.log)

    async def send(self, method: str, path: str, *, url: str, token: str = WRITE, **options: Any) -> tuple[int, Any]:
        """Send a request; give status and content."""
        headers = {"Authorization": f"Bearer {token}", **options.pop("headers", {})}
        async with self.session.request(method, url + path, headers=headers, **options) as reply:
            content = await reply.json(content_type=None)
        if reply.status >= 400:
            assert reply.content_type == "application/problem+json", content
        return reply.status, content

    async def surely(self, call: Callable[[str], Awaitable[tuple[int, Any]]]) -> tuple[int, Any]:
        """Send a request to any worker, until one answers."""
        async with asyncio.timeout(60):
            while True:
                try:
                    status, content = await call(random.choice(self.urls))
                except (aiohttp.ClientError, TimeoutError):
                    status, content = 0, None
                if status not in (0, 503):
                    return status, content
                await asyncio.sleep(0.05)

    async def post(self, key: str, number: int, *, wait_s: int = 0) -> tuple[int, Any]:
        """Have a number counted, whatever happens to workers."""
        headers = {"Idempotency-Key": f"n{number}"} | ({"Prefer": f"wait={wait_s}"} if wait_s else {})
        body = {"number": number}
        path = f"/actors/Counter/{key.replace(' ', '%20')}/add"
        return await self.surely(lambda url: self.send("POST", path, url=url, json=body, headers=headers))

    async def numbers(self, key: str) -> list[int]:
        """Give what a counter has."""
        path = f"/actors/Counter/{key.replace(' ', '%20')}"
        status, content = await self.surely(lambda url: self.send("GET", path, url=url, token=READ))
        return content["value"]["all"] if status == 200 else []


@pytest.fixture
async def farm(brokers: str, tmp_path: Path) -> AsyncIterator[Farm]:
    name = unique("http")
    await make_topics(brokers, f"{name}-in", partitions=PARTITIONS)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield Farm(brokers, name, tmp_path, session)


async def read_stream(farm: Farm, path: str, seen: Callable[[str, Any], None], *, until: asyncio.Event) -> None:
    """Follow a stream at any worker, and go on at another one with the last id."""
    last_id = ""
    while not until.is_set():
        headers = {"Authorization": f"Bearer {READ}"} | ({"Last-Event-ID": last_id} if last_id else {})
        try:
            url = random.choice(farm.urls) + path
            async with farm.session.get(url, headers=headers, timeout=aiohttp.ClientTimeout(total=None)) as reply:
                if reply.status == 200:
                    fields: dict[str, str] = {}
                    async for line in reply.content:
                        name, _, value = line.decode().rstrip("\n").partition(": ")
                        fields[name] = value
                        if name == "":
                            last_id = fields.get("id", last_id)
                            if "event" in fields:
                                seen(fields["event"], json.loads(fields["data"]))
                            fields = {}
        except (aiohttp.ClientError, TimeoutError):
            pass
        await asyncio.sleep(0.05)


class Seen:
    """What a client sees of a stream."""

    def __init__(self, farm: Farm, path: str) -> None:
        self.kinds: set[str] = set()
        self.changes: dict[str, list[list[int]]] = {}
        self.ready, self._done = asyncio.Event(), asyncio.Event()
        self._reading = asyncio.create_task(read_stream(farm, path, self.see, until=self._done))

    def see(self, kind: str, change: Any) -> None:
        """Take an event."""
        self.kinds.add(kind)
        self.ready.set()
        if kind == "change":
            self.changes.setdefault(change["key"], []).append(change["value"]["all"])

    async def close(self) -> None:
        """Hang up."""
        self._done.set()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


@pytest.mark.parametrize(
    "kills", [pytest.param((), id="none"), pytest.param((40, 90), marks=pytest.mark.nightly, id="two")]
)
async def test_each_message_counts_once_and_each_change_is_seen_while_workers_are_killed(
    farm: Farm, kills: tuple[int, ...]
) -> None:
    farm.start()
    farm.start()
    await farm.own_all(PARTITIONS)
    store, key_0 = Seen(farm, "/stores/Counter/events"), Seen(farm, "/stores/Counter/key%200/events")
    async with asyncio.timeout(60):
        await asyncio.gather(store.ready.wait(), key_0.ready.wait())
    count, numbers = 150, iter(range(150))
    answers: dict[int, Any] = {}

    async def work() -> None:
        for number in numbers:
            key, wait_s = KEYS[number % len(KEYS)], 10 * (number % 2)
            status, content = await farm.post(key, number, wait_s=wait_s)
            assert status in (200, 202), content
            answers[number] = content
            if number % 5 == 0:
                again = await farm.post(key, number, wait_s=10)
                if content["state"] == "answered" and again[1]["state"] == "answered":
                    assert again[1]["value"] == content["value"]

    async def kill() -> None:
        for at in kills:
            await eventually(lambda at=at: len(answers) >= at, what=farm.log)
            worker, url = farm.workers[-1], farm.urls[-1]
            worker.kill()
            farm.urls.remove(url)
            farm.start()
            await farm.own_all(1)

    await asyncio.gather(kill(), *(work() for _ in range(8)))
    for number in range(0, count, 7):
        status, content = await farm.post(KEYS[number % len(KEYS)], number, wait_s=20)
        assert status == 200, content
        assert content["value"] >= 1
    for key in KEYS:
        held = await farm.numbers(key)
        assert sorted(held) == [n for n in range(count) if KEYS[n % len(KEYS)] == key]

    async def seen_all() -> bool:
        return all([store.changes.get(key, [[]])[-1] == await farm.numbers(key) for key in KEYS])

    await eventually(seen_all, what=lambda: f"{store.kinds} {farm.log()}")
    lengths = [[len(numbers) for numbers in changes] for changes in store.changes.values()]
    assert lengths == [sorted(set(counts)) for counts in lengths]
    await eventually(lambda: key_0.changes == {KEYS[0]: store.changes[KEYS[0]]}, what=farm.log)
    assert store.kinds | key_0.kinds <= {"position", "change", "closed", "cut"}
    await store.close()
    await key_0.close()
    assert farm.workers[-1].terminate() == 0


async def test_what_a_message_came_to_is_told_by_any_worker(farm: Farm) -> None:
    workers = [farm.start(), farm.start()]
    await farm.own_all(PARTITIONS)
    headers = {"Idempotency-Key": "one"}

    async def ask(path: str, url: str) -> tuple[int, Any]:
        return await farm.send("GET", path, url=url, token=READ)

    for number, final in ((1, 200), (-1, 409)):
        path = f"/actors/Counter/{number}/add"
        body = {"number": number}
        status, content = await farm.surely(
            lambda url, path=path, body=body: farm.send("POST", path, url=url, json=body, headers=headers)
        )
        assert (status, content["state"]) == (202, "accepted")

        for url in farm.urls:

            async def is_told(url: str = url, path: str = content["status"], final: int = final) -> bool:
                status, content = await farm.send("GET", path, url=url, token=READ)
                assert status in (202, 503, final), content
                if status == 200:
                    assert content["value"] == 1
                return status == final

            await eventually(is_told, what=farm.log)
        unknown = content["status"].replace(content["status"].split("/")[5], "0" * 32)

        async def is_gone(path: str = unknown) -> bool:
            return (await farm.surely(functools.partial(ask, path)))[0] == 410

        await eventually(is_gone, what=farm.log)
    assert [worker.terminate() for worker in workers] == [0, 0]


async def test_hostile_requests_are_refused_and_harm_nothing(farm: Farm) -> None:
    worker = farm.start()
    await farm.own_all(PARTITIONS)
    url, path = farm.urls[0], "/actors/Counter/a/add"
    refused: list[tuple[int, str, dict[str, Any]]] = [
        (403, path, {"json": {"number": 1}, "token": READ}),
        (401, path, {"json": {"number": 1}, "token": "wrong-0123456789-abcd"}),
        (400, path, {"json": {"number": "1"}}),
        (400, path, {"data": b"[" * 500_000, "headers": {"Content-Type": "application/json"}}),
        (413, path, {"data": io.BytesIO(b"1" * 1_100_000), "headers": {"Content-Type": "application/json"}}),
        (415, path, {"data": b"1"}),
        (404, "/actors/Counter/a/subtract", {"json": {}}),
        (404, "/actors/nobody/a/add", {"json": {}}),
        (405, "/actors/nobody/a/b/c/d", {"json": {}}),
        (431, path, {"json": {"number": 1}, "headers": {f"X-{n}": "x" * 4_000 for n in range(5)}}),
        (400, path, {"json": {"number": 1}, "headers": {"Idempotency-Key": "k" * 300}}),
        (400, "/actors/Counter/a/add?wait=1", {"json": {"number": 1}}),
    ]
    for status, target, options in refused:
        found, content = await farm.send("POST", target, url=url, **options)
        assert found == status, content
    for target in ("/stores/nothing/events", "/stores/Counter/a/b/events", "/stores/Counter-answers/events"):
        assert (await farm.send("GET", target, url=url, token=READ))[0] == 404
    for position in ("x", "0:1,0:2", "99:1", "0:" + "9" * 30):
        options = {"headers": {"Last-Event-ID": position}}
        assert (await farm.send("GET", "/stores/Counter/a/events", url=url, token=READ, **options))[0] == 400
    host, port = url.removeprefix("http://").split(":")
    head = f"Host: {host}\r\nAuthorization: Bearer {WRITE}\r\nContent-Type: application/json\r\n"
    for target in (
        "/actors/Counter/%ff%fe/add",
        "/actors/%00/%0d%0a/add",
        "/actors/../../add",
    ):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST {target} HTTP/1.1\r\n{head}Content-Length: 12\r\n\r\n".encode() + b'{"number":1}')
        line = await reader.readline()
        assert 400 <= int(line.split()[1]) < 500, (target, line)
        writer.close()
    # A client that goes away: in the middle of its body nothing is sent, and later its message is counted once.
    for body, is_whole in ((b'{"numb', False), (b'{"number":7}', True)):
        _, writer = await asyncio.open_connection(host, int(port))
        more = "Idempotency-Key: gone\r\nPrefer: wait=20\r\n"
        writer.write(f"POST {path} HTTP/1.1\r\n{head}{more}Content-Length: 12\r\n\r\n".encode() + body)
        await writer.drain()
        if is_whole:
            await asyncio.sleep(0.5)
        writer.close()
    for _ in range(2):
        status, content = await farm.send(
            "POST", path, url=url, json={"number": 7}, headers={"Idempotency-Key": "gone", "Prefer": "wait=20"}
        )
        assert (status, content["value"]) == (200, 1)
    assert await farm.numbers("a") == [7]
    assert worker.terminate() == 0


@pytest.mark.nightly
def test_a_workers_answers_are_as_its_document_says(brokers: str, tmp_path: Path) -> None:
    """Outside of an event loop, which Hypothesis' threads don't bear."""
    name, port = unique("http"), free_port()
    asyncio.run(make_topics(brokers, f"{name}-in", partitions=PARTITIONS))
    worker = WorkerProcess(
        "tests.kafka.apps.http_app", brokers, tmp_path / "worker", APP_NAME=name, WEB_PORT=str(port)
    ).start(web=True)
    asyncio.run(eventually(lambda: worker.log().count(" owns ") >= PARTITIONS, what=worker.log))
    headers = {"Authorization": f"Bearer {WRITE}"}
    schema = openapi.from_url(f"http://127.0.0.1:{port}/actors/openapi.json", headers=headers)
    assert attack(schema, "/Counter/(.key./add|_sent/)", headers) == 2
    assert worker.terminate() == 0


async def test_the_commands_of_the_page(brokers: str, tmp_path: Path) -> None:
    await make_topics(brokers, "http-orders", partitions=1)
    port, tokens = free_port(), {"WRITE_TOKENS": WRITE, "QUERY_TOKENS": READ}
    worker = WorkerProcess(
        "examples.http_orders", brokers, tmp_path / "worker", FAUST_ACTORS_WEB_PORT=str(port), **tokens
    ).start(web=True)
    await eventually(lambda: " owns " in worker.log(), what=worker.log)
    for command in documents.commands_of("docs/how-to/http-commands.md"):
        environment = {"WRITE_TOKEN": WRITE, "QUERY_TOKEN": READ}

        async def is_shown(command: documents.Command = command, environment: Any = environment) -> bool:
            answer = await documents.run(command, port, environment=environment)
            # What waits is answered soon.
            is_early = answer.get("state") == "accepted" and "_sent" in command.text
            assert is_early or documents.shows(answer, command.answer), (command, answer)
            return not is_early

        await eventually(is_shown, what=worker.log)
    assert worker.terminate() == 0
