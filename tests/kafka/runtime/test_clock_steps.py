"""A worker whose wall clock is set by an hour, on a real broker: no timer hangs, and nothing has the wrong time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

MODULE = "tests.kafka.apps.stepping_app"
HOUR_MS = 3_600_000
TIMERS = 60


@pytest.mark.nightly
async def test_no_timer_hangs_whenever_the_clock_is_an_hour_off(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess]
) -> None:
    name, step = unique("steps"), tmp_path / "step"
    await make_topics(brokers, f"{name}-in", f"{name}-out")
    worker = WorkerProcess(MODULE, brokers, tmp_path / "one", APP_NAME=name, STEP_FILE=str(step))
    wanted: set[str] = set()

    async def remind(when: str, off_ms: int) -> None:
        step.write_text(str(off_ms))
        if not worker.is_running():
            workers.append(worker.start())
        values = {f"{when} {number}" for number in range(TIMERS)}
        wanted.update(values)
        await send(brokers, f"{name}-in", [(value.encode(), value.encode()) for value in sorted(values)])

    async def all_came() -> bool:
        return {record.key.decode() for record in await read_all(brokers, f"{name}-out")} == wanted

    await remind("before", 0)
    await eventually(all_came, what=worker.log)
    assert "clock is" not in worker.log()
    await remind("ahead", HOUR_MS)
    await eventually(lambda: "3600.0 s ahead of the broker's" in worker.log(), what=worker.log)
    worker.kill()
    await remind("killed and put right", 0)
    await eventually(all_came, what=worker.log)
    worker.kill()
    await remind("ahead from the start", HOUR_MS)
    await eventually(all_came, what=worker.log)
    await remind("put right", 0)
    await eventually(all_came, what=worker.log)
    times_ms = [record.timestamp for record in await read_all(brokers, f"{name}-out")]
    assert max(times_ms) < time.time() * 1000 + 60_000
    assert "the partition's time is" not in worker.log()
    worker.kill()
    await remind("behind from the start", -HOUR_MS)
    await eventually(all_came, what=worker.log)
    assert "3600.0 s behind the broker's" in worker.log()
    times_ms = [record.timestamp for record in await read_all(brokers, f"{name}-out")]
    assert min(times_ms) > time.time() * 1000 - HOUR_MS / 2
