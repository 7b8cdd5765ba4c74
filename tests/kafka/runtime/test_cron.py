"""A cron on a real broker: each of its times is run once, whichever worker is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, unique

MODULE = "tests.kafka.apps.cron_app"


@pytest.mark.parametrize("kills", [0, pytest.param(2, marks=pytest.mark.nightly)])
async def test_each_time_is_run_once_whoever_is_killed(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess], kills: int
) -> None:
    name = unique("cron")
    await make_topics(brokers, f"{name}-runs")
    pair = [WorkerProcess(MODULE, brokers, tmp_path / each, APP_NAME=name) for each in ("one", "two")]
    workers += [worker.start() for worker in pair]

    async def runs() -> list[tuple[int, int]]:
        records = await read_all(brokers, f"{name}-runs")
        return [tuple(map(int, record.value.split())) for record in records]  # type: ignore[misc]

    async def more_than(count: int) -> bool:
        return len(await runs()) > count

    for _ in range(kills):
        count = len(await runs()) + 2
        await eventually(lambda count=count: more_than(count), what=lambda: "".join(one.log()[-2000:] for one in pair))
        owner = max(pair, key=lambda worker: worker.log().rfind("owns"))
        owner.kill()
        owner.start()
    count = len(await runs()) + 4
    await eventually(lambda: more_than(count), what=lambda: "".join(one.log()[-2000:] for one in pair))
    seconds = [second for second, _ in await runs()]
    assert seconds == list(range(seconds[0], seconds[0] + len(seconds)))
    assert [number for _, number in await runs()][: len(seconds)] == list(range(1, len(seconds) + 1))
