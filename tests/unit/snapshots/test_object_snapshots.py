"""Snapshots in object storage: the next worker begins from what a worker wrote; damaged ones are refused."""

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pytest

from actors import App
from actors._core.task.lifecycle import State
from actors._faust.setup import Setup
from actors.errors import ConfigurationError
from actors.runtime.state.restore import Changelog
from actors.snapshots import writer as writing
from actors.snapshots.objects import CHUNK_BYTES, Objects
from actors.snapshots.writer import SnapshotWriter
from stores._core.record import Position
from stores._core.snapshot import SnapshotPartition, SnapshotTable, decode_snapshot, manifests
from stores._files import crc32
from stores.errors import SnapshotError
from stores.rocks import RocksStore
from tests.kafka.helpers import eventually, unique
from tests.logs import Clock
from tests.snapshots import with_own_crc32

ROWS = {b"%06d" % number: os.urandom(60) for number in range(3_000)}
AT = Position(7, 9, 1_760_000_000_000, 3, "id")
MANIFEST = manifests("store", 0)[1]


@dataclass
class Task:
    """A task of one store, as far as a writer of snapshots looks."""

    store: Any
    epoch: int = AT.epoch
    partition: int = 0
    state: State = State.RUNNING
    inbox: Any = field(default_factory=lambda: SimpleNamespace(stopping=False))

    @property
    def spec(self) -> Any:
        changelog = Changelog("store", "app--store-changelog", "id", 1, 1, 4)
        return SimpleNamespace(stores=[SimpleNamespace(name="store")], changelogs={"store": changelog})

    @property
    def committed(self) -> Any:
        return None if self.state is State.FENCING else {"store": self.store}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "FLUSH_S", 0.0)
    monkeypatch.setattr(writing, "LOOK_S", 0.01)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    store = RocksStore.open(tmp_path / "owner")
    store.apply(ROWS.items(), AT)
    yield store
    store.close()


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects.open((tmp_path / "bucket").as_uri(), app="app", folder=tmp_path / "work")


@pytest.fixture(params=["memory", "s3"])
def versioned(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Objects:
    """A place that compares versions, as object storage does and folders don't."""
    if request.param == "memory":
        return Objects.open("memory:///", app="app", folder=tmp_path / "work")
    server = request.getfixturevalue("s3")
    for name, text in server.environment.items():
        monkeypatch.setenv(name, text)
    return Objects.open(f"{server.make_bucket(unique('bucket'))}/a/b", app="app", folder=tmp_path / "work")


def writer(objects: Objects, *tasks: Task) -> SnapshotWriter:
    return SnapshotWriter(objects, lambda: list(tasks), clock=Clock(), every_s=60)  # type: ignore[arg-type, return-value]


async def write(objects: Objects, task: Task) -> None:
    made = writer(objects, task)
    made._every_s = 0.0
    await made._write_if_due(task, "store")  # type: ignore[arg-type]


async def begin(objects: Objects, path: Path) -> RocksStore:
    store = RocksStore.open(path)
    try:
        snapshot = objects.find("store", 0)
        assert snapshot is not None
        async with snapshot.fetched() as content:
            store.load_snapshot(content)
    except BaseException:
        store.close()
        raise
    return store


async def standing(objects: Objects) -> SnapshotPartition:
    found = await objects.read(MANIFEST)
    assert found is not None
    return decode_snapshot(found[0].decode()).partitions[0]


async def test_the_next_worker_begins_with_what_the_last_one_had(objects: Objects, store: RocksStore, tmp_path: Path):
    store.apply([(b"000001", None), (b"new", b"1")], replace(AT, changelog_offset=11))
    await write(objects, Task(store))
    store.apply([(b"later", b"1")], replace(AT, changelog_offset=12))
    snapshot = objects.find("store", 0)
    assert snapshot is not None
    assert (snapshot.changelog, snapshot.partition_count, snapshot.position.changelog_offset) == (
        "app--store-changelog",
        4,
        11,
    )
    fresh = await begin(objects, tmp_path / "fresh")
    wanted = {key: raw for key, raw in ROWS.items() if key != b"000001"} | {b"new": b"1"}
    assert (dict(fresh.scan()), fresh.position()) == (wanted, replace(AT, changelog_offset=11))
    fresh.apply([(b"later", b"2")], replace(AT, changelog_offset=12))
    fresh.close()
    assert list((tmp_path / "work").iterdir()) == []
    assert (tmp_path / "bucket/store").stat().st_mode & 0o077 == 0


async def test_a_folder_with_a_worker_s_snapshot_is_read_without_obstore_and_stays_as_it_is(
    objects: Objects, store: RocksStore, tmp_path: Path
):
    from stores.snapshot import SnapshotFolder

    await write(objects, Task(store))
    before = {file: file.read_bytes() for file in (tmp_path / "bucket").rglob("*") if file.is_file()}
    for name in ("a", "b"):
        fresh = RocksStore.open(tmp_path / name)
        snapshot = SnapshotFolder(tmp_path / "bucket", app="app").find("store", 0)
        assert snapshot is not None
        fresh.load_snapshot(snapshot)
        assert dict(fresh.scan()) == ROWS
        fresh.apply([(key, None) for key in ROWS], replace(AT, changelog_offset=10))
        fresh.close()
        assert dict(snapshot.rows()) == ROWS
    assert {file: file.read_bytes() for file in (tmp_path / "bucket").rglob("*") if file.is_file()} == before


def a_table(bucket: Path) -> Path:
    return max(bucket.rglob("*.sst"), key=lambda file: file.stat().st_size)


def flip(bucket: Path) -> None:
    table = a_table(bucket)
    raw = bytearray(table.read_bytes())
    raw[len(raw) // 2] ^= 1
    table.write_bytes(raw)


def edit(bucket: Path, old: str, new: str) -> None:
    file = bucket / MANIFEST
    text = file.read_text()
    assert old in text
    file.write_text(with_own_crc32(text.replace(old, new)))


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (flip, r"\.sst isn't the file that its manifest lists .*: damaged"),
        (lambda bucket: os.truncate(a_table(bucket), 100), r"\.sst.*"),
        (lambda bucket: a_table(bucket).unlink(), r"\.sst is missing"),
        (lambda bucket: os.truncate(bucket / MANIFEST, 100), "not a manifest"),
        (lambda bucket: edit(bucket, '"format": 1', '"format": 2'), "format 2, this release reads format 1"),
        (lambda bucket: edit(bucket, '"app": "app"', '"app": "other"'), "of app 'other', not of 'store' of 'app'"),
        (lambda bucket: edit(bucket, '"folder": "3-9', '"folder": "../3-9'), "files lie beside the manifest"),
        (
            lambda bucket: edit(bucket, '"changelog_offset": 9', '"changelog_offset": 8'),
            "its database is at .* the mani",
        ),
    ],
    ids=["flipped", "truncated", "missing", "half a manifest", "newer", "another app", "elsewhere", "another position"],
)
async def test_a_damaged_snapshot_is_refused_in_one_line_and_leaves_an_empty_store(
    objects: Objects, store: RocksStore, tmp_path: Path, damage: Any, text: str
):
    await write(objects, Task(store))
    damage(tmp_path / "bucket")
    with pytest.raises(SnapshotError, match=text) as refusal:
        await begin(objects, tmp_path / "fresh")
    assert "\n" not in str(refusal.value)
    assert not list((tmp_path / "work").glob("fetch-*"))
    fresh = RocksStore.open(tmp_path / "fresh")
    assert (list(fresh.scan()), fresh.position()) == ([], None)
    fresh.close()


def test_a_partition_without_a_snapshot(objects: Objects) -> None:
    assert objects.find("store", 1) is None


@pytest.mark.parametrize("uri", ["nowhere://bucket/prefix", "s3:", "ftp://host/x"])
def test_a_uri_that_is_none_is_refused_before_the_start(uri: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"state_snapshot={uri!r}")):
        Objects.open(uri, app="app", folder=tmp_path)


def test_a_failure_is_not_waited_for_again_by_each_partition(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def away(store: object, file: str) -> None:
        asked.append(file)
        raise obstore.exceptions.GenericError("503\n\nDebug source: …")

    monkeypatch.setattr(obstore, "get", away)
    for partition in range(3):
        with pytest.raises(SnapshotError, match="503"):
            objects.find("store", partition)
    assert len(asked) == 1


async def test_one_older_snapshot_is_kept_for_its_readers(versioned: Objects, store: RocksStore) -> None:
    folders = []
    for offset in range(10, 14):
        store.apply([], replace(AT, changelog_offset=offset))
        await write(versioned, Task(store))
        folders.append((await standing(versioned)).folder)
        assert sorted(await versioned.folders("store/partition-00000")) == sorted(folders[-2:])


async def test_what_a_killed_upload_left_is_deleted_by_a_later_owner(versioned: Objects, store: RocksStore) -> None:
    await obstore.put_async(versioned._store, "store/partition-00000/3-5-dead/000001.sst", b"half")
    await write(versioned, Task(store))
    assert "3-5-dead" not in await versioned.folders("store/partition-00000")


async def test_a_former_owner_replaces_no_newer_snapshot(versioned: Objects, store: RocksStore, tmp_path: Path) -> None:
    other = RocksStore.open(tmp_path / "newer")
    other.apply(ROWS.items(), replace(AT, epoch=4))
    await write(versioned, Task(other, epoch=4))
    newest = await standing(versioned)
    store.apply([], replace(AT, changelog_offset=1_000))
    await write(versioned, Task(store))
    assert await standing(versioned) == newest
    other.close()


async def test_a_former_owner_that_compared_before_the_newer_one_wrote_gives_up(
    versioned: Objects, store: RocksStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer owner's snapshot is written while the former one uploads; and the other way about."""
    other = RocksStore.open(tmp_path / "newer")
    other.apply(ROWS.items(), replace(AT, epoch=4))
    put, inner = versioned.put, [Task(other, epoch=4)]

    async def interrupted(file: str, source: Path) -> None:
        if inner:
            doing = replace_folder(versioned, tmp_path / "work2")
            await write(doing, inner.pop())
        await put(file, source)

    monkeypatch.setattr(versioned, "put", interrupted)
    await write(versioned, Task(store))
    assert (await standing(versioned)).position.epoch == 4
    store.apply([], replace(AT, epoch=5))
    other.apply([], replace(AT, epoch=4, changelog_offset=50))
    inner.append(Task(other, epoch=4))
    await write(versioned, Task(store, epoch=5))
    assert (await standing(versioned)).position.epoch == 5
    fresh = await begin(versioned, tmp_path / "fresh")
    assert dict(fresh.scan()) == ROWS
    for held in (fresh, other):
        held.close()


def replace_folder(objects: Objects, folder: Path) -> Objects:
    return Objects(objects.uri, objects._store, app=objects.app, folder=folder)


async def test_a_write_whose_reply_was_lost_counts(versioned: Objects, store: RocksStore) -> None:
    replaced = versioned.replace

    async def lost(file: str, raw: bytes, version: Any) -> bool:
        await replaced(file, raw, version)
        return False

    versioned.replace = lost  # type: ignore[method-assign]
    await write(versioned, Task(store))
    assert (await standing(versioned)).position == AT


async def test_an_app_that_was_begun_again_replaces_the_snapshot_of_its_former_topic(
    versioned: Objects, store: RocksStore
) -> None:
    await write(versioned, Task(store))
    again = replace(AT, epoch=1, changelog_offset=2, changelog_id="new", wall_time_ms=AT.wall_time_ms + 1)
    store.apply([], again)
    await write(versioned, Task(store, epoch=1))
    assert (await standing(versioned)).position == again


@pytest.mark.parametrize("loss", ["revoked", "fenced"])
async def test_a_task_that_loses_its_partition_ends_its_upload(
    versioned: Objects, store: RocksStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loss: str
) -> None:
    task, started = Task(store), asyncio.Event()

    async def endless(file: str, source: Path) -> None:
        started.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(versioned, "put", endless)
    upload = asyncio.create_task(write(versioned, task))
    await started.wait()
    if loss == "revoked":
        task.inbox.stopping = True
    else:
        task.epoch += 1
    await asyncio.wait_for(upload, 5)
    assert await versioned.read(MANIFEST) is None
    assert not (tmp_path / "work/checkpoint").exists()


async def test_a_snapshot_is_due_by_the_time_of_the_one_that_stands(
    versioned: Objects, store: RocksStore, caplog: pytest.LogCaptureFixture
) -> None:
    await write(versioned, Task(store))
    first = (await standing(versioned)).folder
    store.apply([], replace(AT, changelog_offset=10, epoch=4))
    made, task = writer(versioned, Task(store, epoch=4)), Task(store, epoch=4)
    await made._write_if_due(task, "store")  # type: ignore[arg-type]
    assert (await standing(versioned)).folder == first
    made._clock.now_ms += 60_000  # type: ignore[attr-defined]
    await made._write_if_due(task, "store")  # type: ignore[arg-type]
    assert (await standing(versioned)).folder != first


async def test_a_failed_upload_costs_one_line_and_no_disk(
    versioned: Objects, store: RocksStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: Any
) -> None:
    async def away(*_: Any, **__: Any) -> None:
        raise obstore.exceptions.PermissionDeniedError("the token expired\n\nDebug source: …")

    monkeypatch.setattr(obstore, "put_async", away)
    await write(versioned, Task(store))
    [record] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "no snapshot was written to " in record.getMessage()
    assert record.getMessage().endswith("the token expired")
    with suppress(FileNotFoundError):
        assert list((tmp_path / "work").iterdir()) == []


async def test_a_large_file_goes_in_parts_and_comes_back(versioned: Objects, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(2 * CHUNK_BYTES + 1_000))
    await versioned.put("store/file", source)
    table = SnapshotTable("file", source.stat().st_size, crc32(source), 0)
    await versioned.fetch("store/file", table, target)
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_mode & 0o077 == 0


async def test_a_worker_writes_until_it_stops(store: RocksStore, tmp_path: Path) -> None:
    """The extension as a worker calls it: leftovers of a killed process go, snapshots come, and stop with it."""
    place = (tmp_path / "bucket").as_uri()
    app = App(
        "app",
        broker="kafka://127.0.0.1:1",
        datadir=tmp_path,
        state_snapshot=place,
        state_snapshot_every=timedelta(seconds=0.1),
    )
    setup = Setup(app)
    setup.check_settings()
    extension = app.extensions["snapshots"]
    leftover = setup.folder / "snapshots/checkpoint/CURRENT"
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    await extension.start(SimpleNamespace(worker=SimpleNamespace(tasks=[Task(store)])))
    assert not leftover.exists()
    snapshots = setup.snapshots
    assert snapshots is not None
    await eventually(lambda: snapshots.find("store", 0) is not None)
    await extension.stop()
    await extension.stop()
    fresh = await begin(snapshots, tmp_path / "fresh")  # type: ignore[arg-type]
    assert dict(fresh.scan()) == ROWS
    fresh.close()
