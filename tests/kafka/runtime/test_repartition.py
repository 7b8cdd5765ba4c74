"""Payments that are read by their order, not by their key, on a real broker with workers that are killed."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.kafka import forked
from tests.kafka.helpers import (
    WorkerProcess,
    add_partitions,
    delete,
    eventually,
    make_topics,
    producing,
    read_all,
    send,
    unique,
)

PARTITIONS = 2
FIRST_MS = 1_700_000_000_000


def payment(number: int) -> tuple[bytes | None, dict[str, Any]]:
    """A payment: every third has no key, every 50th no order, and every 50th from 25 on isn't a payment."""
    key = None if number % 3 == 0 else b"customer-%d" % (number % 5)
    if number % 50 == 25:
        return key, {"number": number}
    return key, {"number": number, "order": None if number % 50 == 0 else f"order-{number % 7}"}


async def has_each_payment_once(brokers: str, name: str, sent: int) -> None:
    """Compare what was counted of each order, with timestamps and headers, with what was sent."""
    found: dict[str, list[list[int]]] = defaultdict(list)
    for record in await read_all(brokers, f"{name}-out"):
        count, number = json.loads(record.value)
        found[record.key.decode()].append([count, number])
        assert record.timestamp == FIRST_MS + number
        assert list(record.headers) == [("number", b"%d" % number)]
    for order in {f"order-{number}" for number in range(7)}:
        wanted = [number for number in range(sent) if payment(number)[1].get("order") == order]
        assert [count for count, _ in found[order]] == list(range(1, len(wanted) + 1))
        assert sorted(number for _, number in found[order]) == wanted


async def has_dead_letters(brokers: str, name: str) -> None:
    """Compare the dead letters with the payments that have no order."""
    letters = {dict(record.headers)["fa-origin"]: record for record in await read_all(brokers, f"{name}-dead-letters")}
    sources = await read_all(brokers, f"{name}-payments")
    refused = {
        b"%s/%d/%d" % (record.topic.encode(), record.partition, record.offset): record.value
        for record in sources
        if json.loads(record.value)["number"] % 25 == 0
    }
    assert {origin: letter.value for origin, letter in letters.items()} == refused


async def test_a_payment_hours_ahead_of_the_clock_is_forwarded_with_its_time(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    """A topic that is made with the brokers' defaults takes an hour, and refuses the record in the end."""
    name, ahead_ms = unique("ahead"), 20 * 3_600_000
    any_time = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    await make_topics(brokers, f"{name}-payments", f"{name}-out", partitions=PARTITIONS, config=any_time)
    worker = WorkerProcess("tests.kafka.apps.rekey_app", brokers, tmp_path / "data", APP_NAME=name)
    workers.append(worker.start())
    now_ms = time.time_ns() // 1_000_000
    async with producing(brokers) as producer:
        for number, timestamp_ms in enumerate((now_ms, now_ms + ahead_ms)):
            value = json.dumps({"number": number, "order": "o"}).encode()
            await producer.send(f"{name}-payments", value, b"c", timestamp_ms=timestamp_ms, headers=[("number", b"1")])

    async def has_both() -> bool:
        return len(await read_all(brokers, f"{name}-out")) == 2

    await eventually(has_both, what=worker.log)
    times = sorted(record.timestamp for record in await read_all(brokers, f"{name}-out"))
    assert times == [now_ms, now_ms + ahead_ms]


@pytest.mark.parametrize("is_killed", [False, pytest.param(True, marks=pytest.mark.nightly)])
async def test_payments_are_counted_once_by_their_order_although_workers_are_killed(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess], is_killed: bool
) -> None:
    name, sent = unique("rekey"), 0
    # The records are years old by their timestamps.
    kept = {"retention.ms": "-1"}
    await make_topics(brokers, f"{name}-payments", f"{name}-out", partitions=PARTITIONS, config=kept)

    async def pay(count: int) -> None:
        nonlocal sent
        async with producing(brokers) as producer:
            for number in range(sent, sent + count):
                key, value = payment(number)
                await producer.send(
                    f"{name}-payments",
                    json.dumps(value).encode(),
                    key,
                    partition=number % PARTITIONS if key is None else None,
                    timestamp_ms=FIRST_MS + number,
                    headers=[("number", b"%d" % number)],
                )
        sent += count

    async def has_all() -> bool:
        wanted = sum(payment(number)[1].get("order") is not None for number in range(sent))
        return len(await read_all(brokers, f"{name}-out")) >= wanted

    def worker(folder: str) -> WorkerProcess:
        made = WorkerProcess("tests.kafka.apps.rekey_app", brokers, tmp_path / folder, APP_NAME=name)
        workers.append(made.start())
        return made

    last = worker("w0")
    await pay(200)
    await eventually(has_all, what=last.log)
    for number in range(1, 3) if is_killed else ():
        await pay(300)
        last.kill()
        last = worker(f"w{number}")
        await pay(200)
        await eventually(has_all, deadline_s=90, what=last.log)

    await has_each_payment_once(brokers, name, sent)
    await has_dead_letters(brokers, name)

    environment = {"APP_NAME": name, "KAFKA_URL": f"kafka://{brokers}"}
    arguments = ("-A", "tests.kafka.apps.rekey_app", "-D", str(last.folder), "--json", "actors")

    async def is_at_its_end() -> bool:
        done = await asyncio.to_thread(forked.faust, *arguments, environment=environment)
        rows = {(row["actor"], row["topic"], row["partition"]): row["lag"] for row in json.loads(done.stdout)}
        wanted = [(f"{name}-payments-repartition", f"{name}-payments")]
        wanted.append(("add_up", f"{name}--add_up-{name}-payments-repartition"))
        assert sorted(rows) == sorted((*one, partition) for one in wanted for partition in range(PARTITIONS))
        return set(rows.values()) == {0}

    await eventually(is_at_its_end, what=last.log)

    async def is_purged() -> bool:
        return not await read_all(brokers, f"{name}--add_up-{name}-payments-repartition")

    await eventually(is_purged, what=last.log)


COUNTS = {"payments": 2, "orders": 4, "customers": 3}


def key_of(topic: str, number: int) -> str:
    """The key of the record with this number: of a payment it is neither its order's nor its customer's."""
    keys = {"payments": f"payment-{number}", "orders": f"order-{number % 11}", "customers": f"customer-{number % 7}"}
    return keys[topic]


def value_of(topic: str, number: int) -> bytes:
    more = {"order": key_of("orders", number), "customer": key_of("customers", number)} if topic == "payments" else {}
    return json.dumps({"number": number, **more}).encode()


async def has_each_key_once(brokers: str, name: str, sent: int) -> None:
    """Compare what was counted of each order and each customer with what was sent."""
    found: dict[str, list[list[int]]] = defaultdict(list)
    for record in await read_all(brokers, f"{name}-out"):
        found[record.key.decode()].append(json.loads(record.value))
    assert len(found) == 11 + 7
    for key, seen in found.items():
        topic = "orders" if key.startswith("order") else "customers"
        wanted = [number for number in range(sent) if key_of(topic, number) == key]
        # One state for what comes of both inputs: a key is in the same partition of both.
        assert [count for count, _, _ in seen] == list(range(1, 2 * len(wanted) + 1))
        assert [number for _, is_payment, number in seen if not is_payment] == wanted
        assert sorted(number for _, is_payment, number in seen if is_payment) == wanted


@pytest.mark.nightly
async def test_a_topic_is_read_by_two_keys_beside_inputs_with_other_numbers_of_partitions(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name, sent = unique("keys"), 0
    for topic, partitions in COUNTS.items():
        await make_topics(brokers, f"{name}-{topic}", partitions=partitions)
    await make_topics(brokers, f"{name}-out", partitions=1)

    async def send_all(count: int) -> None:
        """Send as many payments, orders and customers."""
        nonlocal sent
        for topic, partitions in COUNTS.items():
            numbers = range(sent, sent + count)
            records = [(key_of(topic, number).encode(), value_of(topic, number)) for number in numbers]
            await send(brokers, f"{name}-{topic}", records, partitions=partitions)
        sent += count

    async def has_all() -> bool:
        return len(await read_all(brokers, f"{name}-out")) >= 4 * sent

    def worker(folder: str) -> WorkerProcess:
        made = WorkerProcess("tests.kafka.apps.two_keys_app", brokers, tmp_path / folder, APP_NAME=name)
        workers.append(made.start())
        return made

    first = worker("w0")
    await send_all(100)
    await eventually(has_all, what=first.log)
    await send_all(200)
    first.kill()
    second, third = worker("w1"), worker("w2")
    await send_all(100)
    await eventually(has_all, deadline_s=90, what=lambda: second.log() + third.log())
    second.kill()
    await send_all(100)
    await eventually(has_all, deadline_s=90, what=third.log)

    await has_each_key_once(brokers, name, sent)
    async with producing(brokers) as producer:
        for actor, partitions in (("join_orders", 4), ("join_customers", 3)):
            topic = f"{name}--{actor}-{name}-payments-repartition"
            assert len(await producer.partitions_for(topic)) == partitions


@pytest.mark.nightly
async def test_more_partitions_are_forwarded_too_and_a_deleted_topic_of_new_keys_is_told(
    brokers: str, tmp_path: Path
) -> None:
    name = unique("rekey")
    await make_topics(brokers, f"{name}-payments", f"{name}-out", partitions=1)

    def worker(**environment: str) -> WorkerProcess:
        return WorkerProcess("tests.kafka.apps.rekey_app", brokers, tmp_path, APP_NAME=name, **environment).start()

    async def pay(number: int, partition: int) -> None:
        async with producing(brokers) as producer:
            value = json.dumps({"number": number, "order": "o"}).encode()
            await producer.send_and_wait(f"{name}-payments", value, partition=partition)

    async def counted() -> list[list[int]]:
        return [json.loads(record.value) for record in await read_all(brokers, f"{name}-out")]

    async def is_counted(*wanted: list[int]) -> bool:
        return await counted() == list(wanted)

    first = worker()
    await eventually(lambda: first.log().count("owns") == 2, what=first.log)
    await pay(1, 0)
    await eventually(lambda: is_counted([1, 1]), what=first.log)
    await add_partitions(brokers, f"{name}-payments", total=2)
    await pay(2, 1)
    await eventually(lambda: is_counted([1, 1], [2, 2]), what=first.log)
    assert first.terminate() == 0

    repartition = f"{name}--add_up-{name}-payments-repartition"
    await delete(brokers, repartition)
    second = worker()
    await eventually(lambda: "was re-created" in second.log() and repartition in second.log(), what=second.log)
    await pay(3, 1)
    assert second.terminate() == 0
    assert await counted() == [[1, 1], [2, 2]]
    third = worker(MISSING_OFFSET="earliest")
    await eventually(lambda: is_counted([1, 1], [2, 2], [3, 3]), what=third.log)
    assert third.terminate() == 0


@pytest.mark.nightly
async def test_what_is_parked_holds_the_number_of_partitions_and_can_be_given_up_as_the_errors_say(
    brokers: str, tmp_path: Path
) -> None:
    name = unique("rekey")
    topic, changelog = f"{name}-payments", f"{name}--{name}-payments-repartition-parked-changelog"
    await make_topics(brokers, topic, f"{name}-out", partitions=PARTITIONS)
    environment = {"APP_NAME": name, "PARKS": "1"}
    worker = WorkerProcess("tests.kafka.apps.rekey_app", brokers, tmp_path / "data", **environment).start()

    async def counted() -> list[list[int]]:
        return sorted(json.loads(record.value) for record in await read_all(brokers, f"{name}-out"))

    await send(brokers, topic, [(b"a", b'{"number": 1}'), (b"b", b'{"number": 2, "order": "x"}')])

    async def is_counted(*wanted: list[int]) -> bool:
        return await counted() == list(wanted)

    await eventually(lambda: is_counted([1, 2]), what=worker.log)
    await add_partitions(brokers, topic, total=PARTITIONS + 1)
    lies = f"What actor {topic}-repartition has parked lies by the former partitions in topic {changelog}"
    await eventually(
        lambda: f"was given more partitions than {PARTITIONS}, it has 3. " in worker.log(), what=worker.log
    )
    assert lies in worker.log()
    assert worker.terminate() == 0
    worker.start()
    assert await asyncio.to_thread(worker.wait) == 1
    assert f"has 3 partitions, and had {PARTITIONS} before. {lies}" in worker.log()
    listed = await asyncio.to_thread(
        forked.faust,
        *("-A", "tests.kafka.apps.rekey_app", "--json", "parked", "list"),
        environment={**environment, "KAFKA_URL": f"kafka://{brokers}"},
    )
    assert (listed.returncode, json.loads(listed.stdout)[0]["key"]) == (0, "a"), listed
    await delete(brokers, changelog)
    worker.start(LOST_CHANGELOG="rebuild")
    async with producing(brokers) as producer:
        value = b'{"number": 3, "order": "x"}'
        await producer.send_and_wait(topic, value, b"c", partition=PARTITIONS)
    await eventually(lambda: is_counted([1, 2], [2, 3]), what=worker.log)
    assert worker.terminate() == 0
