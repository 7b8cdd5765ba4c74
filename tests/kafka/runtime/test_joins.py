"""Joins on a real broker: pairs and records without a match once each, whoever is killed; the changelog's settings."""

from __future__ import annotations

import asyncio
import collections
from pathlib import Path

import orjson
import pytest

from actors._core.partitioner import partition_for
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, read_all, unique
from tests.kafka.runtime.test_windows import config_of, now_ms

MODULE = "tests.kafka.apps.pairs_app"
KEYS = [b"k%d" % number for number in range(60)]
ROUND_MS = 20_000
AT_ONCE = 2
"""Rounds that are sent together: what comes in their disorder is within the grace."""
OPEN = 3
"""Records of so many last rounds wait for a match."""
DAY_MS = 86_400_000
Results = collections.Counter[tuple[bytes, int | None, int | None]]


async def send(brokers: str, name: str, rounds: range, begin_ms: int) -> None:
    """Send for each round a pair to the first key of three, a right record to the second, a left one to the third."""
    async with producing(brokers) as producer:
        acks = [
            await producer.send(
                f"{name}-{side}",
                b"%d" % number,
                key,
                partition=partition_for(key, 2),
                timestamp_ms=begin_ms + number * ROUND_MS + shift_ms,
            )
            for number in rounds
            for side, lacks, shift_ms in (("left", 1, 0), ("right", 2, 3_000))
            for place, key in enumerate(KEYS)
            if place % 3 != lacks
        ]
        await asyncio.gather(*acks)


async def results(brokers: str, name: str) -> Results:
    records = await read_all(brokers, f"{name}-out")
    return collections.Counter((record.key, *orjson.loads(record.value)) for record in records)


def wanted(rounds: int) -> Results:
    """Each pair, and each record without a match but those of the last rounds."""
    found: Results = collections.Counter()
    for place, key in enumerate(KEYS):
        for number in range(rounds if place % 3 == 0 else rounds - OPEN):
            found[key, None if place % 3 == 1 else number, None if place % 3 == 2 else number] = 1
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("standbys", ["0", "1"])
async def test_each_result_is_sent_once_whoever_is_killed(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess], standbys: str
) -> None:
    name, begin_ms = unique("pairs"), now_ms()
    await make_topics(brokers, f"{name}-left", f"{name}-right", f"{name}-out")
    one, two = (
        WorkerProcess(MODULE, brokers, tmp_path / each, APP_NAME=name, STANDBYS=standbys) for each in ("one", "two")
    )
    workers += [one.start(), two.start()]
    await eventually(lambda: "owns" in one.log() and "owns" in two.log(), what=lambda: one.log() + two.log())

    async def all_of(rounds: int) -> None:
        expected = wanted(rounds)

        async def are_there() -> bool:
            return (await results(brokers, name)) >= expected

        await eventually(are_there, what=lambda: one.log()[-2000:] + two.log()[-2000:])
        assert await results(brokers, name) == expected

    sent = 0
    for victim in (one, two, one, two):
        await send(brokers, name, range(sent, sent + AT_ONCE), begin_ms)
        sent += AT_ONCE
        victim.kill()
        victim.start()
        await all_of(sent)
    for worker in (one, two):
        worker.kill()
    again = WorkerProcess(MODULE, brokers, tmp_path / "empty", APP_NAME=name)
    workers.append(again.start())
    await send(brokers, name, range(sent, sent + AT_ONCE), begin_ms)
    await all_of(sent + AT_ONCE)
    config = await config_of(brokers, f"{name}--pairs-changelog")
    assert sorted(config["cleanup.policy"].split(",")) == ["compact", "delete"]
    assert int(config["retention.ms"]) == DAY_MS + 60_000
