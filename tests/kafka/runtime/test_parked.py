"""Parked messages on a real broker: a worker that is killed, and the command line that looks, retries and drops."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kafka import forked
from tests.kafka.helpers import ROOT, WorkerProcess, eventually, make_topics, producing, read_all, send, unique

MODULE = "tests.kafka.apps.parked_app"
COUNT = 50
SECRET = "the-secret-of-the-workers-0123456789"


@dataclass(frozen=True, slots=True)
class Shop:
    """The app, its topics made."""

    name: str
    brokers: str
    folder: Path
    workers: list[WorkerProcess]

    def worker(self, *, mended: bool = False) -> WorkerProcess:
        """Start a worker on the one data folder."""
        environment = {"APP_NAME": self.name, "APP_SECRET": SECRET, "APP_MENDED": str(int(mended))}
        worker = WorkerProcess(MODULE, self.brokers, self.folder, **environment).start()
        self.workers.append(worker)
        return worker

    async def send(self, *orders: tuple[str, dict[str, Any] | bytes]) -> None:
        records = [
            (key.encode(), order if isinstance(order, bytes) else json.dumps(order).encode()) for key, order in orders
        ]
        await send(self.brokers, f"{self.name}-in", records, partitions=1)

    async def faust(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Call `faust -A … parked …`, on another data folder than the worker's."""
        return await asyncio.to_thread(
            forked.faust, *self.command(*arguments), environment=self.environment, timeout_s=90.0
        )

    async def begin(self, *arguments: str) -> asyncio.subprocess.Process:
        """Start such a call in a process of its own, which may be spoken to."""
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "faust", *self.command(*arguments)),
            cwd=ROOT,
            env={**os.environ, **self.environment},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
        )

    def command(self, *arguments: str) -> list[str]:
        return ["-A", MODULE, "-D", str(self.folder / "cli"), *arguments]

    @property
    def environment(self) -> dict[str, str]:
        addresses = ";".join(f"kafka://{broker}" for broker in self.brokers.split(","))
        return {"APP_NAME": self.name, "APP_SECRET": SECRET, "KAFKA_URL": addresses}

    async def json(self, *arguments: str, code: int = 0) -> Any:
        """Call a command with `--json`, and give what it printed."""
        called = await self.faust("--json", "parked", *arguments)
        assert called.returncode == code, called
        return json.loads(called.stdout)

    async def done(self, key: str) -> list[tuple[str, int, str]]:
        """What the handler sent for a key: order, number, message id."""
        records = await read_all(self.brokers, f"{self.name}-out")
        values = [json.loads(record.value) for record in records if record.key == key.encode()]
        return [(value["order"], value["number"], value["id"].rpartition("-")[2]) for value in values]

    async def until_done(self, key: str, count: int) -> None:
        async def are_done() -> bool:
            return len(await self.done(key)) >= count

        await eventually(are_done, what=lambda: self.workers[-1].log()[-3000:])

    async def until_parked(self, *keys: str) -> None:
        async def are_parked() -> bool:
            return {line["key"] for line in await self.json("list")} == set(keys)

        await eventually(are_parked, what=lambda: self.workers[-1].log()[-3000:])


@pytest.fixture
async def shop(brokers: str, tmp_path: Path, workers: list[WorkerProcess]) -> Shop:
    name = unique("parked")
    await make_topics(brokers, f"{name}-in", f"{name}-out", f"{name}-plain", partitions=1)
    return Shop(name, brokers, tmp_path / "worker", workers)


def named(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, **more}


def refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Check that a command ended with 1 and one clear line."""
    assert done.returncode == 1, done
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    for part in parts:
        assert part in line


@pytest.mark.nightly
async def test_a_line_waits_through_a_kill_until_it_is_retried_in_order_exactly_once(shop: Shop) -> None:
    worker = shop.worker()
    orders = [("a", named("a0", poison=True)), ("a", named("a1")), ("a", named("a2"))]
    await shop.send(orders[0], *(("b", named(f"b{number}")) for number in range(COUNT)), orders[1])
    await shop.until_done("b", COUNT)
    worker.kill()
    worker.start()
    await shop.send(orders[2], *(("b", named(f"b{number}")) for number in range(COUNT, 2 * COUNT)))
    await shop.until_done("b", 2 * COUNT)
    assert await shop.done("a") == []
    await looked_at(shop)
    still = await shop.faust("parked", "retry", "take_order", "a")
    refused(still, "failed again", "3 messages are still parked", "HandlerFailedError: ValueError: can't take a0")
    assert [entry["attempts"] for entry in await shop.json("show", "take_order", "a")] == [2, 0, 0]
    worker.kill()
    shop.worker(mended=True)
    told = await shop.json("retry", "take_order", "a")
    ids = [f"{shop.name}-in-0-{offset}" for offset in (0, COUNT + 1, COUNT + 2)]
    assert (told["gone"], told["left"], told["error"]) == (ids, [], None)
    await shop.send(("a", named("a3")))
    await shop.until_done("a", 4)
    offset = 2 * COUNT + 5
    assert await shop.done("a") == [
        ("a0", 1, "0"),
        ("a1", 2, str(COUNT + 1)),
        ("a2", 3, str(COUNT + 2)),
        ("a3", 4, str(offset)),
    ]
    assert [order for order, _, _ in await shop.done("b")] == [f"b{number}" for number in range(2 * COUNT)]
    assert await shop.json("list") == []
    refused(await shop.faust("parked", "retry", "take_order", "a"), "nothing parked for key 'a'")


async def looked_at(shop: Shop) -> None:
    """Check what `list`, `show` and the dead-letter topic say."""
    (line,) = await shop.json("list", "--actor", "take_order")
    assert (line["actor"], line["what"], line["partition"], line["key"]) == ("take_order", "message", 0, "a")
    assert (line["waiting"], line["attempts"]) == (3, 1)
    assert line["error"] == "HandlerFailedError: ValueError: can't take a0"
    table, shown = await asyncio.gather(shop.faust("parked", "list"), shop.faust("parked", "show", "take_order", "a"))
    assert table.stdout.count("take_order") == 1
    assert "can't take a0" in table.stdout
    for text in ('"name": "a0"', '"name": "a1"', '"name": "a2"', f"{shop.name}-in-0-0"):
        assert text in shown.stdout
    (letter,) = await read_all(shop.brokers, f"{shop.name}-dead-letters")
    assert (letter.key, json.loads(letter.value)) == (b"a", named("a0", poison=True))
    assert dict(letter.headers) == {
        "fa-error": b"HandlerFailedError: ValueError: can't take a0",
        "fa-origin": f"{shop.name}-in/0/0".encode(),
        "fa-attempts": b"1",
        "fa-actor": b"take_order",
    }


async def test_drops_and_what_does_not_decode(shop: Shop) -> None:
    shop.worker()
    await shop.send(("a", b"{nothing"), *(("a", named(f"a{number}")) for number in range(1, 4)), ("b", named("b")))
    await shop.until_done("b", 1)
    first, *others = await shop.json("show", "take_order", "a")
    assert first["value"] == "{nothing"
    assert first["error"].startswith("UndecodableRecordError: ")
    assert [entry["value"] for entry in others] == [named(f"a{number}") for number in range(1, 4)]
    dropped = await shop.json("drop", "take_order", "a")
    assert (dropped["gone"], len(dropped["left"])) == ([first["id"]], 3)
    by_id = await shop.json("drop", "take_order", "a", "--id", others[1]["id"])
    assert by_id["left"] == [others[0]["id"], others[2]["id"]]
    refused(await shop.faust("parked", "drop", "take_order", "a", "--id", first["id"]), "nothing parked with id")
    assert (await shop.json("drop", "take_order", "a", "--all"))["left"] == []
    await shop.send(("a", named("a4")))
    await shop.until_done("a", 1)
    assert [order for order, _, _ in await shop.done("a")] == ["a4"]
    refused(await shop.faust("parked", "retry", "plain", "a"), "actor plain doesn't park")


@pytest.mark.nightly
async def test_a_drop_without_an_owner_takes_effect_when_there_is_one(shop: Shop) -> None:
    worker = shop.worker()
    await shop.send(("a", named("a5", poison=True)))
    await shop.until_parked("a")
    worker.kill()
    late = await shop.faust("parked", "drop", "take_order", "a", "--timeout", "1")
    refused(late, "no owner of", "takes effect when its turn comes")
    shop.worker()
    await shop.until_parked()


@pytest.mark.nightly
async def test_parked_effects_are_called_again_or_dropped(shop: Shop) -> None:
    worker = shop.worker()
    await shop.send(("a", named("a0", ship=True)), ("a", named("a1", ship=True)), ("b", named("b0", ship=True)))
    await shop.until_parked("a", "b")
    assert [(line["what"], line["key"], line["waiting"]) for line in await shop.json("list")] == [
        ("effect", "a", 2),
        ("effect", "b", 1),
    ]
    shown = await shop.json("show", "take_order", "a")
    assert [(entry["effect"], entry["args"], entry["parked"]) for entry in shown] == [
        ("ship", ["a0"], True),
        ("ship", ["a1"], False),
    ]
    again = await shop.json("retry", "take_order", "b", code=1)
    assert "nobody ships b0" in again["error"]
    assert (await shop.json("drop", "take_order", "a", "--all"))["left"] == []
    worker.kill()
    shop.worker(mended=True)
    told = await shop.json("retry", "take_order", "b")
    assert (told["left"], told["error"]) == ([], None)


@pytest.mark.nightly
async def test_a_large_record_is_parked_and_retried_and_no_producer_can_drop_it(shop: Shop) -> None:
    worker = shop.worker()
    large = named("a0", poison=True, text="x" * 900_000)
    await shop.send(("a", large), ("a", named("a1")))
    told = json.dumps({"actor": "take_order", "what": "message", "command": "drop", "id": "*"}).encode()
    async with producing(shop.brokers) as producer:
        await producer.send_and_wait(f"{shop.name}-in", told, b"a", headers=[("fa-control", told)])
    await shop.send(("b", named("b0")))
    await shop.until_done("b", 1)
    assert "a control record is skipped: it isn't signed" in worker.log()
    (line,) = await shop.json("list")
    assert (line["key"], line["waiting"], line["bytes"] > 900_000) == ("a", 2, True)
    first, second = await shop.json("show", "take_order", "a")
    assert (first["is_shown"], first["bytes"] > 900_000, "value" in first) == (False, True, False)
    assert (second["is_shown"], second["value"]) == (True, named("a1"))
    (full,) = await shop.json("show", "take_order", "a", "--full", "--limit", "1")
    assert full["value"] == large
    worker.kill()
    shop.worker(mended=True)
    assert (await shop.json("retry", "take_order", "a"))["left"] == []
    assert [order for order, _, _ in await shop.done("a")] == ["a0", "a1"]


@pytest.mark.nightly
async def test_many_keys_are_retried_or_dropped_by_one_command(shop: Shop) -> None:
    worker = shop.worker()
    keys = ["a", "b", "c", "d"]
    await shop.send(*((key, named(f"{key}0", poison=True)) for key in keys), *((key, named(f"{key}1")) for key in keys))
    await shop.send(("e", named("e0", ship=True)), ("f", named("f0")))
    await shop.until_done("f", 1)
    await shop.until_parked(*keys, "e")
    (dropped,) = await shop.json("drop", "--all", "--yes", "--error", "can't take c0")
    assert (dropped["key"], len(dropped["gone"]), dropped["left"], dropped["error"]) == ("c", 2, [], None)
    assert await shop.json("retry", "--all", "--until", "2001-01-01") == []
    assert await shop.json("drop", "--all", "--yes", "--partition", "1") == []
    asked = await shop.faust("parked", "drop", "--all")
    assert (asked.returncode, "Drop 6 messages and 1 effect of 4 keys?" in asked.stderr) == (1, True), asked
    again = await shop.json("retry", "take_order", "--all", code=1)
    assert [(one["key"], "failed again" in one["error"]) for one in again] == [
        ("a", True),
        ("b", True),
        ("d", True),
        ("e", True),
    ]
    worker.kill()
    shop.worker(mended=True)
    told = await shop.json("retry", "--all", "--what", "message")
    assert [(one["key"], len(one["gone"]), one["error"]) for one in told] == [
        ("a", 2, None),
        ("b", 2, None),
        ("d", 2, None),
    ]
    assert [order for order, _, _ in await shop.done("a")] == ["a0", "a1"]
    assert await shop.done("c") == []
    done = await shop.faust("parked", "retry", "--all")
    assert (done.returncode, done.stdout) == (0, "handled: 1 effect of 1 key\n"), done
    assert await shop.json("list") == []


@pytest.mark.nightly
async def test_what_comes_while_somebody_is_asked_is_not_dropped_with_what_was_shown(shop: Shop) -> None:
    shop.worker()
    await shop.send(("a", named("a0", poison=True)), ("b", named("b0", poison=True)))
    await shop.until_parked("a", "b")
    asking = await shop.begin("parked", "drop", "--all")
    assert asking.stderr is not None
    assert asking.stdin is not None
    async with asyncio.timeout(90):
        shown = await asking.stderr.readuntil(b"?")
    assert b"Drop 2 messages of 2 keys?" in shown
    await shop.send(("a", named("a1")))

    async def waits() -> bool:
        return [one["waiting"] for one in await shop.json("list")] == [2, 1]

    await eventually(waits)
    async with asyncio.timeout(90):
        told, _ = await asking.communicate(b"y\n")
    assert (asking.returncode, told.strip()) == (0, b"dropped: 2 messages of 2 keys")
    assert [(one["key"], one["waiting"]) for one in await shop.json("list")] == [("a", 1)]
