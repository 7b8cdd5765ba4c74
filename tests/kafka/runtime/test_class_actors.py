"""Class actors on a real broker: transfers while workers are killed, and a state that changes its type."""

from __future__ import annotations

import collections
import random
from pathlib import Path

import msgspec
import orjson
import pytest

from tests.kafka.apps.bank_app import Deposit, Transfer
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

MODULE = "tests.kafka.apps.bank_app"
ACCOUNTS = [f"account-{number}" for number in range(20)]
TRANSFERS = 600


def encoded(messages: list[tuple[str, object]]) -> list[tuple[bytes, bytes]]:
    return [(key.encode(), msgspec.json.encode(message)) for key, message in messages]


def some_transfers(first: int, count: int) -> list[tuple[str, object]]:
    order = random.Random(first)
    found = []
    for number in range(first, first + count):
        sender, receiver = order.sample(ACCOUNTS, 2)
        found.append((sender, Transfer(f"t{number}", receiver, order.randint(1, 150))))
    return found


async def balances(brokers: str, name: str) -> dict[str, dict]:
    """The fold of the changelog: what a restore would give."""
    found: dict[str, dict] = {}
    for record in await read_all(brokers, f"{name}--account-changelog"):
        raw = record.value
        found[record.key.decode()] = orjson.loads(raw[4:] if raw.startswith(b"\x00v") else raw)
    return found


async def outcomes(brokers: str, name: str) -> dict[str, str]:
    """The outcome of each transfer; fails on one that has two."""
    records = await read_all(brokers, f"{name}-out")
    counted = collections.Counter(record.key for record in records)
    assert not [key for key, count in counted.items() if count > 1]
    return {record.key.decode(): orjson.loads(record.value)["outcome"] for record in records}


async def until_done(brokers: str, name: str, count: int, worker: WorkerProcess) -> dict[str, str]:
    found: dict[str, str] = {}

    async def done() -> bool:
        found.update(await outcomes(brokers, name))
        return len(found) == count

    await eventually(done, what=lambda: f"{len(found)} of {count} outcomes; " + worker.log()[-2000:])
    return found


@pytest.mark.nightly
async def test_no_money_is_lost_or_made_by_kill_9(brokers: str, tmp_path: Path, workers: list[WorkerProcess]) -> None:
    name = unique("bank")
    await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=2)
    one, two = (WorkerProcess(MODULE, brokers, tmp_path / each, APP_NAME=name) for each in ("one", "two"))
    workers += [one.start(), two.start()]
    await send(brokers, f"{name}-in", encoded([(account, Deposit(1_000)) for account in ACCOUNTS]))
    for part in range(3):
        await send(brokers, f"{name}-in", encoded(some_transfers(part * 200, 200)))
        killed = (one, two)[part % 2]
        before = len(await outcomes(brokers, name))

        async def goes_on(before: int = before) -> bool:
            return len(await outcomes(brokers, name)) > before

        await eventually(goes_on, what=killed.log)
        killed.kill()
        killed.start()
    found = await until_done(brokers, name, TRANSFERS, one)
    assert collections.Counter(found.values())["done"] > 100
    # A transaction's records are seen partition by partition, as its markers are written.
    seen: dict[str, dict] = {}

    async def all_money_is_there() -> bool:
        seen.update(await balances(brokers, name))
        return sum(balance["cents"] for balance in seen.values()) == 1_000 * len(ACCOUNTS)

    await eventually(all_money_is_there, deadline_s=20.0, what=lambda: seen)
    assert min(balance["cents"] for balance in seen.values()) >= 0


@pytest.mark.nightly
async def test_a_newer_program_reads_the_states_of_the_older_one(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name = unique("bank")
    await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=2)
    older = WorkerProcess(MODULE, brokers, tmp_path / "one", APP_NAME=name)
    newer = WorkerProcess(MODULE, brokers, tmp_path / "one", APP_NAME=name, BANK_VERSION="2")
    workers += [older.start(), newer]
    await send(brokers, f"{name}-in", encoded([(account, Deposit(1_000)) for account in ACCOUNTS]))
    await send(brokers, f"{name}-in", encoded(some_transfers(0, 50)))
    await until_done(brokers, name, 50, older)
    assert older.terminate() == 0
    newer.start()
    await send(brokers, f"{name}-in", encoded(some_transfers(50, 50)))
    await until_done(brokers, name, 100, newer)
    seen: dict[str, dict] = {}

    async def all_money_is_there() -> bool:
        seen.update(await balances(brokers, name))
        return sum(balance.get("amount", balance.get("cents", 0)) for balance in seen.values()) == 1_000 * len(ACCOUNTS)

    await eventually(all_money_is_there, deadline_s=20.0, what=lambda: seen)
    assert {tuple(sorted(balance)) for balance in seen.values()} >= {("amount", "currency")}
    assert newer.terminate() == 0
    # Back to the older program: it stops in front of what it doesn't know, and loses nothing.
    older.start()
    await send(brokers, f"{name}-in", encoded([(account, Deposit(1)) for account in ACCOUNTS]))
    await eventually(lambda: "a value of version 2, this program knows up to 1" in older.log(), what=older.log)
