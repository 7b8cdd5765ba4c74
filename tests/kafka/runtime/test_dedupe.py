"""Run each command once: within a batch, across batches, across a restart, across a rebalance."""

from __future__ import annotations

import collections
from pathlib import Path

import pytest

from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, read_all, send, unique

MODULE = "tests.kafka.apps.dedupe_app"


async def runs_of(brokers: str, name: str) -> dict[bytes, bytes]:
    """The value that ran, by key; fails on a key that ran twice."""
    records = await read_all(brokers, f"{name}-out")
    counted = collections.Counter(record.key for record in records)
    assert not [key for key, count in counted.items() if count > 1]
    return {record.key: record.value for record in records}


async def settled(brokers: str, name: str, wanted: dict[bytes, bytes], worker: WorkerProcess) -> None:
    async def ran() -> bool:
        return await runs_of(brokers, name) == wanted

    await eventually(ran, what=f"{len(wanted)} runs; " + worker.log()[-2000:])


@pytest.mark.nightly
async def test_the_first_of_each_command_runs_and_no_other(brokers: str, tmp_path: Path) -> None:
    name = unique("dedupe")
    await make_topics(brokers, f"{name}-in", f"{name}-out")
    environment = {"APP_NAME": name}
    one = WorkerProcess(MODULE, brokers, tmp_path / "one", **environment)
    two = WorkerProcess(MODULE, brokers, tmp_path / "two", **environment)
    keys = [b"command-%d" % number for number in range(30)]
    first = dict.fromkeys(keys, b"first")
    try:
        # Within a batch: it is all there before the worker starts.
        await send(brokers, f"{name}-in", [(key, b"first") for key in keys] + [(key, b"again") for key in keys])
        one.start()
        await settled(brokers, name, first, one)
        # Across batches: the state is committed by now.
        await send(brokers, f"{name}-in", [(key, b"later") for key in keys])
        # Across a restart.
        assert one.terminate() == 0
        await send(brokers, f"{name}-in", [(key, b"restarted") for key in keys])
        one.start()
        first |= {b"new-1": b"first"}
        await send(brokers, f"{name}-in", [(b"new-1", b"first"), (b"new-1", b"again")])
        await settled(brokers, name, first, one)
        # Across a rebalance: half of the keys have another owner now.
        two.start()
        await eventually(lambda: "owns" in two.log(), what=two.log)
        first |= {b"new-%d" % number: b"first" for number in range(2, 12)}
        async with producing(brokers) as producer:
            assert await producer.partitions_for(f"{name}-in") == {0, 1}
        await send(
            brokers,
            f"{name}-in",
            [(key, b"moved") for key in keys] + [(b"new-%d" % n, b"first") for n in range(2, 12)],
        )
        await settled(brokers, name, first, two)
    finally:
        codes = [one.terminate(), two.terminate()]
    assert "the leader is here" in one.log() + two.log()
    assert codes == [0, 0], one.log()[-2000:] + two.log()[-2000:]
