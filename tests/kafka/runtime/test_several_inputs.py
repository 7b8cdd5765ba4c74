"""Two inputs of one actor on a real broker: nothing is lost or doubled when workers are killed."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.kafka import forked
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

KEYS = [b"key-%d" % number for number in range(10)]
PARTITIONS = 2


def records(first: int, count: int) -> list[tuple[bytes, bytes]]:
    return [(KEYS[number % len(KEYS)], b"%d" % number) for number in range(first, first + count)]


@pytest.mark.nightly
async def test_messages_of_two_inputs_are_counted_once_although_workers_are_killed(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name, sent = unique("join"), 0
    await make_topics(brokers, f"{name}-left", f"{name}-right", f"{name}-out", partitions=PARTITIONS)

    async def send_both(count: int) -> None:
        nonlocal sent
        for side in ("left", "right"):
            await send(brokers, f"{name}-{side}", records(sent, count), partitions=PARTITIONS)
        sent += count

    async def has_all() -> bool:
        return len(await read_all(brokers, f"{name}-out")) >= 2 * sent

    def worker(folder: str) -> WorkerProcess:
        made = WorkerProcess("tests.kafka.apps.join_app", brokers, tmp_path / folder, APP_NAME=name)
        workers.append(made.start())
        return made

    first = worker("w0")
    await send_both(200)
    await eventually(has_all, what=first.log)
    await send_both(200)
    first.kill()
    second = worker("w1")
    third = worker("w2")
    await send_both(200)
    await eventually(has_all, deadline_s=90, what=lambda: second.log() + third.log())
    second.kill()
    await send_both(100)
    await eventually(has_all, deadline_s=90, what=third.log)
    environment = {"APP_NAME": name, "KAFKA_URL": f"kafka://{brokers}"}
    arguments = ("-A", "tests.kafka.apps.join_app", "-D", str(tmp_path / "w2"))

    async def faust(*command: str) -> CompletedProcess[str]:
        return await asyncio.to_thread(forked.faust, *arguments, *command, environment=environment)

    done = await faust("--json", "actors")
    rows = json.loads(done.stdout)
    assert [(row["topic"], row["partition"]) for row in rows] == [
        (f"{name}-{side}", partition) for partition in range(PARTITIONS) for side in ("left", "right")
    ]
    assert [(row["lag"], row["committed_offset"] == row["end_offset"]) for row in rows] == [(0, True)] * 4
    held = json.loads((await faust("--json", "state", "get", "counts", "key-1")).stdout)
    offsets = (held["position"]["source_offset"], *held["position"]["more_offsets"])
    assert held["source_offset"] < offsets[held["input"]] <= sent
    absent = await faust("state", "get", "counts", "nobody")
    assert re.search(r"partition \d at input offset \d+, \d+, changelog", " ".join(absent.stderr.split()))
    listed = await faust("state", "list")
    assert ", ".join(map(str, offsets)) in listed.stdout
    found: dict[bytes, list[list[bytes]]] = defaultdict(list)
    for record in await read_all(brokers, f"{name}-out"):
        found[record.key].append(record.value.split(b":"))
    for key in KEYS:
        assert [int(count) for count, _, _ in found[key]] == list(range(1, 2 * sent // len(KEYS) + 1))
        for side in (b"left", b"right"):
            wanted = [value for its_key, value in records(0, sent) if its_key == key]
            assert [value for _, from_, value in found[key] if from_ == side] == wanted


@pytest.mark.nightly
async def test_the_example(brokers: str, tmp_path: Path, workers: list[WorkerProcess]) -> None:
    await make_topics(brokers, "orders", "payments", "settled", partitions=PARTITIONS)
    keys = [b"o%d" % number for number in range(40)]

    def start(folder: str) -> WorkerProcess:
        worker = WorkerProcess("examples.order_payments", brokers, tmp_path / folder)
        workers.append(worker.start())
        return worker

    async def has_settled(count: int) -> bool:
        return len(await read_all(brokers, "settled")) >= count

    first = start("w0")
    await send(brokers, "orders", [(key, b'{"cents": 100}') for key in keys[:20]], partitions=PARTITIONS)
    await send(brokers, "payments", [(key, b'{"cents": 60}') for key in keys], partitions=PARTITIONS)
    await send(brokers, "payments", [(key, b'{"cents": 40}') for key in keys[:10]], partitions=PARTITIONS)
    await eventually(lambda: has_settled(10), what=first.log)
    first.kill()
    second = start("w1")
    await send(brokers, "orders", [(key, b'{"cents": 60}') for key in keys[20:]], partitions=PARTITIONS)
    await send(brokers, "payments", [(key, b'{"cents": 50}') for key in keys[10:20]], partitions=PARTITIONS)
    await eventually(lambda: has_settled(40), deadline_s=90, what=second.log)
    found = [(record.key, json.loads(record.value)) for record in await read_all(brokers, "settled")]
    paid = {number: (100, 100) if number < 10 else (100, 110) if number < 20 else (60, 60) for number in range(40)}
    wanted = [(keys[number], {"due": due, "paid": cents}) for number, (due, cents) in paid.items()]
    assert sorted(found, key=lambda one: one[0]) == sorted(wanted, key=lambda one: one[0])
