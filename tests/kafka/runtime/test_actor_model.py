"""Timers and key-parallel handlers on a real broker, with workers that are killed in the middle."""

from __future__ import annotations

import collections
from pathlib import Path

import msgspec
import pytest

from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

MODULE = "tests.kafka.apps.model_app"
TOPICS = ("clocks", "rings", "waits", "waited")


async def begin(brokers: str, tmp_path: Path, workers: list[WorkerProcess], count: int) -> tuple[str, list]:
    """Topics and workers of an app of the test's own."""
    name = unique("model")
    await make_topics(brokers, *(f"{name}-{part}" for part in TOPICS))
    started = [WorkerProcess(MODULE, brokers, tmp_path / f"data-{each}", APP_NAME=name) for each in range(count)]
    workers.extend(worker.start() for worker in started)
    for worker in started:
        await eventually(lambda worker=worker: "owns" in worker.log(), what=worker.log)
    return name, started


def logs(workers: list[WorkerProcess]) -> str:
    return "\n---\n".join(worker.log()[-2000:] for worker in workers)


@pytest.mark.nightly
async def test_each_timer_fires_once_whoever_is_killed(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name, (one, two) = await begin(brokers, tmp_path, workers, 2)
    count = 600
    wound = [
        (b"clock-%d" % (number % 40), msgspec.json.encode({"type": "wind", "number": number, "seconds": number % 12}))
        for number in range(count)
    ]
    unwound = [
        (b"clock-%d" % (number % 40), msgspec.json.encode({"type": "unwind", "number": number}))
        for number in range(0, count, 10)
    ]
    await send(brokers, f"{name}-clocks", [*wound, *unwound])

    async def heard() -> list:
        return await read_all(brokers, f"{name}-rings")

    async def some(least: int) -> bool:
        return sum(b"rang" in record.value for record in await heard()) >= least

    await eventually(lambda: some(50), what=lambda: logs([one, two]))
    one.kill()
    await eventually(lambda: some(200), what=lambda: logs([one, two]))
    one.start()
    two.kill()
    two.start()

    def ended(records: list) -> collections.Counter[bytes]:
        return collections.Counter(
            record.value.split()[0] for record in records if record.value.split()[1] in (b"rang", b"cancelled")
        )

    async def all_over() -> bool:
        records = await heard()
        is_unwound = sum(b"rang" not in record.value for record in records) == len(unwound)
        return is_unwound and len(ended(records)) == count

    await eventually(all_over, what=lambda: logs([one, two]))
    records = await heard()
    assert set(ended(records).values()) == {1}
    rang = [record for record in records if b"rang" in record.value]
    # Each clock's state counts its rings without a gap: the timers went through its commits.
    for key in {record.key for record in rang}:
        times = [int(record.value.split()[2]) for record in rang if record.key == key]
        assert times == list(range(1, len(times) + 1))
    assert all(record.timestamp >= int(record.value.split()[3]) - 1_000 for record in rang)
    assert any(b"cancelled" in record.value for record in records)


@pytest.mark.nightly
async def test_messages_side_by_side_are_handled_once_and_in_order_whoever_is_killed(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name, (one, two) = await begin(brokers, tmp_path, workers, 2)
    keys, each = 50, 60
    messages = [(b"k%d" % key, b"m%d" % number) for number in range(each) for key in range(keys)]
    await send(brokers, f"{name}-waits", messages[: len(messages) // 2])

    async def done(least: int) -> bool:
        return len(await read_all(brokers, f"{name}-waited")) >= least

    await eventually(lambda: done(100), what=lambda: logs([one, two]))
    one.kill()
    await send(brokers, f"{name}-waits", messages[len(messages) // 2 :])
    await eventually(lambda: done(len(messages) // 3), what=lambda: logs([one, two]))
    one.start()
    two.kill()
    two.start()
    await eventually(lambda: done(len(messages)), what=lambda: logs([one, two]))
    found = await read_all(brokers, f"{name}-waited")
    by_key = collections.defaultdict(list)
    for record in found:
        by_key[record.key].append(record.value)
    wanted = [b"m%d %d" % (number, number + 1) for number in range(each)]
    assert {key: values for key, values in by_key.items() if values != wanted} == {}
    assert len(by_key) == keys
