"""Ask and answer on a real broker: from outside, between accounts, and while workers are killed."""

from __future__ import annotations

import asyncio
import collections
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from actors import AskFailedError, AskRejectedError, AskTimeoutError
from actors._core.partitioner import partition_for
from actors._kafka.connection import Connection
from actors._kafka.requests import KafkaRequests
from actors.errors import RecordTooLargeError, UnknownTopicError
from actors.ports import ActorRequest
from tests.kafka.apps.asks_app import Balance, Break, Deposit, Fetch, Look, Ring, Spread, Withdraw, make
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

MODULE = "tests.kafka.apps.asks_app"
ACCOUNTS = [f"account-{number:02}" for number in range(20)]
PART = 100


@pytest.fixture
def name() -> str:
    return unique("asks")


@pytest.fixture
async def outside(brokers: str, name: str) -> AsyncIterator[SimpleNamespace]:
    """The app in the test's own process, which only asks."""
    made = make(name, ";".join(f"kafka://{broker}" for broker in brokers.split(",")))
    yield made
    await made.app.close_asks()


def encoded(messages: list[tuple[str, object]]) -> list[tuple[bytes, bytes]]:
    return [(key.encode(), msgspec.json.encode(message)) for key, message in messages]


def fetches(part: int) -> list[tuple[str, object]]:
    """Accounts only ask those before them, so that no two wait for each other."""
    order, found = random.Random(part), []
    for number in range(part * PART, (part + 1) * PART):
        source, receiver = sorted(order.sample(ACCOUNTS, 2))
        found.append((receiver, Fetch(f"f{number}", source, order.randint(1, 150))))
    return found


async def outcomes(brokers: str, name: str) -> dict[str, str]:
    """The outcome of each transfer; fails on one that has two."""
    records = await read_all(brokers, f"{name}-out")
    counted = collections.Counter(record.key for record in records)
    assert not [key for key, count in counted.items() if count > 1]
    return {record.key.decode(): record.value.decode() for record in records}


async def test_from_outside(brokers: str, name: str, outside: SimpleNamespace, workers: list, tmp_path: Path) -> None:
    ask, account = outside.app.ask, outside.Account
    with pytest.raises(UnknownTopicError, match=f"{name}-in"):
        await ask(account, "a", Look())
    await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=2)
    # Nobody is there yet: the question waits in the topic.
    with pytest.raises(AskTimeoutError, match="Deposit to actor Account, key 'a': no answer within 1 s"):
        await ask(account, "a", Deposit(1000), timeout=timedelta(seconds=1))
    worker = WorkerProcess(MODULE, brokers, tmp_path / "one", APP_NAME=name).start()
    workers.append(worker)
    assert await ask(account, "a", Deposit(7), timeout=timedelta(seconds=60)) == 1007
    assert await ask("Account", "a", Look()) == Balance(1007)
    assert await ask(account, "nobody", Look()) is None
    with pytest.raises(AskRejectedError, match="a has 1007"):
        await ask(account, "a", Withdraw(1008))
    with pytest.raises(AskFailedError, match="broken on purpose"):
        await ask(account, "a", Break())
    with pytest.raises(AskTimeoutError):
        await ask(account, "a", Look(wait_s=2.0), timeout=timedelta(seconds=0.5))
    # The answer to that one comes while the next is waited for.
    assert await ask(account, "a", Deposit(3)) == 1010
    assert worker.terminate() == 0, worker.log()


async def test_a_record_that_the_broker_refuses_spoils_none_after_it(brokers: str, name: str) -> None:
    await make_topics(brokers, name, partitions=1)
    connection = Connection(tuple(brokers.split(",")))
    asks = KafkaRequests(connection, group=name, topic=f"{name}-replies", replication_factor=-1)

    async def ask(value: bytes) -> None:
        question = ActorRequest(id="q", topic=name, partition=0, key=b"k", value=value, headers=[])
        with pytest.raises(TimeoutError):
            await asks.ask(question, 1.0)

    try:
        await asks._open()
        await ask(b"first")
        with pytest.raises(RecordTooLargeError, match="allow 2000000 bytes"):
            await ask(b"x" * 2_000_000)
        await ask(b"second")
    finally:
        await asks.close()
    assert [record.value for record in await read_all(brokers, name)] == [b"first", b"second"]


async def test_between_accounts_also_of_one_partition(
    brokers: str, name: str, outside: SimpleNamespace, workers: list, tmp_path: Path
) -> None:
    await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=2)
    worker = WorkerProcess(MODULE, brokers, tmp_path / "one", APP_NAME=name).start()
    workers.append(worker)
    ask, account, minute = outside.app.ask, outside.Account, timedelta(seconds=60)
    assert await ask(account, ACCOUNTS[0], Ring(ACCOUNTS[1:]), timeout=minute) == ACCOUNTS
    together = [key for key in ACCOUNTS if partition_for(key.encode(), 2) == 0]
    assert len(together) > 3
    assert await ask(account, together[0], Ring(together[1:])) == together
    a, b = together[:2]
    with pytest.raises(AskFailedError, match=f"Account '{a}' -> Account '{b}' -> Account '{a}'"):
        await ask(account, a, Ring([b, a]))
    assert worker.terminate() == 0, worker.log()


@pytest.mark.nightly
async def test_no_ask_is_lost_or_handled_twice_by_kill_9(
    brokers: str, name: str, outside: SimpleNamespace, workers: list, tmp_path: Path
) -> None:
    await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=2)
    worker = WorkerProcess(MODULE, brokers, tmp_path / "one", APP_NAME=name)
    workers.append(worker.start())
    answers: dict[str, list] = {account: [] for account in ACCOUNTS}

    async def ask(number: int) -> None:
        key = ACCOUNTS[number % len(ACCOUNTS)]
        account = outside.Account.at(key, timeout=timedelta(seconds=100))
        if number % 7 == 1:
            with pytest.raises(AskRejectedError, match=f"{key} has") as refused:
                await account.withdraw(Withdraw(1_000_000))
            answers[key].append(refused.value.type)
        elif number % 7 == 2:
            with pytest.raises(AskFailedError, match="broken on purpose") as failed:
                await account.broken(Break())
            answers[key].append(failed.value.type)
        else:
            answers[key].append(await account.deposit(Deposit(1)))

    async def a_third_is_answered() -> bool:
        return sum(map(len, answers.values())) > 200

    asks = [asyncio.create_task(ask(number)) for number in range(300)]
    await asks[0]
    asks += [asyncio.create_task(ask(number)) for number in range(300, 600)]
    await eventually(a_third_is_answered, what=worker.log)
    worker.kill()
    assert not all(task.done() for task in asks)
    asks += [asyncio.create_task(ask(number)) for number in range(600, 700)]
    worker.start()
    await asyncio.gather(*asks)
    counted = collections.Counter(str(answer) for kept in answers.values() for answer in kept)
    assert (counted["NotEnoughError"], counted["ValueError"]) == (100, 100)
    for account, kept in answers.items():
        balances = sorted(answer for answer in kept if isinstance(answer, int))
        assert balances == list(range(1, len(balances) + 1)), account
        assert await outside.Account.at(account).look(Look()) == Balance(len(balances))
    assert worker.terminate() == 0, worker.log()


@pytest.mark.nightly
@pytest.mark.parametrize("parts", [2, 4])
async def test_no_money_is_lost_or_made_by_kill_9(
    brokers: str, name: str, outside: SimpleNamespace, workers: list, tmp_path: Path, parts: int
) -> None:
    await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=2)
    one, two = (WorkerProcess(MODULE, brokers, tmp_path / each, APP_NAME=name) for each in ("one", "two"))
    workers += [one.start(), two.start()]
    await send(brokers, f"{name}-in", encoded([(account, Deposit(1_000)) for account in ACCOUNTS]))
    for part in range(parts):
        await send(brokers, f"{name}-in", encoded(fetches(part)))
        killed = (one, two)[part % 2]
        before = len(await outcomes(brokers, name))

        async def goes_on(before: int = before) -> bool:
            return len(await outcomes(brokers, name)) > before

        await eventually(goes_on, what=killed.log)
        killed.kill()
        killed.start()
    found: dict[str, str] = {}

    async def done() -> bool:
        found.update(await outcomes(brokers, name))
        return len(found) == PART * parts

    await eventually(done, deadline_s=120.0, what=lambda: f"{len(found)} outcomes; {one.log()[-3000:]}")
    balances = [await outside.app.ask(outside.Account, account, Look()) for account in ACCOUNTS]
    counted = collections.Counter(found.values())
    assert set(counted) <= {"done", "refused"}
    assert counted["done"] > 50
    assert sum(balance.withdrawals for balance in balances) == counted["done"]
    assert sum(balance.cents for balance in balances) == 1_000 * len(ACCOUNTS)
    assert "skipped after" not in one.log() + two.log()


@pytest.mark.nightly
async def test_branches_that_ask_in_another_order_after_kill_9_book_once(
    brokers: str, name: str, outside: SimpleNamespace, workers: list, tmp_path: Path
) -> None:
    await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=2)
    first, second = (
        WorkerProcess(MODULE, brokers, tmp_path / "one", APP_NAME=name, SPREAD_S=waits)
        for waits in ("0 0.3 600", "0.3 0 0")
    )
    workers += [first.start(), second]
    await send(brokers, f"{name}-in", encoded([("giver", Spread("s", "sum", [100, 1]))]))

    async def is_booked() -> bool:
        return await outside.app.ask(outside.Account, "sum", Look()) == Balance(101)

    await eventually(is_booked, what=first.log)
    first.kill()
    second.start()

    async def is_done() -> bool:
        return await outcomes(brokers, name) == {"s": "done"}

    await eventually(is_done, what=second.log)
    assert await outside.app.ask(outside.Account, "sum", Look()) == Balance(101)
