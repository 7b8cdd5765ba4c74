"""A partition upstream that is halted holds event time, until an operator releases it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors._core.partitioner import partition_for
from tests.kafka import forked
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, read_all, unique

FIRST_MS = 1_700_000_000_000
SPAN_MS = 10_000


@pytest.mark.nightly
async def test_windows_close_without_a_feed_that_is_released(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name = unique("feeds")
    topics = [f"{name}-{part}" for part in ("clicks", "pages", "finals")]
    await make_topics(brokers, *topics, partitions=2)
    halted, other = ("none", 0), ("page", 1)
    async with producing(brokers) as producer:
        for (page, partition), at_ms in [(other, FIRST_MS), (halted, FIRST_MS), (other, FIRST_MS + 6 * SPAN_MS)]:
            key = next(b"u%d" % n for n in range(9) if partition_for(b"u%d" % n, 2) == partition)
            await producer.send_and_wait(topics[0], page.encode(), key, partition=partition, timestamp_ms=at_ms)
    worker = WorkerProcess("tests.kafka.apps.feeds_app", brokers, tmp_path / "data", APP_NAME=name)
    workers.append(worker.start(web=True))
    feed, environment = f"{topics[0]}[0]", {"APP_NAME": name, "KAFKA_URL": f"kafka://{brokers}"}

    def command(*arguments: str) -> str:
        answer = forked.faust("-A", "tests.kafka.apps.feeds_app", *arguments, environment=environment)
        assert answer.returncode == 0, answer.stderr + worker.log()
        return " ".join(answer.stdout.split())

    await eventually(lambda: "no page" in worker.log(), what=worker.log)
    await eventually(lambda: f"waits for {feed}" in command("actors"), what=lambda: command("actors"))
    assert await read_all(brokers, topics[2]) == []
    assert f"goes on without {feed}" in command("feeds", "release", "count", topics[0], "0")

    async def is_closed() -> bool:
        finals = [json.loads(record.value) for record in await read_all(brokers, topics[2])]
        return finals == [[FIRST_MS, FIRST_MS + SPAN_MS, 1]]

    await eventually(is_closed, what=worker.log)
