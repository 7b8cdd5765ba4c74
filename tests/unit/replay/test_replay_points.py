"""What an archive's ledger says of points in a log, against a log that is compacted while it is archived."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from actors._core.task.commit import CommitMark
from actors._core.task.topic_ids import TopicIds
from actors.declare.options import ActorOptions
from actors.replay.replay import Replayer
from spark_replay.errors import InputError, PointError, RecomputeError
from spark_replay.fold.points import AsOf, find_offsets, point_at
from spark_replay.recompute.plan import require_same_topics
from spark_replay.recompute.report import recomputed
from spark_replay.sources.archives.ledger import Ledger
from spark_replay.sources.archives.manifest import ArchiveFile, Manifest, decode_entry, encode_entry
from spark_replay.sources.brokers.topic import CommittedOffset, Retention, Span, Topic
from tests.examples import examples

MINUTE_MS = 60_000
SKEW_MS = int(1000 * ActorOptions().clock_skew_margin.total_seconds())
TOPIC_ID = "00000000-0000-0000-0000-000000000007"
EMPTY = Ledger(topic="t", topic_id="id")


@dataclass
class World:
    """One partition: the log as it is left, the truth of it, and what an archive took."""

    lag_ms: int
    now_ms: int = 1_760_000_000_000
    end: int = 0
    log: dict[int, tuple[str, int]] = field(default_factory=dict)
    truth: dict[int, str] = field(default_factory=dict)
    archived: dict[int, str] = field(default_factory=dict)
    ledger: Ledger = EMPTY

    def write(self, key: str, behind_ms: int = 0) -> None:
        """By a worker whose clock is behind; its broker takes the worker's time for the record's age."""
        self.log[self.end] = (key, self.now_ms - behind_ms)
        self.truth[self.end] = key
        self.end += 1

    def marker(self) -> None:
        self.end += 1

    def wait(self) -> None:
        self.now_ms += 3 * MINUTE_MS

    def compact(self, below: int) -> None:
        """Up to the first record that is too young: a broker cleans whole segments in front of the first young one."""
        last = {key: offset for offset, (key, _) in sorted(self.log.items()) if offset < below}
        for offset, (key, written_ms) in sorted(self.log.items()):
            if written_ms > self.now_ms - self.lag_ms:
                break
            if offset < last.get(key, -1):
                del self.log[offset]

    def archive(self, limit: int | None) -> None:
        """A batch, as the archiver reads and judges it."""
        at = self.ledger.ends[0] if self.ledger.starts else 0
        to = self.end if limit is None else min(self.end, at + limit)
        is_limited = to < self.end
        self.archived |= {offset: key for offset, (key, _) in self.log.items() if at <= offset < to}
        batch = self.ledger.batch(
            starts=(0,),
            ends=(to,),
            asked_ms=self.ledger.asked_ms if is_limited else self.now_ms,
            read_ms=self.now_ms,
            whole=not is_limited,
            retention=Retention(compacted=True, min_compaction_lag_ms=self.lag_ms),
        )
        self.ledger = self.ledger.joined(batch)

    def topic(self) -> Topic:
        ledger = self.ledger
        return Topic("t", ledger.starts, ledger.ends, ledger.ends, spans=ledger.spans)


def state(writes: dict[int, str], before: int) -> dict[str, int]:
    return {key: offset for offset, key in sorted(writes.items()) if offset < before}


def unknown(rows: dict[int, str], before: int, hazard: tuple[int, int] | None) -> set[str]:
    """`Point.unknown` in plain Python."""
    if hazard is None:
        return set()
    since, until = hazard
    last = state(rows, before)
    again = {key: offset for offset, key in sorted(rows.items(), reverse=True) if offset >= before}
    return {key for key, offset in again.items() if offset < until and last.get(key, -1) < since}


@contextmanager
def at_most_spans(spans: int) -> Iterator[None]:
    """Let a ledger put spans together when there are more than this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_replay.sources.archives.ledger._LONGEST", spans)
        yield


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from("aab")),
        st.tuples(st.just("write"), st.sampled_from("aab")),
        st.tuples(st.just("behind"), st.sampled_from("aab")),
        st.tuples(st.just("compact"), st.integers(0, 2)),
        st.tuples(st.just("archive"), st.sampled_from([None, 1, 2])),
        st.sampled_from([("marker", None), ("wait", None)]),
    ),
    max_size=16,
)


def play(steps: list[tuple[str, object]], lag_ms: int) -> World:
    world = World(lag_ms)
    for step, given_ in steps:
        match step:
            case "write":
                world.write(str(given_))
            case "behind":
                world.write(str(given_), behind_ms=SKEW_MS)
            case "compact":
                # never the newest segment
                world.compact(world.end - int(str(given_)))
            case "archive":
                world.archive(given_ if given_ is None else int(str(given_)))
            case "marker":
                world.marker()
            case _:
                world.wait()
    return world


def wrong(world: World, before: int) -> set[str]:
    """The keys that the archive has wrong at a point and takes for known."""
    [hazard] = point_at(world.topic(), [before], [0]).hazards
    rows = {offset: key for offset, key in world.archived.items() if offset < world.ledger.ends[0]}
    truth, found = state(world.truth, before), state(rows, before)
    bad = {key for key in "ab" if truth.get(key) != found.get(key)}
    return bad - unknown(rows, before, hazard)


# what is rare among random ones: spans put together, of which a part was read later, or a part isn't exact
READ_LATER = "w a", "read", "w a", "w a", "compact", "read", "w b", "read", "w b", "read"
LONG = ("wait",) * 5
BEHIND = "read", "behind a", "wait", "wait", "w a", "compact"
PARTLY_EXACT = "w a", "w a", *LONG, "compact", "read", "w b", "read", *LONG, "w b", "read", *LONG, "w b", "read"


def steps_of(*names: str) -> list[tuple[str, object]]:
    known: dict[str, tuple[str, object]] = {
        "compact": ("compact", 0),
        "read": ("archive", None),
        "wait": ("wait", None),
    }
    return [known.get(name) or ("behind" if name.startswith("behind") else "write", name[-1]) for name in names]


@settings(max_examples=examples(1000))
@example(steps_of(*READ_LATER), 0, 3)
@example(steps_of(*PARTLY_EXACT), 10 * MINUTE_MS, 3)
@example(steps_of(*BEHIND), 10 * MINUTE_MS, 3)
@given(STEPS, st.sampled_from([0, 10 * MINUTE_MS]), st.sampled_from([3, 1000]))
def test_what_an_archive_takes_for_known_is_true(steps: list[tuple[str, object]], lag_ms: int, longest: int) -> None:
    with at_most_spans(longest):
        world = play([*steps, ("archive", None)], lag_ms)
    for before in range(world.end + 1):
        assert wrong(world, before) == set(), (before, world)


def test_without_spans_an_archive_would_be_believed_wrongly() -> None:
    """The property can fail: the same rows, and a ledger that takes every span for exact."""
    world = play([("write", "a"), ("archive", None), ("write", "a"), ("write", "a"), ("compact", 0)], 0)
    world.archive(None)
    assert wrong(world, 2) == set()
    retention = Retention(compacted=False, min_compaction_lag_ms=0)
    world.ledger = EMPTY.batch(starts=(0,), ends=(3,), asked_ms=0, read_ms=0, whole=True, retention=retention)
    assert wrong(world, 2) == {"a"}


def test_every_point_is_known_when_compaction_waits_longer_than_the_batches_are_apart() -> None:
    steps = [(kind, what) for _ in range(8) for kind, what in (("write", "a"), ("wait", None), ("archive", None))]
    world = play(steps, 10 * MINUTE_MS)
    # how long ago the first records of a log were written isn't known, so its first span isn't exact
    assert world.ledger.spans == ((Span(0, 1, False), Span(1, 8, True)),)
    assert point_at(world.topic(), [5], [0]).hazards == (None,)


def test_the_end_of_a_batch_is_known() -> None:
    world = play([("write", "a"), ("marker", None), ("archive", None), ("write", "a"), ("archive", None)], 0)
    assert point_at(world.topic(), [2], [0]).hazards == (None,)
    assert point_at(world.topic(), [1], [0]).hazards == ((0, 2),)


@given(STEPS)
def test_a_ledger_reads_what_it_wrote(steps: list[tuple[str, object]]) -> None:
    ledger = play(steps, 0).ledger
    manifest = Manifest(number=0, ledgers={ledger.topic: ledger})
    assert decode_entry(encode_entry(manifest, Manifest()))[0].ledgers == manifest.ledgers


def test_a_ledger_stays_small() -> None:
    world = World(0)
    for _ in range(5000):
        world.write("a")
        world.archive(None)
    [spans] = world.ledger.spans
    assert (spans[0].start, spans[-1].end) == (0, 5000)
    assert len(spans) <= 1000
    # whoever was written again in several batches that were put together isn't known, whatever is left of it
    assert spans[0].merged
    assert point_at(world.topic(), [spans[0].start + 1], [0]).hazards == ((1, spans[0].end),)


def test_a_hole_or_an_overlap_between_batches_is_named() -> None:
    ledger = play([("write", "a"), ("write", "b"), ("archive", None)], 0).ledger
    for start, what in ((3, "a hole"), (1, "an overlap")):
        later = Ledger(topic="t", topic_id="id", starts=(start,), spans=((Span(start, 4, True),),))
        with pytest.raises(ValueError, match=f"t partition 0 has {what} between the offsets 2 and {start}"):
            ledger.joined(later)
    with pytest.raises(ValueError, match="t has the id other, and had id before"):
        ledger.joined(replace(ledger, topic_id="other"))
    with pytest.raises(ValueError, match="t has 0 partitions, and had 1 before"):
        ledger.joined(EMPTY)


def entry(*files: ArchiveFile) -> Manifest:
    ledger = Ledger(topic="t", topic_id="id", starts=(0,), spans=((Span(0, 10, True),),))
    return Manifest(number=0, ledgers={"t": ledger}, files={file.name: file for file in files})


FILE = ArchiveFile(name="data/a", topic="t", partition=0, first=0, last=4, latest_ms=5, records=3, bytes=9, digest="d")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first": 4}, r"data/a .* and data/b \(t partition 0, offsets 4 to 9\) overlap: both have offset 4"),
        ({"last": 10}, r"data/b \(t partition 0, offsets 5 to 10\) with 3 records isn't in the offsets"),
        ({"partition": 1}, "data/b .* isn't in the offsets"),
        ({"records": 6}, "data/b .* with 6 records isn't in the offsets"),
        ({"topic": "other"}, r"data/b \(other partition 0, .* isn't in the offsets"),
    ],
)
def test_files_that_do_not_fit_the_offsets_are_named(changes: dict[str, Any], message: str) -> None:
    other = replace(FILE, name="data/b", first=5, last=9)
    entry(FILE, other).check(0)
    with pytest.raises(ValueError, match=message):
        entry(FILE, replace(other, **changes)).check(0)


def test_an_entry_of_a_manifest_is_read_or_refused() -> None:
    text = encode_entry(entry(FILE), Manifest(crc=7))
    decoded, previous = decode_entry(text)
    assert (replace(decoded, crc=0), previous) == (entry(FILE), 7)
    for damaged in ("", "{}", text[:-3], text.replace('"first": 0', '"first": 1')):
        with pytest.raises(ValueError, match="its CRC-32 is"):
            decode_entry(damaged)
    for name in ("../a", "data/../../a", "/a"):
        with pytest.raises(ValueError, match="leads out of the archive"):
            entry(replace(FILE, name=name)).check(0)


def test_every_50th_entry_has_all_files() -> None:
    manifest = Manifest()
    for number in range(60):
        ledger = Ledger(topic="t", topic_id="id", starts=(number,), spans=((Span(number, number + 1, True),),))
        file = replace(FILE, name=f"data/{number}", first=number, last=number, records=1)
        batch = manifest.batch(0, [ledger], [file])
        batch.check(number)
        manifest = batch if batch.whole == batch.number else manifest.joined(batch)
    assert (manifest.whole, len(manifest.files), len(batch.files)) == (50, 60, 1)
    new = replace(FILE, name="data/new", last=59, records=60)
    compacted = manifest.compacted(5, manifest.files.values(), [new])
    compacted.check(60)
    assert (compacted.whole, list(compacted.files), len(compacted.replaced)) == (60, ["data/new"], 60)


def test_offsets_of_another_topic_are_refused_with_both_ids() -> None:
    source: Any = "the log"
    for topic_id in ("", TOPIC_ID):
        topic = Topic(name="t", starts=(0,), ends=(9,), high_watermarks=(9,), topic_id=topic_id)
        assert find_offsets(source, topic, AsOf(offsets={0: 5}, topic_id=TOPIC_ID)) == (5,)
        assert find_offsets(source, topic, AsOf(offsets={0: 5})) == (5,)
    with pytest.raises(PointError, match=f"id {TOPIC_ID}, that of the log has the id other"):
        find_offsets(source, replace(topic, topic_id="other"), AsOf(offsets={0: 5}, topic_id=TOPIC_ID))


def test_a_recompute_of_topics_that_were_made_anew_is_refused() -> None:
    old, log = TOPIC_ID, str(uuid.UUID(int=8))
    replayer: Any = SimpleNamespace(group="app-actors", topics_of=Replayer.topics_of)
    source = Topic(name="in", starts=(0,), ends=(9,), high_watermarks=(9,), topic_id=old)
    changelogs = {"s": replace(source, name="log", topic_id=log)}

    def require(topics: TopicIds | None, *, first: int | None = None) -> None:
        metadata = "" if topics is None else CommitMark(3, 1, "n", topics=topics).encode()
        offsets = [CommittedOffset(None), CommittedOffset(4, metadata)]
        require_same_topics(replayer, source, changelogs, offsets, lambda _: first)

    now = TopicIds.of(old, {"s": log}, since=7)
    for fine in (None, TopicIds(), now, TopicIds.of(old, {"other": old})):
        require(fine, first=1)
    with pytest.raises(InputError, match=f"in had the id {log}, and now it has the id {old}"):
        require(TopicIds(log))
    with pytest.raises(InputError, match=f"log had the id {old}, and now it has the id {log}"):
        require(TopicIds.of(old, {"s": old}))
    again = replace(now, is_recreated=True)
    require(again, first=7)
    require(again)
    with pytest.raises(InputError, match="partition 1 has state of the owners' epochs 2 to 6"):
        require(again, first=2)


def test_a_partition_that_was_replayed_in_parts_is_refused() -> None:
    plan: Any = SimpleNamespace(input="in", changelogs={})
    told: Any = [{"reason": None, "count": 2, "records": 9}]
    with pytest.raises(RecomputeError, match="Spark split a partition of in"):
        recomputed(plan, told=told, groups=[], examples=[], seconds=0)


@pytest.mark.parametrize("spans", [[(0, 5), (6, 7)], [(0, 5), (4, 7)], [(1, 5)]])
def test_a_ledger_with_gaps_or_overlaps(spans: list[tuple[int, int]]) -> None:
    ledger = replace(EMPTY, starts=(0,), spans=(tuple(Span(start, end, True) for start, end in spans),))
    with pytest.raises(ValueError, match="partition 0 has a gap or an overlap"):
        Manifest(number=0, ledgers={"t": ledger}).check(0)


def test_points_that_are_told(tmp_path) -> None:
    (tmp_path / "offsets.json").write_text('{"1": 7, "0": 5}')
    (tmp_path / "list.json").write_text("[5, 7]")
    both = AsOf(offsets={0: 5, 1: 7})
    assert AsOf.parse("offset:0=5,1=7") == both
    assert AsOf.parse(f"offset:@{tmp_path}/offsets.json") == both
    assert AsOf.parse(f"offset:@{tmp_path}/list.json") == both
    assert AsOf.parse(str(both)) == both
    of_topic = AsOf(offsets={0: 5, 1: 7}, topic_id=TOPIC_ID)
    (tmp_path / "topic.json").write_text(f'{{"1": 7, "0": 5, "topic_id": "{TOPIC_ID}"}}')
    for text in (f"offset:0=5,1=7,topic_id={TOPIC_ID}", f"offset:@{tmp_path}/topic.json", str(of_topic)):
        assert AsOf.parse(text) == of_topic
    assert AsOf.parse("latest") == AsOf() == AsOf.parse(str(AsOf()))
    at = AsOf(timestamp_ms=1_769_860_800_000)
    for text in ("timestamp:2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", "1769860800000", str(at)):
        assert AsOf.parse(text) == at


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("yesterday", "'yesterday' isn't a point: give latest, offset:"),
        ("offset:", "can't be read"),
        ("offset:0", "can't be read"),
        ("offset:a=1", "can't be read"),
        ("offset:0=-1", "has a negative offset"),
        ("offset:0=1,topic_id=x", "can't be read"),
        (f"offset:topic_id={TOPIC_ID}", "has no offset"),
        ("offset:@/no/such/file", "the offsets can't be read: .*No such file"),
        ("2026-01-31T12:00:00", "has no time zone: write 2026-01-31T12:00:00Z"),
        ("timestamp:x", "isn't a point"),
    ],
)
def test_points_that_are_none(text: str, told: str) -> None:
    with pytest.raises(PointError, match=told):
        AsOf.parse(text)
