"""Workers of the former release and of this one share a group, are replaced one by one, and are put back."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from tests.kafka.helpers import ROOT, WorkerProcess, eventually, make_topics, send, unique
from tests.kafka.runtime.test_exactly_once import MODULE, all_echoed, expected_echo, records, stored

FORMERS = {
    "a transaction for each task": "be405c5",
    "no pauses in the registry": "2339c311",
    "settings of the program only": "afe0d533",
}
"""The last commits without what makes a group of both kinds of workers delicate."""
PARTITIONS = 6
OWNS = "actor count owns"


@pytest.fixture(scope="module", params=FORMERS.values(), ids=FORMERS.keys())
def former(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The code of a former release."""
    tree = tmp_path_factory.mktemp("former")
    archive = subprocess.run(["git", "archive", request.param], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
    return tree


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("end", [WorkerProcess.terminate, WorkerProcess.kill], ids=["stopped", "killed"])
async def test_workers_are_upgraded_one_by_one_and_back(
    brokers: str, tmp_path: Path, workers: list[WorkerProcess], former: Path, end: object
) -> None:
    name = unique("upgrade")
    await make_topics(brokers, f"{name}-in", f"{name}-out", partitions=PARTITIONS)
    sent: list[tuple[bytes, bytes]] = []
    running: dict[str, WorkerProcess] = {}

    is_over = asyncio.Event()

    async def feed() -> None:
        while not is_over.is_set():
            more = records(50, seed=len(sent))
            await send(brokers, f"{name}-in", more, partitions=PARTITIONS)
            sent.extend(more)

    async def replace(folder: str, tree: Path) -> None:
        if folder in running:
            await asyncio.to_thread(end, running[folder])  # type: ignore[arg-type]
        worker = WorkerProcess(MODULE, brokers, tmp_path / folder, tree=tree, APP_NAME=name, MAX_POLL_RECORDS="20")
        owned = worker.log().count(OWNS)
        workers.append(worker.start())
        running[folder] = worker
        await eventually(lambda: worker.log().count(OWNS) > owned, what=lambda: worker.log()[-3000:], deadline_s=60)

    feeding = asyncio.create_task(feed())
    try:
        for tree in (former, ROOT, former, ROOT):
            for folder in ("one", "two"):
                await replace(folder, tree)
    finally:
        is_over.set()
        await feeding
    await all_echoed(brokers, name, sent, *running.values())
    found: dict[bytes, int] = {}
    for folder, worker in running.items():
        assert worker.terminate() == 0, worker.log()[-3000:]
        for key, count in stored(tmp_path / folder, name).items():
            found[key] = max(count, found.get(key, 0))
    assert found == {key: len(values) for key, values in expected_echo(sent).items()}
