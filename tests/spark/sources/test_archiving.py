"""Archives: each committed record once, whatever is killed; and what can't be gone on with is refused."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from spark_replay import (
    ArchiveError,
    LogTooShortError,
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
from spark_replay.archiving import _Run
from spark_replay.sources.archives.archive import ArchiveSource
from spark_replay.sources.archives.manifest import ArchiveFile, Manifest, decode_entry, encode_entry, read_manifest
from spark_replay.sources.archives.verification import digests_of, require_sound
from spark_replay.sources.folders import Folder
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
from tests.spark.sources.archives import ArchiveProcess, attempts, batches, covered, data_files, in_archive, in_topic

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


def test_only_files_that_the_manifest_names_count(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    to = tmp_path / "to"
    source = keep(spark, brokers, to, log.topic)
    [file, *_] = data_files(to)
    left = [file.with_name("part-of-a-killed-batch.parquet"), to / "data" / f"{0:08}-{'0' * 32}" / file.name]
    planned = to / "data" / f"{1:08}-{'0' * 32}" / file.name
    for path in (*left, planned):
        path.parent.mkdir(exist_ok=True)
        shutil.copy(file, path)
    assert in_archive(source) == in_topic(brokers, log.topic)
    [doubt] = source.doubts(source.describe().ends)
    assert all(path.relative_to(to).as_posix() in doubt for path in left)
    lines: list[str] = []
    archive_topics(spark, Wanted(brokers=brokers, topics=(log.topic,)), to=to, tell=lines.append)
    # another run may still name what it wrote for the next batch
    assert ([path.exists() for path in left], planned.exists()) == ([False, False], True)
    assert any("that its manifest doesn't name" in line for line in lines)
    assert in_archive(source) == in_topic(brokers, log.topic)
    shutil.rmtree(to / "_manifest")
    with pytest.raises(ArchiveError, match="has lost its _manifest"):
        source.describe()


def test_small_files_are_rewritten_and_older_readers_go_on(spark: SparkSession, brokers: str, tmp_path: Path):
    log = write_log(brokers, random_transactions(38, count=20, keys=40))
    to, wanted = tmp_path / "to", Wanted(brokers=brokers, topics=(log.topic,))
    for number in range(3):
        asyncio.run(append(brokers, log, random_transactions(50 + number, count=20, keys=40)))
        archive_topics(spark, wanted, to=to)
    source = archive(spark, to, log.topic)
    before = source.describe()
    reader, many = source.records(before), data_files(to)
    lines: list[str] = []
    archive_topics(spark, wanted, to=to, compact=True, tell=lines.append)
    assert f"rewrote {len(many)} files as {PARTITIONS}" in lines
    assert source.describe() == before
    assert len(source.manifest().files) == PARTITIONS
    assert in_archive(source) == in_topic(brokers, log.topic)
    # one that began before, and one that has read the older manifest
    assert reader.count() == len(log.records)
    # nothing is left to do, and what was replaced goes after a day
    archive_topics(spark, wanted, to=to, compact=True)
    assert len(source.manifest().files) == PARTITIONS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_replay.archiving._KEEP_MS", 0)
        archive_topics(spark, wanted, to=to)
    assert [path.relative_to(to).as_posix() for path in data_files(to)] == sorted(source.manifest().files)
    asyncio.run(append(brokers, log, random_transactions(59, count=5, keys=40)))
    archive_topics(spark, wanted, to=to)
    assert in_archive(source) == in_topic(brokers, log.topic)


def test_a_tail_reads_only_its_files(spark: SparkSession, brokers: str, tmp_path: Path):
    log = write_log(brokers, random_transactions(39, count=20, keys=40))
    to, wanted = tmp_path / "to", Wanted(brokers=brokers, topics=(log.topic,))
    archive_topics(spark, wanted, to=to)
    old, first = data_files(to), archive(spark, to, log.topic).describe().ends
    asyncio.run(append(brokers, log, random_transactions(60, count=5, keys=40)))
    archive_topics(spark, wanted, to=to)
    source = archive(spark, to, log.topic)
    tail = replace(source.describe(), starts=first)
    # what isn't read isn't looked into either
    for file in old:
        file.write_bytes(bytes(file.stat().st_size))
    rows = source.records(tail).collect()
    assert sorted((row["partition"], row["offset"]) for row in rows) == sorted(
        (write.partition, write.offset) for write in log.records if write.offset >= first[write.partition]
    )
    within = replace(tail, starts=tuple(start + 2 for start in first), ends=tuple(start + 5 for start in first))
    rows = source.records(within).collect()
    assert sorted((row["partition"], row["offset"]) for row in rows) == sorted(
        (write.partition, write.offset)
        for write in log.records
        if first[write.partition] + 2 <= write.offset < first[write.partition] + 5
    )
    with pytest.raises(ArchiveError, match=rf"{log.topic} partition \d, offsets \d+ to \d+\) of .* isn't what was"):
        source.records(source.describe())


def test_a_time_is_looked_for_in_one_file_of_each_partition(spark: SparkSession, brokers: str, tmp_path: Path):
    log = write_log(brokers, [])
    to, wanted = tmp_path / "to", Wanted(brokers=brokers, topics=(log.topic,))
    for number in range(3):
        writes = (put(str(key), "x", timestamp_ms=NOW_MS + 1000 * number + key) for key in range(30))
        asyncio.run(append(brokers, log, [Transaction(tuple(writes))]))
        archive_topics(spark, wanted, to=to)
    source = archive(spark, to, log.topic)
    topic = source.describe()
    for file in source.manifest().files.values():
        if not NOW_MS + 1000 <= file.latest_ms < NOW_MS + 2000:
            (to / file.name).write_bytes(bytes(file.bytes))
    records = log.records
    wanted_offsets = tuple(
        min(w.offset for w in records if w.partition == number and w.timestamp_ms >= NOW_MS + 1015)
        for number in range(PARTITIONS)
    )
    assert source.offsets_at(topic, NOW_MS + 1015) == wanted_offsets
    assert source.offsets_at(topic, NOW_MS + 9999) == topic.ends
    narrow = replace(topic, ends=wanted_offsets)
    assert source.offsets_at(narrow, NOW_MS + 1015) == wanted_offsets


def test_of_two_writers_one_is_refused(spark: SparkSession, brokers: str, log: Log, tmp_path: Path):
    to = tmp_path / "to"
    folder, wanted = Folder(spark, to), Wanted(brokers=brokers, topics=(log.topic,))
    slow = _Run(spark, wanted, folder, threading.Event(), lambda line: None)
    slow.begin()
    keep(spark, brokers, to, log.topic)
    with pytest.raises(TargetError, match=r"another run is archiving to .*/to: it wrote batch 0 first"):
        slow.catch_up()
    source = archive(spark, to, log.topic)
    assert in_archive(source) == in_topic(brokers, log.topic)
    keep(spark, brokers, to, log.topic)
    assert len(list((to / "data").iterdir())) == 1


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
        return bool(attempts(to) - batches(to) - {0})

    seen: set[int] = set()
    for number, in_a_batch in enumerate((True, False, True)):
        process, stop = run(), threading.Event()
        writer = threading.Thread(target=keep_writing, args=(brokers, log, 100 * number, stop))
        writer.start()
        try:
            finished = batches(to)
            process.wait_for(lambda done=finished: batches(to) - done, "finished batch")
            condition = is_in_a_batch if in_a_batch else lambda: not is_in_a_batch()
            process.wait_for(condition, "batch" if in_a_batch else "pause")
        finally:
            process.kill()
            stop.set()
            writer.join()
        seen |= attempts(to)
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
    with pytest.raises(TargetError, match=r"another run is writing to .*/to"):
        keep(spark, brokers, to, log.topic)
    process.signal(number, group=group)
    result = process.result()
    assert (result["complete"], result["records"]) == (False, len(log.records))
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
    """A file of it, which is as it was afterwards."""
    [file, *_] = data_files(Path(archived.where))
    whole = file.read_bytes()
    yield file
    file.write_bytes(whole)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, r"has \d+ bytes and was written with \d+"),
        (Path.unlink, r"the archive .* has lost data/"),
        (scramble, r"isn't what was written: its digest is"),
        pytest.param(flip_in_the_rows, r"isn't what was written: its digest is", marks=pytest.mark.nightly),
        pytest.param(flip_in_the_footer, r"isn't what was written: its digest is", marks=pytest.mark.nightly),
    ],
)
def test_damaged_file(
    archived: ArchiveSource, archived_file: Path, tmp_path: Path, damage: Callable[[Path], None], message: str
):
    damage(archived_file)
    with pytest.raises(ArchiveError, match=message) as error:
        write_rebuild(archived, to=tmp_path / "rebuilt")
    assert re.search(rf"{archived.topic} partition \d, offsets \d+ to \d+", str(error.value))
    assert not (tmp_path / "rebuilt").exists()


def test_a_command_reads_the_manifest_once(archived: ArchiveSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    reads: list[Folder] = []

    def read(folder: Folder) -> Manifest:
        reads.append(folder)
        return read_manifest(folder)

    monkeypatch.setattr("spark_replay.sources.archives.archive.read_manifest", read)
    write_rebuild(archived, to=tmp_path / "rebuilt")
    assert len(reads) == 1


@pytest.mark.nightly
def test_a_damaged_or_lost_entry_of_the_manifest(spark: SparkSession, brokers: str, tmp_path: Path):
    log = write_log(brokers, random_transactions(40, count=10, keys=40))
    to = tmp_path / "to"
    for number in range(3):
        asyncio.run(append(brokers, log, random_transactions(70 + number, count=5, keys=40)))
        keep(spark, brokers, to, log.topic)
    source, name = archive(spark, to, log.topic), "_manifest/000000000001.json"
    # an archive may be moved
    shutil.move(to, tmp_path / "moved")
    assert in_archive(archive(spark, tmp_path / "moved", log.topic)) == in_topic(brokers, log.topic)
    shutil.move(tmp_path / "moved", to)
    file = to / name
    text = file.read_text()
    first, _ = decode_entry((to / "_manifest/000000000000.json").read_text())
    entry, _ = decode_entry(text)
    [part, *_] = entry.files.values()
    again = encode_entry(replace(entry, made_ms=0), first)
    line = text.partition("\n")[0].replace('"format": 1', '"format": 2')
    newer = f"{line}\n{zlib.crc32(line.encode()):08x}\n"
    hole = encode_entry(replace(entry, ledgers={}, files={}), first)
    twice = encode_entry(
        replace(
            entry, files=entry.files | {"data/other": replace(part, name="data/other", first=part.last, records=1)}
        ),
        first,
    )
    for damaged, message in (
        (text[:-20], "its CRC-32 is"),
        (text.replace('"records"', '"recordz"'), "its CRC-32 is"),
        (again, "doesn't follow the entry before"),
        (newer, "of format 2, this release reads format 1"),
        (hole, "has a hole between the offsets"),
        (twice, rf"overlap: both have offset {part.last}"),
        (None, "No such file"),
    ):
        file.unlink()
        if damaged is not None:
            file.write_text(damaged)
            # the entry behind it follows whatever is there
            _follow(to, 2, damaged if damaged in (hole, twice) else text)
        with pytest.raises(ArchiveError, match=rf"_manifest/.*{message}"):
            source.describe()
        file.write_text(text)
        _follow(to, 2, text)
    assert in_archive(source) == in_topic(brokers, log.topic)


def _follow(to: Path, number: int, before: str) -> None:
    file = to / f"_manifest/{number:012}.json"
    previous, _ = decode_entry(before)
    entry, _ = decode_entry(file.read_text())
    file.write_text(encode_entry(entry, previous))


def test_files_of_one_size_that_changed_places(spark: SparkSession, tmp_path: Path):
    folder, contents = Folder(spark, tmp_path), {"data/0-a/one": "first\nline", "data/0-a/two": "other\nline"}
    (tmp_path / "data" / "0-a").mkdir(parents=True)
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    digests = digests_of(spark, folder, list(contents))
    place = {"topic": "t", "partition": 0, "first": 0, "last": 1, "latest_ms": 0, "records": 2, "bytes": 10}
    files = [ArchiveFile(name=name, digest=digests[name], **place) for name in contents]
    require_sound(spark, folder, files)
    for name, content in zip(contents, reversed(contents.values()), strict=True):
        (tmp_path / name).write_text(content)
    with pytest.raises(ArchiveError, match=r"data/0-a/one .* isn't what was written: its digest is"):
        require_sound(spark, folder, files)
