"""Windows, joins and tables of one app under kill -9, each result beside a model that knows nothing of windows."""

from __future__ import annotations

import asyncio
import collections
import os
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from actors._core.partitioner import partition_for
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, read_all, unique

MODULE = "tests.kafka.apps.streams_app"
STREAMS = ("clicks", "ones", "others", "hits")
TABLES = ("orders", "customers", "left", "right")
OUTPUTS = ("late", "finals", "pairs", "invoices", "totals", "merged", "sums")
KEYS = [b"k%d" % number for number in range(12)]
CUSTOMERS = [b"c%d" % number for number in range(5)]
SPAN_MS = 20_000
EACH = 150
LENGTH_MS, GAP_MS, HOP_GRACE_MS, SESSION_GRACE_MS = 2_000, 1_000, 1_000, 1_000
Final = tuple[bytes, str, int, int, int]


class World:
    """What was sent, by partition in the order of offsets, as (time, key, number)."""

    def __init__(self, brokers: str, name: str, begin_ms: int, seed: int) -> None:
        self._brokers, self._name, self._begin_ms, self._rng = brokers, name, begin_ms, random.Random(seed)
        self._number = 0
        self.sent: dict[str, list[list[tuple[int, bytes, int]]]] = {each: [[], []] for each in STREAMS}
        self.rows: dict[str, dict[bytes, Any]] = {each: {} for each in TABLES}

    async def send(self, number: int) -> None:
        """Send the records of a round to all topics; those of the last round only end all windows."""
        from_ms = self._begin_ms + number * SPAN_MS
        async with producing(self._brokers) as producer:
            acks = []
            for place in range(EACH):
                for topic in STREAMS:
                    at_ms = from_ms + place * SPAN_MS // EACH
                    acks.append(await self._stream(producer, topic, at_ms))
                topic = self._rng.choice(TABLES)
                acks.append(await self._row(producer, topic))
            await asyncio.gather(*acks)

    async def end(self, rounds: int) -> None:
        """Move stream time of all partitions behind all windows but those of these records."""
        at_ms = self._begin_ms + rounds * SPAN_MS + 600_000
        async with producing(self._brokers) as producer:
            for topic in ("clicks", "ones", "others"):
                for partition in range(2):
                    key = next(b"e%d" % n for n in range(100) if partition_for(b"e%d" % n, 2) == partition)
                    await self._put(producer, topic, key, at_ms)

    async def _stream(self, producer: Any, topic: str, at_ms: int) -> Any:
        # Out of order, repeated times, and far too late: so often that the first record behind a takeover is one, too.
        late_ms = 90_000 if topic == "clicks" and self._rng.random() < 0.15 else self._rng.choice((0, 0, 1, 700, 3_000))
        if topic in ("ones", "others") and self._rng.random() < 0.5:
            at_ms = at_ms // 1_000 * 1_000
        return await self._put(producer, topic, self._rng.choice(KEYS), at_ms - late_ms)

    async def _put(self, producer: Any, topic: str, key: bytes, at_ms: int) -> Any:
        self._number += 1
        partition = partition_for(key, 2)
        self.sent[topic][partition].append((at_ms, key, self._number))
        return await producer.send(
            f"{self._name}-{topic}", b"%d" % self._number, key, partition=partition, timestamp_ms=at_ms
        )

    async def _row(self, producer: Any, topic: str) -> Any:
        self._number += 1
        keys, row = KEYS, self._number
        if topic == "customers":
            keys = CUSTOMERS
        elif topic == "orders":
            row = [self._rng.choice([*(each.decode() for each in CUSTOMERS), None]), self._number]
        key = self._rng.choice(keys)
        self.rows[topic][key] = row
        if self._rng.random() < 0.25:
            del self.rows[topic][key]
        value = orjson.dumps(row) if key in self.rows[topic] else None
        return await producer.send(f"{self._name}-{topic}", value, key, partition=partition_for(key, 2))

    # --- the model -------------------------------------------------------------------------------------------------

    def finals(self) -> tuple[collections.Counter[Final], collections.Counter[int]]:
        """Return all finals, and the numbers of records that are too late for all windows."""
        found: collections.Counter[Final] = collections.Counter()
        late: collections.Counter[int] = collections.Counter()
        for records in self.sent["clicks"]:
            kept = self._kept(records, late)
            found.update(self._hops(records))
            found.update(self._sliding(kept))
            found.update(self._sessions(records))
        return found, late

    @staticmethod
    def _kept(records: Iterable[Any], late: collections.Counter[int]) -> list[Any]:
        stream_ms, kept = -1, []
        for at_ms, key, number in records:
            stream_ms = max(stream_ms, at_ms)
            if at_ms < stream_ms - 60_000:
                late[number] += 1
            else:
                kept.append((at_ms, key, number))
        return kept

    @staticmethod
    def _hops(records: Iterable[Any]) -> Iterable[Final]:
        stream_ms, sums = -1, collections.Counter()
        for at_ms, key, number in records:
            stream_ms = max(stream_ms, at_ms)
            for start_ms in range(at_ms // 2_000 * 2_000 - 4_000, at_ms + 1, 2_000):
                if start_ms + 6_000 + HOP_GRACE_MS > stream_ms:
                    sums[key, start_ms] += number
        return [
            (key, "hops", start_ms, start_ms + 6_000, total)
            for (key, start_ms), total in sums.items()
            if start_ms + 6_000 + HOP_GRACE_MS <= stream_ms
        ]

    @staticmethod
    def _sliding(records: list[Any]) -> Iterable[Final]:
        stream_ms = max(at_ms for at_ms, *_ in records)
        for key in {key for _, key, _ in records}:
            mine = [(at_ms, number) for at_ms, each, number in records if each == key]
            starts = {at_ms - LENGTH_MS for at_ms, _ in mine} | {at_ms + 1 for at_ms, _ in mine}
            for start_ms in starts:
                end_ms = start_ms + LENGTH_MS
                inside = [number for at_ms, number in mine if start_ms <= at_ms <= end_ms]
                if inside and end_ms + 5_000 < stream_ms:
                    yield key, "near", start_ms, end_ms, sum(inside)

    @staticmethod
    def _sessions(records: Iterable[Any]) -> Iterable[Final]:
        stream_ms, all_of = -1, collections.defaultdict(list)
        for at_ms, key, number in records:
            stream_ms = max(stream_ms, at_ms)
            hit = [one for one in all_of[key] if one[0] - GAP_MS <= at_ms <= one[1] + GAP_MS]
            live = [one for one in hit if one[3]]
            new = [min([at_ms, *(one[0] for one in live)]), max([at_ms, *(one[1] for one in live)]), number, True]
            if new[1] + GAP_MS + SESSION_GRACE_MS < stream_ms:
                continue
            for one in live:
                new[2] += one[2]
                if one[1] + GAP_MS + SESSION_GRACE_MS < stream_ms:
                    # It is final already, and is a part of the new one all the same.
                    one[3] = False
                else:
                    all_of[key].remove(one)
            all_of[key].append(new)
        return [
            (key, "visits", start_ms, end_ms, total)
            for key, held in all_of.items()
            for start_ms, end_ms, total, _ in held
            if end_ms + GAP_MS + SESSION_GRACE_MS < stream_ms
        ]

    def pairs(self) -> collections.Counter[tuple[bytes, int | None, int | None]]:
        """Return all pairs, and what has no match and is behind its window's end."""
        found: collections.Counter[Any] = collections.Counter()
        for ones, others in zip(self.sent["ones"], self.sent["others"], strict=True):
            stream_ms = max(at_ms for at_ms, *_ in [*ones, *others])
            matched = set()
            for at_ms, key, number in ones:
                for other_ms, other_key, other in others:
                    if key == other_key and abs(at_ms - other_ms) <= 2_000:
                        found[key, number, other] += 1
                        matched |= {number, other}
            for place, records in enumerate((ones, others)):
                for at_ms, key, number in records:
                    if number not in matched and at_ms + 2_000 + 60_000 < stream_ms:
                        found[(key, None, number) if place else (key, number, None)] += 1
        return found

    def sums(self) -> tuple[dict[tuple[bytes, int], int], int]:
        """Return each window's sum, and how often one changed."""
        found: collections.Counter[tuple[bytes, int]] = collections.Counter()
        changes = 0
        for at_ms, key, number in [one for part in self.sent["hits"] for one in part]:
            for start_ms in range(at_ms // 2_000 * 2_000 - 4_000, at_ms + 1, 2_000):
                found[key, start_ms] += number
                changes += 1
        return dict(found), changes

    def tables(self) -> dict[str, dict[bytes, Any]]:
        """Return the last results of what is made of tables."""
        orders, customers, left, right = (self.rows[each] for each in TABLES)
        totals: collections.Counter[bytes] = collections.Counter()
        for group, number in orders.values():
            if group is not None:
                totals[group.encode()] += number
        keys = left.keys() | right.keys()
        return {
            "invoices": {
                key: [number, customer, customers[customer.encode()]]
                for key, (customer, number) in orders.items()
                if customer is not None and customer.encode() in customers
            },
            "totals": {group: total for group, total in totals.items() if total},
            "merged": {key: [left.get(key), right.get(key)] for key in keys},
        }


async def lag(brokers: str, name: str, app: str = "") -> int:
    """Return how many records of an app's inputs aren't committed; `name` is what their names begin with."""
    group = f"{app or name}-actors"
    consumer = AIOKafkaConsumer(bootstrap_servers=brokers, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        parts = [TopicPartition(f"{name}-{topic}", number) for topic in (*STREAMS, *TABLES) for number in range(2)]
        ends = await consumer.end_offsets(parts)
        return sum([end - (await consumer.committed(part) or 0) for part, end in ends.items()])
    finally:
        await consumer.stop()


async def results(brokers: str, name: str, topic: str) -> list[tuple[bytes, Any]]:
    return [
        (record.key, None if record.value is None else orjson.loads(record.value))
        for record in await read_all(brokers, f"{name}-{topic}")
    ]


def differences(what: str, found: collections.Counter[Any], wanted: collections.Counter[Any]) -> list[Any]:
    return [(what, "missing", one) for one in (wanted - found).items()] + [
        (what, "too many", one) for one in (found - wanted).items()
    ]


async def judged(brokers: str, name: str, world: World) -> list[Any]:
    """Return where results aren't those of the model."""
    finals, late = world.finals()
    wrong = differences(
        "finals", collections.Counter((key, *final) for key, final in await results(brokers, name, "finals")), finals
    )
    wrong += differences("late", collections.Counter(n for _, n in await results(brokers, name, "late")), late)
    pairs = collections.Counter((key, *pair) for key, pair in await results(brokers, name, "pairs"))
    wrong += differences("pairs", pairs, world.pairs())
    sums, changes = world.sums()
    sent = await results(brokers, name, "sums")
    if len(sent) != changes or {(key, start): total for key, (start, _, total) in sent} != sums:
        wrong.append(("sums", len(sent), changes))
    for topic, rows in world.tables().items():
        held = {key: value for key, value in dict(await results(brokers, name, topic)).items() if value is not None}
        held = {key: value for key, value in held.items() if value}
        wrong += [(topic, key, held.get(key), rows.get(key)) for key in held.keys() | rows.keys()
                  if held.get(key) != rows.get(key)]  # fmt: skip
    return wrong


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("standbys", ["0", "1"])
async def test_all_results_are_those_of_a_model(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess], standbys: str
) -> None:
    name, rounds = unique("streams"), int(os.environ.get("ROUNDS", "6"))
    seed = int(os.environ.get("SEED", "0"))
    begin_ms = (int(time.time() * 1000) - 3_600_000) // 10_000 * 10_000
    await make_topics(brokers, *(f"{name}-{topic}" for topic in (*STREAMS, *OUTPUTS)))
    await make_topics(brokers, *(f"{name}-{topic}" for topic in TABLES), config={"cleanup.policy": "compact"})
    pair = [
        WorkerProcess(MODULE, brokers, tmp_path / each, APP_NAME=name, STANDBYS=standbys) for each in ("one", "two")
    ]
    workers += [worker.start() for worker in pair]
    logs = lambda: pair[0].log()[-3000:] + pair[1].log()[-3000:]  # noqa: E731
    await eventually(lambda: all("owns" in worker.log() for worker in pair), what=logs)
    world, rng = World(brokers, name, begin_ms, seed), random.Random(seed)

    async def is_caught_up() -> bool:
        return await lag(brokers, name) == 0

    for number in range(rounds):
        sending = asyncio.create_task(world.send(number))
        for victim in rng.choice([pair, pair[::-1], pair[:1], pair[1:]]):
            await asyncio.sleep(rng.random() * 2)
            victim.kill()
            await asyncio.sleep(rng.random())
            victim.start()
        await sending
        await eventually(is_caught_up, deadline_s=120, what=logs)
    await world.end(rounds)
    pair[rounds % 2].kill()
    pair[rounds % 2].start()
    await eventually(is_caught_up, deadline_s=120, what=logs)

    async def is_right() -> bool:
        return not await judged(brokers, name, world)

    try:
        await eventually(is_right, deadline_s=60, what=logs)
    except AssertionError as error:
        raise AssertionError((await judged(brokers, name, world))[:20]) from error
    assert sum(world.finals()[0].values()) > 500


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_two_apps_on_the_same_topics_do_not_know_of_each_other(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    """All their stores, actors and internal topics have the same names but for the apps' ids."""
    name = unique("shared")
    apps = [name, f"{name}-two"]
    begin_ms = (int(time.time() * 1000) - 3_600_000) // 10_000 * 10_000
    await make_topics(brokers, *(f"{name}-{topic}" for topic in STREAMS))
    await make_topics(brokers, *(f"{app}-{topic}" for app in apps for topic in OUTPUTS))
    await make_topics(brokers, *(f"{name}-{topic}" for topic in TABLES), config={"cleanup.policy": "compact"})
    both = [WorkerProcess(MODULE, brokers, tmp_path / app, APP_NAME=app, INPUTS=name) for app in apps]
    workers += [worker.start() for worker in both]
    logs = lambda: both[0].log()[-3000:] + both[1].log()[-3000:]  # noqa: E731
    await eventually(lambda: all("owns" in worker.log() for worker in both), what=logs)
    world = World(brokers, name, begin_ms, seed=1)

    async def are_caught_up() -> bool:
        return not any([await lag(brokers, name, app) for app in apps])

    for number in range(2):
        await world.send(number)
        both[number].kill()
        both[number].start()
        await eventually(are_caught_up, deadline_s=120, what=logs)
    await world.end(2)
    await eventually(are_caught_up, deadline_s=120, what=logs)
    for app in apps:

        async def is_right(app: str = app) -> bool:
            return not await judged(brokers, app, world)

        try:
            await eventually(is_right, deadline_s=60, what=logs)
        except AssertionError as error:
            raise AssertionError(app, (await judged(brokers, app, world))[:20]) from error
