"""Expiry hooks and idempotent consumers on a real broker, with workers that are killed in the middle."""

from __future__ import annotations

import asyncio
import collections
from pathlib import Path

import orjson
import pytest

from actors._core.partitioner import partition_for
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, read_all, send, unique

MODULE = "tests.kafka.apps.visits_app"
VISITORS = 400
TOPICS = ("in", "out", "payments", "booked")


@pytest.mark.nightly
async def test_each_visit_is_given_out_once_whoever_is_killed(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name = unique("visits")
    await make_topics(brokers, *(f"{name}-{part}" for part in TOPICS))
    one, two = (WorkerProcess(MODULE, brokers, tmp_path / each, APP_NAME=name) for each in ("one", "two"))
    workers += [one.start(), two.start()]
    # A rebalance in the middle of a visit would be a pause that ends it.
    await eventually(lambda: "owns" in one.log() and "owns" in two.log(), what=lambda: one.log() + two.log())
    pages = ("home", "shoes", "hats")
    await send(
        brokers, f"{name}-in", [(b"v%d" % number, page.encode()) for page in pages for number in range(VISITORS)]
    )

    async def given() -> collections.Counter[tuple[bytes, tuple[str, ...]]]:
        records = await read_all(brokers, f"{name}-out")
        return collections.Counter((record.key, tuple(orjson.loads(record.value))) for record in records)

    async def some() -> bool:
        return bool(await given())

    await eventually(some, what=one.log)
    one.kill()
    one.start()
    wanted = collections.Counter({(b"v%d" % number, pages): 1 for number in range(VISITORS)})

    async def all_given() -> bool:
        return (await given()) >= wanted

    await eventually(all_given, what=lambda: one.log()[-2000:] + two.log()[-2000:])
    two.kill()
    two.start()

    async def all_gone() -> bool:
        last = {record.key: record.value for record in await read_all(brokers, f"{name}--Visitor-changelog")}
        return len(last) == VISITORS and not any(last.values())

    await eventually(all_gone, what=lambda: one.log()[-2000:] + two.log()[-2000:])
    assert await given() == wanted


@pytest.mark.nightly
async def test_a_payment_that_comes_twice_is_booked_once_whoever_is_killed(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name = unique("visits")
    await make_topics(brokers, *(f"{name}-{part}" for part in TOPICS))
    worker = WorkerProcess(MODULE, brokers, tmp_path / "one", APP_NAME=name)
    workers.append(worker.start())
    amounts = range(1_000)

    async def booked() -> list[int]:
        return [int(record.value) for record in await read_all(brokers, f"{name}-booked")]

    async with producing(brokers) as producer:

        async def pay() -> None:
            acks = [
                await producer.send(
                    f"{name}-payments",
                    b"%d" % amount,
                    key=b"k%d" % (amount % 7),
                    headers=[("payment-id", b"%d" % amount)],
                )
                for amount in amounts
            ]
            await asyncio.gather(*acks)

        await pay()

        async def some() -> bool:
            return bool(await booked())

        await eventually(some, what=worker.log)
        worker.kill()
        await pay()
        worker.start()

        async def all_booked() -> bool:
            return len(await booked()) >= len(amounts)

        await eventually(all_booked, what=worker.log)
        for key in {partition_for(key, 2): key for key in (b"k%d" % number for number in range(7))}.values():
            await producer.send_and_wait(f"{name}-payments", b"-1", key=key, headers=[("payment-id", b"last")])

        async def last() -> bool:
            return (await booked()).count(-1) == 2

        await eventually(last, what=worker.log)
    assert worker.terminate() == 0
    assert sorted(await booked()) == [-1, -1, *amounts]
