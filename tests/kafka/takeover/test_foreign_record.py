"""A record that another program wrote behind an idle worker's position: audit and restart find it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.kafka.helpers import WorkerProcess, eventually, make_topics, producing, read_all, send, unique
from tests.kafka.takeover.test_lost_changelog import MODULE, folded, run


async def validated(brokers: str, changelog: str, folder: Path) -> tuple[int, dict]:
    options = ["--brokers", brokers, "--changelog", changelog, "--against", str(folder)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "spark_replay", "validate", *options, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, json.loads(said.splitlines()[-1])


@pytest.mark.nightly
async def test_a_record_behind_the_last_commit_is_found_and_refused(brokers: str, tmp_path: Path) -> None:
    name, folder = unique("foreign"), tmp_path / "data"
    await make_topics(brokers, f"{name}-in", f"{name}-plain", f"{name}-out", partitions=1)
    changelog = f"{name}--kept-changelog"
    worker = WorkerProcess(MODULE, brokers, folder, APP_NAME=name).start()
    await eventually(lambda: "actor keep owns" in worker.log(), deadline_s=60, what=worker.log)
    await send(brokers, f"{name}-in", [(b"key-%d" % number, b'"%d"' % number) for number in range(4)], partitions=1)

    async def kept() -> bool:
        return len(await folded(brokers, changelog)) == 4

    await eventually(kept, deadline_s=60, what=worker.log)
    assert await asyncio.to_thread(worker.terminate) == 0
    # A restart without a foreign record takes the state as it is.
    await run(worker, "actor keep owns")
    assert (await validated(brokers, changelog, folder))[0] == 0

    copied = (await read_all(brokers, changelog))[-1]
    async with producing(brokers) as producer:
        await producer.send_and_wait(changelog, b'"planted"', copied.key, partition=0, headers=list(copied.headers))
    code, totals = await validated(brokers, changelog, folder)
    assert (code, totals["mismatches"], totals["behind_position"], totals["violations"]) == (1, 0, 1, 1)
    refused = "No owner of the partition can have written it"
    await run(worker, f"offset {copied.offset + 2}", refused, "actor keep is stopped on")
    await run(worker, refused, "actor keep is stopped on")
    rebuilding = WorkerProcess(MODULE, brokers, folder, APP_NAME=name, LOST_CHANGELOG="rebuild")
    await run(rebuilding, "actor keep owns")
    await run(worker, "actor keep owns")
