"""Archives: each committed record once, whatever is killed; and what can't be gone on with is refused."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from spark_replay import (
    ArchiveError,
    LogTooShortError,
    ReadError,
    TargetError,
    UnknownTopicError,
    Wanted,
    WrongTopicError,
    archive,
    archive_topics,
    kafka,
    rebuild_state,
    write_rebuild,
)
from spark_replay.sources.archives import digested
from spark_replay.sources.archives.archive import ArchiveSource
from spark_replay.sources.archives.digested import write_digests
from stores._files import crc32
from tests.kafka.helpers import eventually, make_topics, read_all, send, unique
from tests.spark.helpers import (
    NOW_MS,
    PARTITIONS,
    Log,
    Transaction,
    append,
    cut_log,
    fold,
    put,
    random_transactions,
    write_log,
)
from tests.spark.sources.archives import ArchiveProcess, batches, covered, in_archive, in_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def processes() -> Iterator[list[ArchiveProcess]]:
    started: list[ArchiveProcess] = []
    yield started
    for process in started:
        process.kill()


def keep(spark: SparkSession, brokers: str, to: Path, *topics: str) -> ArchiveSource:
    archive_topics(spark, Wanted(brokers=brokers, topics=topics), to=to)
    return archive(spark, to, topics[0])


@pytest.fixture(scope="module")
def log(brokers: str) -> Log:
    return write_log(brokers, random_transactions(31, count=60, keys=40))


def test_changelogs_and_other_topics_run_after_run(spark: SparkSession, brokers: str, tmp_path: Path):
    log = write_log(brokers, random_transactions(30, count=40, keys=40))
    name = unique("input.of-app_1")
    asyncio.run(make_topics(brokers, name))
    records = [(None, b"no key"), (b"", b""), (b"gone", None), (b"\xff\x00", b"\x00")]
    for number in range(2):
        asyncio.run(send(brokers, name, records))
        asyncio.run(append(brokers, log, random_transactions(40 + number, count=20, keys=40)))
        pattern = re.compile(f"{log.topic}|{re.escape(name)}")
        done = archive_topics(spark, Wanted(brokers=brokers, pattern=pattern), to=tmp_path / "to")
        assert done.complete
        for topic in (log.topic, name):
            assert in_archive(archive(spark, tmp_path / "to", topic)) == in_topic(brokers, topic)
            assert done.topics[topic] == archive(spark, tmp_path / "to", topic).describe().ends
    # nothing new: nothing done
    again = archive_topics(spark, Wanted(brokers=brokers, pattern=pattern), to=tmp_path / "to")
    assert (again.batches, again.records, again.topics) == (0, 0, done.topics)


def test_only_files_of_finished_batches_count(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    source = keep(spark, brokers, tmp_path / "to", log.topic)
    [file, *_] = sorted((tmp_path / "to").glob("topic=*/day=*/*.parquet"))
    shutil.copy(file, file.with_name("part-of-a-killed-batch.parquet"))
    assert in_archive(source) == in_topic(brokers, log.topic)
    # without the list it would be read twice
    shutil.rmtree(tmp_path / "to" / "_spark_metadata")
    with pytest.raises(ArchiveError, match="has lost its _spark_metadata"):
        source.describe()
    twice = spark.read.parquet(str(tmp_path / "to")).count()
    assert twice > len(log.records)


@pytest.mark.nightly
def test_killed_in_a_batch_and_between_batches(
    spark: SparkSession,
    brokers: str,
    tmp_path: Path,
    processes: list[ArchiveProcess],
):
    log = write_log(brokers, random_transactions(32, count=30, keys=40))
    to = tmp_path / "to"

    def run() -> ArchiveProcess:
        processes.append(ArchiveProcess(brokers, log.topic, to, "--every", "500ms"))
        return processes[-1]

    def is_in_a_batch() -> bool:
        return bool(batches(to, "offsets") - batches(to, "commits") - {min(batches(to, "offsets"), default=0)})

    seen: set[int] = set()
    for number, in_a_batch in enumerate((True, False, True)):
        process, stop = run(), threading.Event()
        writer = threading.Thread(target=keep_writing, args=(brokers, log, 100 * number, stop))
        writer.start()
        try:
            finished = batches(to, "commits")
            process.wait_for(lambda done=finished: batches(to, "commits") - done, "finished batch")
            condition = is_in_a_batch if in_a_batch else lambda: not is_in_a_batch()
            process.wait_for(condition, "batch" if in_a_batch else "pause")
        finally:
            process.kill()
            stop.set()
            writer.join()
        seen |= batches(to, "offsets")
    assert archive_topics(spark, Wanted(brokers=brokers, topics=(log.topic,)), to=to).complete
    assert len(seen) >= 4, seen
    source = archive(spark, to, log.topic)
    assert in_archive(source) == in_topic(brokers, log.topic)
    assert collected(rebuild_state(source, as_of_ms=NOW_MS)) == {
        place: write.value for place, write in fold(log.records).items()
    }


def keep_writing(brokers: str, log: Log, seed: int, stop: threading.Event) -> None:
    for number in range(2000):
        if stop.wait(0.05):
            return
        asyncio.run(append(brokers, log, random_transactions(seed + number, count=3, keys=40)))


def collected(frame) -> dict:
    return {(row["partition"], bytes(row["key"])): bytes(row["value"]) for row in frame.collect()}


@pytest.mark.nightly
@pytest.mark.parametrize(("number", "group"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
def test_continuous_until_a_signal(
    spark: SparkSession,
    brokers: str,
    tmp_path: Path,
    processes: list[ArchiveProcess],
    number: int,
    group: bool,
):
    log = write_log(brokers, random_transactions(33, count=10, keys=40))
    to = tmp_path / "to"
    process = ArchiveProcess(brokers, log.topic, to, "--every", "1s")
    processes.append(process)
    process.wait_for(lambda: covered(spark, to, log.topic) >= sum(log.ends), "archive of what was there")
    asyncio.run(append(brokers, log, random_transactions(34, count=10, keys=40)))
    process.wait_for(lambda: covered(spark, to, log.topic) >= sum(log.ends), "archive of what came")
    with pytest.raises(TargetError, match=r"another run is archiving to .*/to"):
        keep(spark, brokers, to, log.topic)
    process.signal(number, group=group)
    result = process.result()
    assert (result["complete"], result["records"]) == (False, len(log.records))
    assert "up to 86,400 files a day" in process.log.read_text()
    assert in_archive(archive(spark, to, log.topic)) == in_topic(brokers, log.topic)


@pytest.mark.nightly
def test_compaction_after_archiving_takes_nothing(spark: SparkSession, brokers: str, tmp_path: Path):
    config = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.001"}
    log = write_log(brokers, [Transaction((put("a", "1"), put("b", "1"), put("c", "1")))], config=config)
    source = keep(spark, brokers, tmp_path / "to", log.topic)
    before = dict(enumerate(source.describe().ends))
    first = fold(log.records)
    asyncio.run(append(brokers, log, [Transaction((put("a", "2"), put("b", None), put("c", "2"), put("d", "1")))]))

    async def compacted() -> None:
        async def is_gone() -> bool:
            # each write makes a new segment, and the cleaner leaves the last one alone
            await append(brokers, log, [Transaction(tuple(put(name, "3") for name in "abcd"))])
            return all(record.value != b"1" for record in await read_all(brokers, log.topic))

        await eventually(is_gone, deadline_s=120, what="compaction")

    asyncio.run(compacted())
    keep(spark, brokers, tmp_path / "to", log.topic)
    point = "offset:" + ",".join(f"{number}={end}" for number, end in before.items())
    wanted = {place: write.value for place, write in first.items()}
    assert collected(rebuild_state(source, as_of=point)) == wanted
    assert collected(rebuild_state(kafka(spark, brokers, log.topic).after(source), as_of=point)) == wanted
    # the log alone doesn't have it any more
    assert collected(rebuild_state(kafka(spark, brokers, log.topic), as_of=point)) == {}


@pytest.mark.nightly
def test_joined_takes_what_both_hold_once(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    older = keep(spark, brokers, tmp_path / "to", log.topic)
    asyncio.run(append(brokers, log, random_transactions(35, count=10, keys=40)))
    joined = kafka(spark, brokers, log.topic).after(older)
    rows = joined.records(joined.describe()).collect()
    assert sorted((row["partition"], row["offset"]) for row in rows) == sorted(
        (write.partition, write.offset) for write in log.records
    )
    # and where the archive goes on meanwhile, too
    described = joined.describe()
    keep(spark, brokers, tmp_path / "to", log.topic)
    assert joined.records(described).count() == len(log.records)


def test_gap_between_archive_and_log(spark: SparkSession, brokers: str, tmp_path: Path):
    log = write_log(brokers, [Transaction(tuple(put(str(number), "1") for number in range(9)))])
    older = keep(spark, brokers, tmp_path / "to", log.topic)
    ends = older.describe().ends
    asyncio.run(append(brokers, log, [Transaction(tuple(put(str(number), "2") for number in range(9)))]))
    joined = kafka(spark, brokers, log.topic).after(older)
    # up to the archive's end nothing is missing
    asyncio.run(cut_log(brokers, log.topic, {1: ends[1]}))
    joined.describe()
    asyncio.run(cut_log(brokers, log.topic, {1: ends[1] + 1}))
    told = rf"{log.topic} partition 1: the archive .*ends at offset {ends[1]}, and .* log begins at {ends[1] + 1}"
    with pytest.raises(LogTooShortError, match=told):
        joined.describe()
    with pytest.raises(LogTooShortError, match=told):
        keep(spark, brokers, tmp_path / "to", log.topic)


def test_topic_that_was_made_anew(spark: SparkSession, brokers: str, tmp_path: Path):
    log = write_log(brokers, [Transaction((put("a", "1"),))])
    older = keep(spark, brokers, tmp_path / "to", log.topic)
    asyncio.run(make_anew(brokers, log.topic))
    with pytest.raises(WrongTopicError, match="re-created"):
        kafka(spark, brokers, log.topic).after(older).describe()
    with pytest.raises(WrongTopicError, match="re-created"):
        keep(spark, brokers, tmp_path / "to", log.topic)


async def make_anew(brokers: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=brokers)
    await admin.start()
    try:
        await admin.delete_topics([topic])

        async def is_gone() -> bool:
            return topic not in await admin.list_topics()

        await eventually(is_gone)
    finally:
        await admin.close()
    await make_topics(brokers, topic, partitions=PARTITIONS)


@pytest.mark.nightly
def test_topics_stay(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    keep(spark, brokers, tmp_path / "to", log.topic)
    other = write_log(brokers, [Transaction((put("a", "1"),))])
    with pytest.raises(TargetError, match=f"also has {log.topic}: an archive keeps its topics"):
        keep(spark, brokers, tmp_path / "to", other.topic)
    keep(spark, brokers, tmp_path / "to", log.topic, other.topic)
    for topic in (log.topic, other.topic):
        assert in_archive(archive(spark, tmp_path / "to", topic)) == in_topic(brokers, topic)


def test_folders_that_are_no_archive(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    (tmp_path / "mine").write_text("data")
    with pytest.raises(TargetError, match="has files that are no archive"):
        keep(spark, brokers, tmp_path, log.topic)
    with pytest.raises(TargetError, match="is no folder"):
        keep(spark, brokers, tmp_path / "mine", log.topic)
    with pytest.raises(ArchiveError, match="no archive in"):
        archive(spark, tmp_path / "none", log.topic).describe()
    keep(spark, brokers, tmp_path / "to", log.topic)
    with pytest.raises(UnknownTopicError, match=f"has no topic 'other', it has {log.topic}"):
        archive(spark, tmp_path / "to", "other").describe()
    shutil.rmtree(tmp_path / "to" / "_checkpoint")
    with pytest.raises(TargetError, match="has lost its _checkpoint"):
        keep(spark, brokers, tmp_path / "to", log.topic)


def test_topics_that_are_not_there(spark: SparkSession, brokers: str, tmp_path: Path):
    with pytest.raises(UnknownTopicError, match="has no topic no-such-topic"):
        keep(spark, brokers, tmp_path / "to", "no-such-topic")
    with pytest.raises(UnknownTopicError, match=r"has no topic that matches 'no-such-.'"):
        archive_topics(spark, Wanted(brokers=brokers, pattern=re.compile("no-such-.")), to=tmp_path / "to")


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def scramble(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def flip_in_the_rows(file: Path) -> None:
    flip(file, file.stat().st_size // 4)


def flip_in_the_footer(file: Path) -> None:
    flip(file, -100)


@pytest.fixture(scope="module")
def archived(spark: SparkSession, brokers: str, tmp_path_factory: pytest.TempPathFactory) -> ArchiveSource:
    """An archive for damage that is undone."""
    log = write_log(brokers, random_transactions(36, count=60, keys=40))
    return keep(spark, brokers, tmp_path_factory.mktemp("archived") / "to", log.topic)


@pytest.fixture
def archived_file(archived: ArchiveSource) -> Iterator[Path]:
    """A file of it, which is as it was afterwards; without Hadoop's own checksum, which would tell of damage too."""
    [file, *_] = sorted(Path(archived.where).glob("topic=*/day=*/*.parquet"))
    whole = file.read_bytes()
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    yield file
    file.write_bytes(whole)


@pytest.mark.parametrize(
    ("damage", "error", "told"),
    [
        (truncate, ArchiveError, r"\.parquet of the archive has \d+ bytes and was written with \d+"),
        (Path.unlink, ArchiveError, r"\.parquet of the archive can't be read: No such file"),
        (scramble, ArchiveError, r"\.parquet of the archive isn't what was written: its CRC-32"),
        (flip_in_the_rows, ArchiveError, r"\.parquet of the archive isn't what was written: its CRC-32"),
        (flip_in_the_footer, ArchiveError, r"\.parquet of the archive isn't what was written: its CRC-32"),
    ],
)
def test_damaged_file(
    archived: ArchiveSource,
    archived_file: Path,
    tmp_path: Path,
    damage: Callable[[Path], None],
    error: type[Exception],
    told: str,
):
    damage(archived_file)
    with pytest.raises(error, match=told):
        write_rebuild(archived, to=tmp_path / "rebuilt")
    assert not (tmp_path / "rebuilt").exists()


@pytest.mark.nightly
def test_checksums_of_pages_tell_of_damage_where_there_are_no_digests(
    spark: SparkSession, brokers: str, tmp_path: Path
):
    writes = [put(str(number), f"a value that isn't found again {number}" * 9) for number in range(200)]
    log = write_log(brokers, [Transaction(tuple(writes))])
    source = keep(spark, brokers, tmp_path / "to", log.topic)
    for digests in (tmp_path / "to").glob("topic=*/day=*/_digests"):
        digests.unlink()
    assert len(in_archive(source)) == 200
    [file, *_] = sorted((tmp_path / "to").glob("topic=*/day=*/*.parquet"))
    file.with_name(f".{file.name}.crc").unlink()
    flip_in_the_rows(file)
    with pytest.raises(ReadError, match=r"(?i)crc"):
        write_rebuild(source, to=tmp_path / "rebuilt")


@pytest.mark.nightly
def test_a_line_of_digests_that_a_killed_run_began(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    source = keep(spark, brokers, tmp_path / "to", log.topic)
    [file] = (tmp_path / "to").glob("topic=*/day=*/_digests")
    whole = file.read_text()
    file.write_text(whole[: len(whole) // 2])
    write_digests(source.files())
    assert digested._read(file.parent) == {
        path.name: (crc32(path), path.stat().st_size) for path in file.parent.glob("*.parquet")
    }


@pytest.mark.nightly
def test_damaged_lists(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    source = keep(spark, brokers, tmp_path / "to", log.topic)
    shutil.move(tmp_path / "to", tmp_path / "moved")
    with pytest.raises(ArchiveError, match="was written at another place"):
        archive(spark, tmp_path / "moved", log.topic).describe()
    shutil.move(tmp_path / "moved", tmp_path / "to")
    source.describe()
    for name in ("_spark_metadata/0", f"_offsets/{log.topic}.json"):
        file = tmp_path / "to" / name
        text = file.read_text()
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        file.write_text(text[:-20])
        with pytest.raises(ArchiveError, match=name.replace(".", r"\.")):
            source.describe()
        file.write_text(text)
