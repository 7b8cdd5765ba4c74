"""The examples of windows on a real broker, with a worker that is killed in their midst."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from actors._core.partitioner import partition_for
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, read_all

MINUTE_MS = 60_000
Record = tuple[bytes, bytes, int]


def begin_ms() -> int:
    """Give a time some hours ago, where a minute begins: what is older than days may be deleted by the broker."""
    return int(time.time() - 4 * 3600) * 1000 // MINUTE_MS * MINUTE_MS


async def put(brokers: str, topic: str, records: Iterable[Record]) -> None:
    """Send (key, value, timestamp) records to the one partition of a topic."""
    async with producing(brokers) as producer:
        for key, value, at_ms in records:
            await producer.send_and_wait(topic, value, key, partition=0, timestamp_ms=at_ms)


async def values(brokers: str, topic: str) -> list[tuple[bytes, Any]]:
    return [(record.key, json.loads(record.value)) for record in await read_all(brokers, topic)]


class Example:
    """An example whose worker is killed and started again."""

    def __init__(self, brokers: str, folder: Path, workers: list[WorkerProcess], name: str) -> None:
        self._brokers = brokers
        self._worker = WorkerProcess(f"examples.{name}", brokers, folder / name)
        workers.append(self._worker.start())

    async def has_sent(self, topic: str, wanted: list[Any], *, is_ordered: bool = True) -> None:
        """Wait until a topic has so many records, and see that they are these."""

        async def has_all() -> bool:
            return len(await values(self._brokers, topic)) >= len(wanted)

        await eventually(has_all, what=self._worker.log)
        found = await values(self._brokers, topic)
        assert found == wanted if is_ordered else sorted(map(repr, found)) == sorted(map(repr, wanted))

    def restart(self) -> None:
        self._worker.kill()
        self._worker.start()


@pytest.mark.nightly
async def test_sales_per_minute(brokers: str, tmp_path: Path, workers: list[WorkerProcess]) -> None:
    await make_topics(brokers, "sales", "late-sales", "sales-per-minute", partitions=1)
    first_ms = begin_ms()
    example = Example(brokers, tmp_path, workers, "sales_per_minute")

    def sale(shop: bytes, cents: int, at_s: int) -> Record:
        value = {"cents": cents, "at_ms": first_ms + at_s * 1000}
        return shop, json.dumps(value).encode(), int(time.time() * 1000)

    await put(brokers, "sales", [sale(b"berlin", 100, 5), sale(b"rome", 7, 30), sale(b"berlin", 20, 61)])
    # Out of order, and in time: half a minute after its end a minute is closed.
    await put(brokers, "sales", [sale(b"berlin", 3, 50), sale(b"rome", 1, 89)])
    example.restart()
    await put(brokers, "sales", [sale(b"rome", 0, 90)])
    wanted = [
        (b"berlin", {"minute_ms": first_ms, "cents": 103}),
        (b"rome", {"minute_ms": first_ms, "cents": 7}),
    ]
    await example.has_sent("sales-per-minute", wanted)
    late = sale(b"berlin", 50, 10)
    await put(brokers, "sales", [late, sale(b"rome", 0, 200)])
    example.restart()
    second_ms = first_ms + MINUTE_MS
    wanted += [
        (b"berlin", {"minute_ms": second_ms, "cents": 20}),
        (b"rome", {"minute_ms": second_ms, "cents": 1}),
    ]
    await example.has_sent("sales-per-minute", wanted)
    await example.has_sent("late-sales", [(b"berlin", json.loads(late[1]))])


async def test_click_sessions(brokers: str, tmp_path: Path, workers: list[WorkerProcess]) -> None:
    await make_topics(brokers, "clicks", "click-visits", partitions=1)
    first_ms = begin_ms()
    example = Example(brokers, tmp_path, workers, "click_sessions")

    def click(visitor: bytes, page: bytes, minute: int) -> Record:
        return visitor, page, first_ms + minute * MINUTE_MS

    await put(brokers, "clicks", [click(b"ada", b"/", 0), click(b"bob", b"/a", 10), click(b"ada", b"/b", 10)])
    await put(brokers, "clicks", [click(b"ada", b"/end", 35)])
    # Between both sessions: from now on they are one.
    await put(brokers, "clicks", [click(b"bob", b"/z", 40), click(b"bob", b"/y", 25)])
    example.restart()
    await put(brokers, "clicks", [click(b"carl", b"/", 76)])
    bob = {"first_ms": first_ms + 10 * MINUTE_MS, "last_ms": first_ms + 40 * MINUTE_MS, "pages": ["/a", "/z", "/y"]}
    ada = {"first_ms": first_ms, "last_ms": first_ms + 35 * MINUTE_MS, "pages": ["/", "/b", "/end"]}
    await example.has_sent("click-visits", [(b"ada", ada), (b"bob", bob)])


async def test_failed_logins(brokers: str, tmp_path: Path, workers: list[WorkerProcess]) -> None:
    await make_topics(brokers, "logins", "login-alerts", partitions=1)
    first_ms = begin_ms()
    example = Example(brokers, tmp_path, workers, "failed_logins")

    def login(user: bytes, minute: int, *, succeeded: bool = False) -> Record:
        return user, json.dumps({"succeeded": succeeded}).encode(), first_ms + minute * MINUTE_MS

    await put(
        brokers, "logins", [login(b"eve", 0), login(b"ada", 1), login(b"eve", 4), login(b"ada", 2, succeeded=True)]
    )
    example.restart()
    await put(brokers, "logins", [login(b"eve", 9), login(b"eve", 10), login(b"ada", 12), login(b"ada", 13)])
    alert = {"failures": 3, "from_ms": first_ms - MINUTE_MS, "to_ms": first_ms + 9 * MINUTE_MS}
    await example.has_sent("login-alerts", [(b"eve", alert)])


@pytest.mark.nightly
async def test_auction_bids_of_a_backlog(brokers: str, tmp_path: Path, workers: list[WorkerProcess]) -> None:
    """Both topics are complete before the worker starts, and it is killed on the way."""
    await make_topics(brokers, "auctions", "bids", partitions=4)
    await make_topics(brokers, "offers", "unsold-auctions", partitions=1)
    first_ms, count = begin_ms(), 400
    auctions, bids = [], []
    for number in range(count):
        at_ms = first_ms + number * 10_000
        value = {"item": f"item {number}", "at_ms": at_ms, "expires_ms": at_ms + 10 * MINUTE_MS}
        auctions.append((b"a%d" % number, json.dumps(value).encode(), at_ms))
        for cents, after_ms in [] if number % 4 == 0 else [(1, -5_000), (2, 10 * MINUTE_MS - 1), (3, 10 * MINUTE_MS)]:
            bid = {"auction": f"a{number}", "cents": cents, "at_ms": at_ms + after_ms}
            bids.append((b"bidder%d" % (number % 7), json.dumps(bid).encode(), at_ms + after_ms))
    # By the last bid all are over.
    end_ms = first_ms + 3 * 60 * MINUTE_MS
    end = {"auction": "none", "cents": 0, "at_ms": end_ms}
    bids = [*sorted(bids, key=lambda record: record[2]), (b"bidder0", json.dumps(end).encode(), end_ms)]
    async with producing(brokers) as producer:
        for topic, records in (("bids", bids), ("auctions", auctions)):
            acks = [
                await producer.send(topic, value, key, partition=partition_for(key, 4), timestamp_ms=at_ms)
                for key, value, at_ms in records
            ]
            await asyncio.gather(*acks)
    example = Example(brokers, tmp_path, workers, "auction_bids")
    await eventually(lambda: read_all(brokers, "offers"), what=workers[-1].log)
    example.restart()
    offers = [(b"a%d" % n, {"item": f"item {n}", "cents": cents}) for n in range(count) if n % 4 for cents in (1, 2)]
    await example.has_sent("offers", offers, is_ordered=False)
    unsold = [(key, json.loads(value)) for number, (key, value, _) in enumerate(auctions) if number % 4 == 0]
    await example.has_sent("unsold-auctions", unsold, is_ordered=False)


async def test_top_pages(brokers: str, tmp_path: Path, workers: list[WorkerProcess]) -> None:
    await make_topics(brokers, "page-views", partitions=3)
    await make_topics(brokers, "top-pages", partitions=1)
    first_ms = begin_ms()

    async def view(pages: str, first_s: int) -> None:
        async with producing(brokers) as producer:
            for number, page in enumerate(pages):
                at_ms, partition = first_ms + (first_s + number) * 1000, number % 3
                value = json.dumps({"page": page}).encode()
                await producer.send_and_wait("page-views", value, b"ada", partition=partition, timestamp_ms=at_ms)

    # A backlog: partitions are read one after the other, and pages are counted in several.
    await view("abacabadcbaa", 0)
    await view("bcbcd", 62)
    example = Example(brokers, tmp_path, workers, "top_pages")
    example.restart()
    await view("ee", 150)
    wanted = [
        [[6, "a"], [3, "b"], [2, "c"]],
        [[2, "c"], [2, "b"], [1, "d"]],
    ]
    await example.has_sent(
        "top-pages",
        [
            (
                b"all",
                {
                    "minute_ms": first_ms + number * MINUTE_MS,
                    "pages": [{"count": count, "page": page} for count, page in pages],
                },
            )
            for number, pages in enumerate(wanted)
        ],
    )
