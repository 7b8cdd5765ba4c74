"""Rebuilds, snapshots and reports in S3, by moto's server: two writers, killed ones, lost and cut objects."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from actors.snapshots.objects import Objects
from spark_replay import (
    ExportError,
    ReadError,
    ReplayError,
    TargetError,
    kafka,
    read_rebuild,
    validate_exports,
    write_rebuild,
)
from spark_replay.cli import main
from spark_replay.fold import extending
from spark_replay.fold import rebuild as writing
from spark_replay.fold.rebuilt import SUMMARY, read_summary
from spark_replay.report.html import GENERATOR, require_page, write_page
from spark_replay.snapshot.snapshot import require_store, write_snapshot
from spark_replay.sources.folders import Folder, open_target
from stores._core.snapshot import SNAPSHOT_MANIFEST, decode_snapshot
from stores.errors import SnapshotError
from stores.memory import MemoryStore
from tests.kafka.helpers import ROOT
from tests.spark.cli.test_cli import QUICK
from tests.spark.cli.test_killed_driver import PROGRAM
from tests.spark.comparison.test_live import Server
from tests.spark.comparison.test_watching import Watched
from tests.spark.damage import NEW, Worker, by, extend, named_log, two_owners
from tests.spark.fold.test_extending import MemorySource, plain_log, point, rows
from tests.spark.helpers import NOW_MS, PARTITIONS, Transaction, append, put, write_log
from tests.spark.snapshot.test_snapshot import owners, restored
from tests.spark.sources.object_storage import KEY, LATE, Refusal, Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    # moto's and botocore's own
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def log(spark: SparkSession) -> MemorySource:
    return plain_log(spark, random.Random(5))


@pytest.fixture(scope="module")
def middle(log: MemorySource) -> str:
    return point([end * 3 // 4 for end in log.ends])


@pytest.fixture(scope="module")
def state(spark: SparkSession, log: MemorySource, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The rows of the log's state, by a rebuild to a folder."""
    folder = tmp_path_factory.mktemp("state") / "rebuilt"
    write_rebuild(log, to=folder, as_of_ms=NOW_MS)
    return rows(spark, folder)


@pytest.fixture
def to(bucket: str) -> str:
    return f"s3a://{bucket}/the/rebuilt"


def attempts(storage: Storage, bucket: str) -> set[str]:
    """The folders of runs."""
    return {name.split("/files-")[1][:32] for name in storage.names(bucket) if "/files-" in name}


def change(storage: Storage, bucket: str, key: str, content: Callable[[bytes], bytes] | None) -> None:
    """Change an object, or delete it."""
    raw = storage.client.get_object(Bucket=bucket, Key=key)["Body"].read()
    if content is None:
        storage.client.delete_object(Bucket=bucket, Key=key)
    else:
        storage.client.put_object(Bucket=bucket, Key=key, Body=content(raw))


def flipped(raw: bytes) -> bytes:
    return raw[: len(raw) // 2] + bytes([raw[len(raw) // 2] ^ 1]) + raw[len(raw) // 2 + 1 :]


def newer(raw: bytes) -> bytes:
    return json.dumps(json.loads(raw) | {"version": 2, "format": 2}).encode()


@pytest.mark.nightly
def test_a_rebuild_and_its_tail_in_a_bucket(
    spark: SparkSession,
    storage: Storage,
    to: str,
    log: MemorySource,
    middle: str,
    state: list[Any],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(extending, "LARGEST_SHARE", 0)
    write_rebuild(log, to=to, as_of=middle, as_of_ms=NOW_MS)
    done = write_rebuild(log, to=to, as_of_ms=NOW_MS, base=to, overwrite=True)
    assert (len(done.layers), done.made_from) == (2, to)
    assert rows(spark, to) == state
    names = storage.names(to.split("/")[2])
    assert not any("_SUCCESS" in name or "_temporary" in name for name in names)
    assert {name.split("/")[2][:6] for name in names} == {"files-", SUMMARY[:6]}
    assert not Path("s3a:").exists()


@pytest.mark.nightly
def test_a_watch_keeps_its_state_in_a_bucket(spark: SparkSession, brokers: str, to: str, tmp_path: Path):
    log = named_log(brokers, {"cleanup.policy": "compact"})
    extend(brokers, log, *two_owners())
    worker = Worker.of(log, tmp_path / "data", log.ends)
    server = Server(worker)
    with worker.closing:
        watched = Watched(kafka(spark, brokers, log.topic), log, server, to)
        assert watched.compare().is_clean
        watched.write(brokers, by(NEW, 60, "fine-1", "since"))
        report = watched.compare()
        assert (report.is_clean, report.notes, report.records) == (True, (), 1)
        assert read_summary(Folder(spark, to)).made_from == to
        watched.workers.close()
        server.close()


@pytest.mark.nightly
def test_from_one_storage_to_another(
    spark: SparkSession,
    to: str,
    log: MemorySource,
    middle: str,
    state: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(extending, "LARGEST_SHARE", 0)
    write_rebuild(log, to=to, as_of=middle, as_of_ms=NOW_MS)
    for other in (f"{to}-other", tmp_path / "here"):
        done = write_rebuild(log, to=other, as_of_ms=NOW_MS, base=to)
        assert (len(done.layers), done.made_from) == (1, to)
        assert rows(spark, other) == state
    write_rebuild(log, to=f"{to}-back", as_of_ms=NOW_MS + 1, base=tmp_path / "here")
    there, here = (validate_exports(log, against=side, base=to) for side in (f"{to}-other", tmp_path / "here"))
    assert there.counts == here.counts
    assert there.counts["equal"]
    with pytest.raises(ExportError, match=r"is a rebuild of app--store-changelog, not of app--other-changelog"):
        validate_exports(MemorySource(spark, log.log, log.ends, topic="app--other-changelog"), against=to)


@pytest.mark.nightly
def test_a_rebuild_is_replaced_by_its_own_command_only(
    spark: SparkSession, storage: Storage, bucket: str, to: str, log: MemorySource, state: list[Any]
):
    write_rebuild(log, to=to, as_of_ms=NOW_MS)
    before = storage.names(bucket)
    with pytest.raises(TargetError, match=r"s3a://.*/the/rebuilt exists: choose another folder, or replace it with"):
        write_rebuild(log, to=to, as_of_ms=NOW_MS)
    assert storage.names(bucket) == before
    for _ in range(3):
        write_rebuild(log, to=to, as_of_ms=NOW_MS, overwrite=True)
        # that of readers which began before
        assert len(attempts(storage, bucket)) == 2
    assert rows(spark, to) == state


@pytest.mark.nightly
@pytest.mark.parametrize("overwrite", [False, True])
def test_of_two_writers_one_is_refused(
    spark: SparkSession,
    to: str,
    log: MemorySource,
    middle: str,
    state: list[Any],
    overwrite: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    if overwrite:
        write_rebuild(log, to=to, as_of=middle, as_of_ms=NOW_MS)
    text = r"another run wrote to s3a://.*/the/rebuilt first: what this one wrote doesn't count"
    with open_target(spark, to, SUMMARY, "rebuild", overwrite=overwrite) as target:
        write_rebuild(log, to=to, as_of_ms=NOW_MS, overwrite=overwrite)
        with pytest.raises(TargetError, match=text):
            target.finish("{}")
    assert rows(spark, to) == state
    real, write = writing.write_layer, write_rebuild

    def late(*args: Any, **options: Any) -> Any:
        """Write, while another run begins and ends, which removes what is written here."""
        monkeypatch.setattr(writing, "write_layer", real)
        Folder(spark, to).create(f"{args[2].folder}/begun", "")
        write(log, to=to, as_of_ms=NOW_MS, overwrite=True)
        return real(*args, **options)

    monkeypatch.setattr(writing, "write_layer", late)
    with pytest.raises(TargetError, match=text):
        write_rebuild(log, to=to, as_of=middle, as_of_ms=NOW_MS, overwrite=True)
    assert rows(spark, to) == state


@pytest.mark.nightly
def test_lost_cut_and_changed_objects(spark: SparkSession, storage: Storage, bucket: str, to: str, log: MemorySource):
    write_rebuild(log, to=to, as_of_ms=NOW_MS)
    file = next(name for name in storage.names(bucket) if name.endswith(".parquet"))
    summary = f"the/rebuilt/{SUMMARY}"
    for key, content, message in (
        (file, flipped, r"parquet of the rebuild isn't what was written"),
        (file, lambda raw: raw[:-20], r"parquet of the rebuild isn't what was written"),
        (file, None, r"parquet is missing from the rebuild"),
        (summary, lambda raw: raw[:-20], rf"is no rebuild: its {SUMMARY} can't be read"),
        (summary, None, rf"is no rebuild: its {SUMMARY} can't be read"),
        (summary, newer, r"is a rebuild of format 2, this release reads format 1"),
    ):
        whole = storage.client.get_object(Bucket=bucket, Key=key)["Body"].read()
        change(storage, bucket, key, content)
        with pytest.raises(ReadError, match=message):
            read_rebuild(spark, to)
        with pytest.raises(ReadError, match=message):
            write_rebuild(log, to=f"{to}-other", as_of_ms=NOW_MS, base=to)
        with pytest.raises(ReadError, match=message):
            validate_exports(log, against=to)
        storage.client.put_object(Bucket=bucket, Key=key, Body=whole)
    read_rebuild(spark, to)


@pytest.mark.nightly
def test_a_throttled_server_is_waited_for(
    spark: SparkSession, storage: Storage, bucket: str, to: str, log: MemorySource, state: list[Any]
):
    count = itertools.count()
    with storage.refusing(lambda method, path: (503, "SlowDown") if next(count) % 4 == 0 else None):
        write_rebuild(log, to=to, as_of_ms=NOW_MS)
        assert rows(spark, to) == state
    assert any(status == 503 for _, path, status in storage.requests if bucket in path)


@pytest.mark.nightly
@pytest.mark.parametrize("suffix", [".parquet", ".json"])
def test_credentials_that_end_while_a_rebuild_is_written(
    spark: SparkSession,
    storage: Storage,
    bucket: str,
    to: str,
    log: MemorySource,
    middle: str,
    state: list[Any],
    suffix: str,
):
    write_rebuild(log, to=to, as_of_ms=NOW_MS)

    def expire(method: str, path: str) -> Refusal:
        return (403, "ExpiredToken") if method == "PUT" and path.endswith(suffix) else None

    with storage.refusing(expire), pytest.raises(ReplayError, match=r"ExpiredToken|403"):
        write_rebuild(log, to=to, as_of=middle, as_of_ms=NOW_MS, overwrite=True)
    assert rows(spark, to) == state
    write_rebuild(log, to=to, as_of_ms=NOW_MS, overwrite=True)
    assert rows(spark, to) == state
    # what the failed run left is gone
    assert len(attempts(storage, bucket)) == 2


@pytest.mark.nightly
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_summary_whose_answer_was_lost_counts(
    spark: SparkSession, storage: Storage, to: str, log: MemorySource, middle: str, state: list[Any], overwrite: bool
):
    if overwrite:
        write_rebuild(log, to=to, as_of=middle, as_of_ms=NOW_MS)
    puts = 0

    def lose(method: str, path: str) -> Refusal:
        nonlocal puts
        is_summary = method == "PUT" and path.endswith(SUMMARY)
        puts += is_summary
        return (LATE, "InternalError") if is_summary and puts == 1 else None

    with storage.refusing(lose):
        write_rebuild(log, to=to, as_of_ms=NOW_MS, overwrite=overwrite)
    assert puts == 2
    assert rows(spark, to) == state


@pytest.mark.nightly
def test_no_bucket(spark: SparkSession, storage: Storage, log: MemorySource, tmp_path: Path):
    with pytest.raises(TargetError, match="s3a://no-such-bucket"):
        write_rebuild(log, to="s3a://no-such-bucket/to", as_of_ms=NOW_MS)
    with pytest.raises(ReadError, match="s3a://no-such-bucket"):
        read_rebuild(spark, "s3a://no-such-bucket/to")
    with pytest.raises(ReadError, match="s3a://no-such-bucket"):
        write_rebuild(log, to=tmp_path / "to", as_of_ms=NOW_MS, base="s3a://no-such-bucket/to")
    with pytest.raises(ReadError, match="s3a://no-such-bucket"):
        validate_exports(log, against="s3a://no-such-bucket/to")
    with pytest.raises(TargetError, match="s3a://no-such-bucket"):
        write_snapshot(kafka(spark, "127.0.0.1:1", log.topic), app="app", to="s3a://no-such-bucket/to")
    with pytest.raises(TargetError, match="s3a://no-such-bucket"):
        require_page("s3a://no-such-bucket/report.html")


STEPS = (
    "spark_replay.fold.rebuilt.write_files",
    "spark_replay.fold.rebuilt.require_same",
    "spark_replay.sources.folders.Folder.create",
)


@pytest.mark.nightly
def test_a_driver_that_is_killed(spark: SparkSession, brokers: str, storage: Storage, bucket: str, to: str):
    log = write_log(brokers, [Transaction((put("a", "old"),))])
    write_rebuild(kafka(spark, brokers, log.topic), to=to)
    asyncio.run(append(brokers, log, [Transaction((put("a", "new"), put("b", "new")))]))
    command = ["rebuild", "--brokers", brokers, "--changelog", log.topic, "--to", to, "--overwrite"]
    settings = [f"spark.hadoop.{name}={value}" for name, value in storage.settings.items()]
    options = [part for setting in (QUICK, *settings) for part in ("--spark-option", setting)]
    for step in STEPS:
        words = [sys.executable, "-c", PROGRAM, str(int(signal.SIGKILL)), step, *command, *options]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, timeout=200)
        assert done.returncode == -signal.SIGKILL, (step, done.stderr)
        assert [bytes(row["value"]) for row in read_rebuild(spark, to).collect()] == [b"old"], step
    assert len(attempts(storage, bucket)) == 3
    assert CliRunner().invoke(main, command).exit_code == 0
    assert [bytes(row["value"]) for row in read_rebuild(spark, to).collect()] == [b"new", b"new"]
    assert len(attempts(storage, bucket)) == 2


@pytest.mark.nightly
def test_workers_start_from_a_snapshot_in_a_bucket(
    spark: SparkSession,
    brokers: str,
    storage: Storage,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    log = write_log(brokers, owners(7, count=60))
    source, to = kafka(spark, brokers, log.topic), f"s3a://{bucket}/all"
    for overwrite in (False, True, True):
        done = write_snapshot(source, app="app", to=to, overwrite=overwrite)
    store = require_store(log.topic, "app")
    assert done.folder == f"{to}/{store}"
    assert len(attempts(storage, bucket)) == 2
    with pytest.raises(TargetError, match=r"exists: choose another folder"):
        write_snapshot(source, app="app", to=to)
    for name, value in (
        ("AWS_ENDPOINT_URL", storage.url),
        ("AWS_ACCESS_KEY_ID", KEY),
        ("AWS_SECRET_ACCESS_KEY", KEY),
        ("AWS_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    objects = Objects.open(f"s3://{bucket}/all", app="app", folder=tmp_path / "fetched")

    async def content(number: int) -> list[tuple[bytes, bytes]]:
        snapshot = objects.find(store, number)
        assert snapshot is not None
        async with snapshot.fetched() as fetched:
            return list(fetched.rows())

    for number in range(PARTITIONS):
        by_log, _ = restored(log, number, source.describe().topic_id, store=MemoryStore())
        assert asyncio.run(content(number)) == list(by_log.store.scan())
    with pytest.raises(SnapshotError, match="app"):
        Objects.open(f"s3://{bucket}/all", app="other", folder=tmp_path / "fetched").find(store, 0)
    manifest = f"all/{store}/{SNAPSHOT_MANIFEST}"
    part = next(
        part
        for part in decode_snapshot(storage.client.get_object(Bucket=bucket, Key=manifest)["Body"].read()).partitions
        if part.tables
    )
    table = f"all/{store}/{part.folder}/{part.tables[0].file}"
    for key, damage, text in ((table, flipped, "damaged"), (table, None, "missing"), (manifest, newer, "format 2")):
        whole = storage.client.get_object(Bucket=bucket, Key=key)["Body"].read()
        change(storage, bucket, key, damage)
        with pytest.raises(SnapshotError, match=text):
            asyncio.run(content(part.partition))
        storage.client.put_object(Bucket=bucket, Key=key, Body=whole)
    assert asyncio.run(content(part.partition))


@pytest.mark.nightly
def test_a_report_in_a_bucket(spark: SparkSession, brokers: str, storage: Storage, bucket: str):
    log = write_log(brokers, [Transaction((put("a", "old"),))])
    page = f"s3a://{bucket}/reports/audit.html"
    command = ["validate", "--brokers", brokers, "--changelog", log.topic, "--invariants", "--html", page]
    for _ in range(2):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, result.output
    assert GENERATOR.encode() in storage.client.get_object(Bucket=bucket, Key="reports/audit.html")["Body"].read()
    storage.client.put_object(Bucket=bucket, Key="reports/audit.html", Body=b"<html>my thesis</html>")
    for call in (require_page, lambda where: write_page(where, "page")):
        with pytest.raises(TargetError, match=r"s3a://.*audit.html exists and is no report"):
            call(page)
