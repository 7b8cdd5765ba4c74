"""A state that is written into a new changelog: as it is, at a point, spread over other partitions, or corrected."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from click.testing import CliRunner, Result

from spark_replay import (
    AppError,
    PlacementError,
    PointError,
    ReadError,
    TargetError,
    Wanted,
    WrongTopicError,
    archive,
    archive_topics,
    kafka,
    publish_state,
    write_rebuild,
    write_snapshot,
)
from spark_replay.cli import main
from spark_replay.snapshot import publish as publishing
from spark_replay.snapshot.snapshot import require_store
from stores._core.record import METADATA_HEADER, decode_metadata
from stores._core.snapshot import SNAPSHOT_MANIFEST, decode_snapshot
from tests.documents import block
from tests.kafka.helpers import make_topics, producing, read_all, send
from tests.spark.helpers import PARTITIONS, Log, Transaction, Write, append, fold, home, put, write_log
from tests.spark.snapshot.test_snapshot import changelog, one_error, owners, source_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "tests.spark.snapshot.test_publish"


@pytest.fixture(scope="module")
def log(brokers: str) -> Log:
    return write_log(brokers, [Transaction((put("a", "1"), put("b", "2"), put("c", "3"), put("a", None)))])


def corrected(key: bytes, value: bytes) -> tuple[bytes, bytes] | None:
    """Leave out b, and change key and value of others."""
    return None if key == b"b" else (b"new-" + key, value * 2)


def failing(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    raise ValueError(f"no {value!r}")


def lossy(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    return b"same", value


def text(key: bytes, value: bytes) -> tuple[bytes, str]:
    return key, value.decode()


def published(brokers: str, topic: str) -> dict[tuple[int, bytes], tuple[bytes, tuple[int, int, int]]]:
    found = {}
    for record in asyncio.run(read_all(brokers, topic)):
        [(name, raw)] = record.headers
        assert name == METADATA_HEADER
        metadata = decode_metadata(raw)
        assert (record.partition, record.key) not in found
        found[record.partition, record.key] = (
            record.value,
            (metadata.epoch, metadata.source_offset, metadata.expires_at_ms),
        )
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("partitions", [None, 7])
def test_a_published_state(spark: SparkSession, brokers: str, tmp_path: Path, partitions: int | None):
    log = write_log(
        brokers,
        [t for t in owners(3, count=40) if all(w.headers is None and w.key for w in t.writes)],
        config={"cleanup.policy": "compact", "delete.retention.ms": "77000000", "max.message.bytes": "2000000"},
    )
    large = put("large", "x" * 1_500_000)
    asyncio.run(append_large(brokers, log, large))
    name = changelog("new")
    source, target = source_of(spark, brokers, log.topic), source_of(spark, brokers, name)
    done = publish_state(source, target, partitions=partitions)
    state = fold(log.records, as_of_ms=0)
    assert published(brokers, name) == {
        (home(key, partitions or PARTITIONS), key): (write.value, (0, 0, write.expires_at_ms))
        for (_, key), write in state.items()
    }
    with kafka(spark, brokers, name).asking() as admin:
        settings = admin.settings(name)
    assert settings.own == {
        "cleanup.policy": "compact",
        "delete.retention.ms": "77000000",
        "max.message.bytes": "2000000",
    }
    snapshot = write_snapshot(target, app="new", to=tmp_path)
    assert (snapshot.keys, done.keys) == (len(state), len(state))
    parts = decode_snapshot((tmp_path / require_store(name, "new") / SNAPSHOT_MANIFEST).read_text()).partitions
    assert len(parts) == (partitions or PARTITIONS)
    assert {(part.position.epoch, part.position.source_offset) for part in parts} == {(0, 0)}
    assert tuple(part.position.changelog_offset for part in parts) == target.describe().ends


async def append_large(brokers: str, log: Log, write: Write) -> None:
    async with producing(brokers, max_request_size=3_000_000) as producer:
        done = await producer.send_and_wait(
            log.topic, write.value, write.key, partition=write.partition, headers=write.wire_headers
        )
    log.records.append(replace(write, offset=done.offset))


@pytest.mark.nightly
def test_a_state_that_is_placed_otherwise_is_not_spread(spark: SparkSession, brokers: str):
    stray = replace(put("stray", "1"), partition=(home(b"stray") + 1) % PARTITIONS)
    log = write_log(brokers, [Transaction((stray, put("fine", "2")))])
    target = source_of(spark, brokers, changelog("new"))
    with pytest.raises(PlacementError, match=r"b'stray' in \d.*placement=\"task\""):
        publish_state(source_of(spark, brokers, log.topic), target, partitions=7)
    assert publish_state(source_of(spark, brokers, log.topic), target).keys == 2
    assert {key: partition for partition, key in published(brokers, target.topic)}[b"stray"] == stray.partition


@pytest.mark.nightly
def test_one_partition_does_not_show_how_keys_are_placed(spark: SparkSession, brokers: str):
    topic = changelog("app")
    asyncio.run(make_topics(brokers, topic, partitions=1))
    asyncio.run(send(brokers, topic, [(b"a", b"1"), (b"b", b"2")], partitions=1))
    source, target = source_of(spark, brokers, topic), source_of(spark, brokers, changelog("new"))
    with pytest.raises(PlacementError, match="add --placed-by-key"):
        publish_state(source, target, partitions=4)
    assert publish_state(source, target, partitions=4, layout="key").keys == 2


@pytest.mark.parametrize(
    ("partitions", "policy", "records", "text"),
    [
        (PARTITIONS, "compact", 1, "has, or had, records"),
        pytest.param(
            PARTITIONS + 1,
            "compact",
            0,
            f"has {PARTITIONS + 1} partitions, not {PARTITIONS}",
            marks=pytest.mark.nightly,
        ),
        pytest.param(PARTITIONS, "delete", 0, "has cleanup.policy=delete, not compact", marks=pytest.mark.nightly),
    ],
)
def test_a_topic_that_is_not_new(
    spark: SparkSession, brokers: str, log: Log, partitions: int, policy: str, records: int, text: str
):
    name = changelog("new")
    asyncio.run(make_topics(brokers, name, partitions=partitions, config={"cleanup.policy": policy}))
    asyncio.run(send(brokers, name, [(b"a", b"1")] * records, partitions=partitions))
    with pytest.raises(TargetError, match=text):
        publish_state(source_of(spark, brokers, log.topic), source_of(spark, brokers, name))


def test_a_changelog_that_is_written_to_meanwhile(spark: SparkSession, brokers: str, monkeypatch: pytest.MonkeyPatch):
    log = write_log(brokers, [Transaction((put("a", "1"),))])
    real = publishing._write

    def write(*args: object):
        real(*args)
        asyncio.run(append(brokers, log, [Transaction((put("a", "2"),))]))

    monkeypatch.setattr(publishing, "_write", write)
    # The broker may not have written the end of that transaction yet.
    texts = "(was written to while it was read|a transaction is open in .+): stop the app's workers"
    with pytest.raises(ReadError, match=texts):
        publish_state(source_of(spark, brokers, log.topic), source_of(spark, brokers, changelog("new")))


# --- points, archives, rebuilds, transforms -------------------------------------------------------------------------


def in_topic(brokers: str, topic: str) -> dict[bytes, bytes]:
    return {key: value for (_, key), (value, _) in published(brokers, topic).items()}


@pytest.mark.nightly
def test_a_point_an_archive_and_a_rebuild(spark: SparkSession, brokers: str, tmp_path: Path):
    log = write_log(brokers, [Transaction((put("a", "1", expires_at_ms=5), put("b", "2")))])
    point = "offset:" + ",".join(f"{number}={end}" for number, end in enumerate(log.ends))
    asyncio.run(append(brokers, log, [Transaction((put("d", "4"),))]))
    source = source_of(spark, brokers, log.topic)
    write_rebuild(source, to=tmp_path / "rebuilt", as_of=point, as_of_ms=0)
    archive_topics(spark, Wanted(brokers=brokers, topics=(log.topic,)), to=tmp_path / "archive")
    asyncio.run(append(brokers, log, [Transaction((put("e", "5"),))]))
    archived = archive(spark, tmp_path / "archive", log.topic)
    names = [changelog("new") for _ in range(4)]
    targets = [source_of(spark, brokers, name) for name in names]
    publish_state(source, targets[0], as_of=point)
    publish_state(archived, targets[1])
    publish_state(archived, targets[2], as_of=point, partitions=5)
    publish_state(source, targets[3], rebuild=tmp_path / "rebuilt")
    expected = {b"a": b"1", b"b": b"2"}
    assert [in_topic(brokers, name) for name in names] == [expected, expected | {b"d": b"4"}, expected, expected]
    assert {
        published(brokers, name)[home(b"a", count), b"a"][1] for name, count in zip(names, (3, 3, 5, 3), strict=True)
    } == {(0, 0, 5)}


@pytest.mark.nightly
def test_a_rebuild_that_outlived_its_changelog(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    lost = write_log(brokers, [Transaction((put("a", "1"),))])
    source, target = source_of(spark, brokers, lost.topic), source_of(spark, brokers, changelog("new"))
    write_rebuild(source, to=tmp_path / "rebuilt")
    asyncio.run(deleted(brokers, lost.topic))
    assert publish_state(source, target, rebuild=tmp_path / "rebuilt").partitions == PARTITIONS
    assert in_topic(brokers, target.topic) == {b"a": b"1"}
    with pytest.raises(WrongTopicError, match=f"a rebuild of {lost.topic}, not of {log.topic}"):
        publish_state(source_of(spark, brokers, log.topic), target, rebuild=tmp_path / "rebuilt")


async def deleted(brokers: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        await admin.delete_topics([topic])
    finally:
        await admin.close()


def test_keys_that_are_unknown_are_not_left_out_in_silence(spark: SparkSession, brokers: str):
    log = write_log(brokers, [Transaction((put("a", "1"),))], config={"cleanup.policy": "compact"})
    end = log.ends[home(b"a")]
    asyncio.run(append(brokers, log, [Transaction((put("x", "1"), put("y", "1"), put("z", "1"), put("x", "2")))]))
    source, target = source_of(spark, brokers, log.topic), source_of(spark, brokers, changelog("new"))
    point = f"offset:{home(b'x')}={end if home(b'x') == home(b'a') else 0}"
    with pytest.raises(PointError, match=r"unknown at the point is the state of \d keys?, written again later"):
        publish_state(source, target, as_of=point)


@pytest.mark.parametrize("partitions", [pytest.param(None, marks=pytest.mark.nightly), 7])
def test_a_transform(spark: SparkSession, brokers: str, log: Log, partitions: int | None):
    name = changelog("new")
    target = source_of(spark, brokers, name)
    done = publish_state(source_of(spark, brokers, log.topic), target, transform=corrected, partitions=partitions)
    assert (done.keys, done.left_out, done.size_bytes) == (1, 1, len("new-c33"))
    assert published(brokers, name) == {(home(b"new-c", partitions or PARTITIONS), b"new-c"): (b"33", (0, 0, 0))}


def test_the_transform_of_the_documentation(spark: SparkSession, brokers: str):
    correct = block("docs/how-to/snapshots.md", "A corrected state").run({})["correct"]
    writes = put('"ada"', '{"balance": -5}'), put('"test-1"', "{}")
    log, target = write_log(brokers, [Transaction(writes)]), source_of(spark, brokers, changelog("new"))
    assert publish_state(source_of(spark, brokers, log.topic), target, transform=correct).left_out == 1
    assert in_topic(brokers, target.topic) == {b'"ada"': b'{"balance": 0}'}


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (failing, r"the transform failed with the key [bc]: ValueError: no b'[23]'"),
        pytest.param(text, r"neither None nor \(key, value\), in bytes, for the key [bc]", marks=pytest.mark.nightly),
        pytest.param(lossy, "2 rows would have the key same in one partition", marks=pytest.mark.nightly),
    ],
)
def test_a_transform_that_cannot_be_used(spark: SparkSession, brokers: str, log: Log, transform, words: str):
    target = source_of(spark, brokers, changelog("new"))
    with pytest.raises(AppError, match=words):
        publish_state(source_of(spark, brokers, log.topic), target, transform=transform)


@pytest.mark.nightly
def test_a_record_that_the_new_topic_does_not_take(spark: SparkSession, brokers: str):
    log, name = write_log(brokers, [Transaction((put("a", "x" * 3000),))]), changelog("new")
    asyncio.run(
        make_topics(
            brokers, name, partitions=PARTITIONS, config={"cleanup.policy": "compact", "max.message.bytes": "2000"}
        )
    )
    target = source_of(spark, brokers, name)
    with pytest.raises(TargetError, match="a key has 3001 bytes with its value, more than the new topic's"):
        publish_state(source_of(spark, brokers, log.topic), target)
    assert in_topic(brokers, name) == {}


# --- the command ----------------------------------------------------------------------------------------------------


def run(*args: object) -> Result:
    return CliRunner().invoke(main, ["publish", *(str(arg) for arg in args)])


def test_the_command(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    name = changelog("new")
    rest = ["--brokers", brokers, "--changelog", log.topic, "--to", name, "--partitions", 5]
    tried = run(*rest, "--dry-run", "--transform", f"{NAME}:corrected")
    assert tried.exit_code == 0, tried.output
    counts = {"topic": name, "partitions": 5, "keys": 1, "size_bytes": 7, "left_out": 1, "refused": [], "notes": []}
    assert json.loads(tried.stdout) == counts
    result = run(*rest)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == counts | {"keys": 2, "size_bytes": 4, "left_out": 0}
    assert {place for place, _ in published(brokers, name)} == {home(b"b", 5), home(b"c", 5)}
    assert "has, or had, records" in one_error(run(*rest))


def test_a_dry_run_names_all_reasons(spark: SparkSession, brokers: str, log: Log):
    stray = replace(put("stray", "1"), partition=(home(b"stray") + 1) % PARTITIONS)
    old, name = write_log(brokers, [Transaction((stray,))]), changelog("new")
    asyncio.run(make_topics(brokers, name, partitions=PARTITIONS, config={"cleanup.policy": "delete"}))
    result = run("--brokers", brokers, "--changelog", old.topic, "--to", name, "--partitions", 4, "--dry-run", "--json")
    content = json.loads(result.stdout)
    assert (result.exit_code, content["exit_code"], content["totals"]["keys"]) == (2, 2, 1)
    reasons = content["totals"]["refused"]
    assert [
        word
        for word in ("partitions, not 4", "cleanup.policy=delete", "other partitions than murmur2")
        if not any(word in reason for reason in reasons)
    ] == []
    assert len(reasons) == 3
    assert content["error"] == "; ".join(reasons)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--archive", "x"], "a topic is written to brokers: give --to-brokers"),
        (["--brokers", "127.0.0.1:1", "--archive", "x", "--rebuild", "y"], "--rebuild goes without --archive"),
        (["--brokers", "127.0.0.1:1", "--as-of", "offset:0=1", "--rebuild", "y"], "it has a point of its own"),
    ],
)
def test_wrong_usage(words: list[str], told: str):
    assert told in one_error(run("--changelog", "a--b-changelog", "--to", "c--b-changelog", *words))


def test_other_names(spark: SparkSession, brokers: str, log: Log):
    rest = ["--brokers", brokers, "--changelog", log.topic, "--to"]
    assert "nonsense isn't the name of a changelog" in one_error(run(*rest, "nonsense"))
    assert "there is no such function" in one_error(run(*rest, changelog("new"), "--transform", f"{NAME}:missing"))
    assert "can't be imported" in one_error(run(*rest, changelog("new"), "--transform", "missing_module:f"))
