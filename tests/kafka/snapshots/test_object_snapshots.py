"""Real workers and an S3 server: what one worker writes is what the next one begins from."""

from __future__ import annotations

import asyncio
import collections
import random
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from actors.snapshots.objects import Objects
from stores._core.record import METADATA_BYTES
from stores._core.snapshot import SnapshotPartition, decode_snapshot, manifests
from stores.rocks import RocksReader
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique
from tests.s3 import S3Server

PARTITIONS = 2
KEYS = [f"key-{number}".encode() for number in range(300)]


@dataclass
class App:
    """An app whose workers have snapshots in a bucket, with all that was sent to it."""

    name: str
    brokers: str
    folder: Path
    bucket: str
    objects: Objects
    environment: dict[str, str]
    sent: list[tuple[bytes, bytes]] = field(default_factory=list)

    def send(self, count: int) -> None:
        choice = random.Random(len(self.sent))
        more = [(choice.choice(KEYS), b"x") for _ in range(count)]
        asyncio.run(send(self.brokers, f"{self.name}-in", more, partitions=PARTITIONS))
        self.sent += more

    def worker(self, folder: str, **environment: str) -> WorkerProcess:
        place = {"STATE_SNAPSHOT": self.bucket, "STATE_SNAPSHOT_EVERY": "1s", **self.environment}
        made = WorkerProcess(
            "tests.kafka.apps.object_snapshot_app",
            self.brokers,
            self.folder / folder,
            **({"APP_NAME": self.name, "INSTANCE_ID": folder, "PYTHONUNBUFFERED": "1"} | place | environment),
        )
        return made.start()

    def wait(self, what: Callable[[], object], *workers: WorkerProcess) -> None:
        asyncio.run(eventually(what, what=lambda: [worker.log()[-3000:] for worker in workers]))

    def wait_for_all(self, *workers: WorkerProcess) -> None:
        async def is_done() -> bool:
            return len(await read_all(self.brokers, f"{self.name}-out")) >= len(self.sent)

        asyncio.run(eventually(is_done, what=lambda: [worker.log()[-3000:] for worker in workers]))

    def standing(self, partition: int) -> SnapshotPartition | None:
        raw = self.objects._read(manifests("counts", partition)[1])
        return None if raw is None else decode_snapshot(raw).partitions[0]

    def offsets(self) -> list[int]:
        parts = [self.standing(partition) for partition in range(PARTITIONS)]
        return [-1 if part is None else part.position.changelog_offset for part in parts]

    def check(self, worker: WorkerProcess) -> None:
        """Stop the worker; its store equals the inputs that were sent, and the changelog."""
        assert worker.terminate() == 0, worker.log()[-3000:]
        held = {}
        for partition in range(PARTITIONS):
            reader = RocksReader.open(worker.folder / "v1" / "actors" / "stores" / "counts" / str(partition))
            held |= {key: raw[METADATA_BYTES:] for key, raw in reader.scan()}
            reader.close()
        changelog = asyncio.run(read_all(self.brokers, f"{self.name}--counts-changelog"))
        assert held == {record.key: record.value for record in changelog}
        assert {key: int(raw) for key, raw in held.items()} == collections.Counter(key for key, _ in self.sent)


@pytest.fixture
def app(brokers: str, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    for name, text in s3.environment.items():
        monkeypatch.setenv(name, text)
    name = unique("objects")
    bucket = s3.make_bucket(name) + "/snapshots"
    asyncio.run(make_topics(brokers, f"{name}-in", f"{name}-out", partitions=PARTITIONS))
    objects = Objects.open(bucket, app=name, folder=tmp_path / "none")
    return App(name, brokers, tmp_path, bucket, objects, dict(s3.environment))


@pytest.mark.parametrize("is_killed", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_worker_without_a_disk_begins_with_what_workers_wrote(app: App, is_killed: bool) -> None:
    """Two workers write; one ends, the other goes on with its partition. A third one begins from their files."""
    app.send(600)
    workers = [app.worker("one"), app.worker("two")]
    app.wait_for_all(*workers)
    app.wait(lambda: all("snapshot at offset" in worker.log() for worker in workers), *workers)
    app.wait(lambda: min(app.offsets()) > 0, *workers)
    epochs = [part.position.epoch for number in range(PARTITIONS) if (part := app.standing(number))]
    (workers[0].kill if is_killed else workers[0].terminate)()
    app.send(300)
    app.wait_for_all(workers[1])

    def are_newer() -> bool:
        parts = [app.standing(number) for number in range(PARTITIONS)]
        return any(part is not None and part.position.epoch > epochs[number] for number, part in enumerate(parts))

    app.wait(are_newer, workers[1])
    assert workers[1].terminate() == 0
    shutil.rmtree(workers[1].folder)
    app.send(50)
    third = app.worker("three", STATE_SNAPSHOT_EVERY="0")
    app.wait_for_all(third)
    assert third.log().count("begun with") == PARTITIONS, third.log()[-3000:]
    app.check(third)


@pytest.mark.nightly
def test_a_worker_killed_in_an_upload_leaves_the_snapshot_that_stands(app: App) -> None:
    app.send(300)
    first = app.worker("one")
    app.wait_for_all(first)
    app.wait(lambda: min(app.offsets()) > 0, first)
    assert first.terminate() == 0
    before = app.offsets()
    app.send(100)
    doomed = app.worker("one", UPLOAD_CRASH_AT="3")
    assert doomed.wait() == -signal.SIGKILL, doomed.log()[-3000:]
    assert app.offsets() == before
    shutil.rmtree(doomed.folder)
    last = app.worker("one")
    app.wait(lambda: last.log().count("begun with") == PARTITIONS, last)
    app.wait_for_all(last)
    app.wait(lambda: all(now > then for now, then in zip(app.offsets(), before, strict=True)), last)

    async def is_tidy() -> bool:
        folders = [await app.objects.folders(f"counts/partition-{number:05d}") for number in range(PARTITIONS)]
        return all(len(names) <= 2 for names in folders)

    app.wait(is_tidy, last)
    app.check(last)


def test_a_worker_whose_bucket_does_not_exist_reads_the_changelog(app: App) -> None:
    app.send(100)
    worker = app.worker("one", STATE_SNAPSHOT="s3://there-is-none-0/snapshots")
    app.wait_for_all(worker)
    lines = [
        line for line in worker.log().splitlines() if "the snapshot isn't used, the changelog has everything" in line
    ]
    assert len(lines) == PARTITIONS
    assert all("the bucket doesn't exist" in line for line in lines)
    app.wait(lambda: "no snapshot was written to s3://there-is-none-0" in worker.log(), worker)
    app.check(worker)
