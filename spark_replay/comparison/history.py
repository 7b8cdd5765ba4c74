"""One key's history: every write of it that the log has, and what became of each.

A key has rows of its own in the changelogs of actors too: those of a window store or a join, and in the changelogs
`…-timers`, `…-effects` and `…-parked` a letter, the key's length and the key (docs/design/0001-formats.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.fold.placement import LENGTH_BYTES, TO_THE_END, home_partition
from spark_replay.fold.points import now_ms
from spark_replay.printing import SHOWN_BYTES, input_offset, printable, row_key, row_value
from spark_replay.sources.base import Source
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.changelog import metadata_fields, read_rows, read_uncommitted_rows
from spark_replay.sources.columns import by_partition
from spark_replay.sources.reading import keep, reading
from stores._core.printable import counted, moment
from stores._core.record import NEVER
from stores._core.windows import KEYS_AT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

_OF_ACTORS = {"-timers-changelog": "timer", "-effects-changelog": "effect", "-parked-changelog": "parked message"}
_KEY_AT = 1 + LENGTH_BYTES


def explain_key(source: Source, key: bytes) -> DataFrame:
    """Return all records of a key that a changelog has, committed or not.

    Args:
        source: The changelog, as `kafka(...)` or `archive(...)` returns it.
        key: The message's key, as it is stored.

    Returns:
        One row a record: `partition` int, `offset` bigint, `timestamp` timestamp, `row` binary (the record's key),
        `value` binary (null: a tombstone), `epoch`, `source_offset`, `expires_at_ms` bigint, `input` int (as
        `read_changelog` returns them), `transaction` string (`committed`, `aborted` or `open`), `home` int, the
        partition that murmur2 puts the key in.

    Raises:
        ReadError: Spark couldn't read the log.
        ReplayError: What `Source.describe` raises.
    """
    return _records(source, source.describe(), key)


def _records(source: Source, topic: Topic, key: bytes) -> DataFrame:
    with reading(str(source)):
        # read first: of what compaction removes meanwhile, the second read has nothing that the first lacks
        committed = keep(read_rows(source, topic).where(_is_of(topic, key)))
        uncommitted = read_uncommitted_rows(source, topic)
        rows = committed.withColumn("transaction", F.lit("committed"))
        if uncommitted is not None:
            others = uncommitted.where(_is_of(topic, key)).join(committed, on=["partition", "offset"], how="left_anti")
            is_over = F.col("offset") < by_partition(topic.ends)
            rows = rows.unionByName(others.withColumn("transaction", F.when(is_over, "aborted").otherwise("open")))
    fields = metadata_fields(F.col("metadata"))
    return rows.select(
        "partition",
        "offset",
        "timestamp",
        F.col("key").alias("row"),
        "value",
        *(column.alias(name) for name, column in fields.items()),
        "transaction",
        home_partition(F.lit(key), topic.partition_count).alias("home"),
    )


def _is_of(topic: Topic, key: bytes) -> Column:
    """Return of a row whether it is of a message's key."""
    row = F.col("key")
    if _kind_of(topic) is not None:
        sized = len(key).to_bytes(LENGTH_BYTES) + key
        return F.substring(row, 2, len(sized)) == F.lit(sized)
    letter, is_of = F.substring(row, 1, 1), row == F.lit(key)
    for first, at in KEYS_AT.items() if topic.deletes else ():
        is_of |= (letter == F.lit(first)) & (F.substring(row, at + 1, TO_THE_END) == F.lit(key))
    return is_of


def _kind_of(topic: Topic) -> str | None:
    """Return what a row of an actor's own changelog is, None of another changelog."""
    return next((kind for suffix, kind in _OF_ACTORS.items() if topic.name.endswith(suffix)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One moment in a key's history.

    Attributes:
        at_ms: Unix milliseconds, by the record's timestamp; of an expiry its time.
        changelog, partition, offset: The record; of an expiry the write that expired.
        kind: `put`, `delete`, or `expire`.
        row: What the record is of where a key has several, such as a window or a timer; else empty.
        value: As text if it is printable UTF-8, else as base64 after `base64:`; cut to 200 bytes. Null of a delete.
        epoch, source_offset, input, expires_at_ms: The write metadata, null where the record has none.
        transaction: `committed`, `aborted` or `open`.
        remarks: What is unusual about it.
    """

    at_ms: int
    changelog: str
    partition: int
    offset: int
    kind: str
    row: str
    value: str | None
    epoch: int | None
    source_offset: int | None
    input: int | None
    expires_at_ms: int | None
    transaction: str
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the event as a line."""
        where = f"{moment(self.at_ms)}  {self.changelog}[{self.partition}] offset {self.offset}"
        row = f"{self.row}: " if self.row else ""
        if self.kind == "expire":
            return f"{where}  {row}expired"
        what = "deleted" if self.value is None else f"put {self.value}"
        by = "" if self.epoch is None else f"  by {input_offset(self.source_offset or 0, self.input)}"
        epoch = "" if self.epoch is None else f", epoch {self.epoch}"
        expires = f", expires {moment(self.expires_at_ms)}" if self.expires_at_ms and self.value is not None else ""
        return f"{where}  {row}{what}{by}{epoch}{expires}, {'; '.join((self.transaction, *self.remarks))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One key's history.

    Attributes:
        key: As reports show it.
        events: In the order of time; of one changelog's partition in the order of offsets.
        records: How many records of the key there are.
        notes: What the log can't show.
    """

    key: str
    events: Sequence[Event]
    records: int
    notes: Sequence[str]


def key_history(sources: Sequence[Source], key: bytes, *, limit: int) -> History:
    """Return the newest events of a key; arguments and errors are those of `explain_key`.

    Args:
        sources: The changelogs.
        key: The message's key.
        limit: How many records of each changelog are shown.
    """
    events: list[tuple[int, Event]] = []
    notes: list[str] = []
    records = 0
    for source in sources:
        topic = source.describe()
        with reading(str(source)):
            every = _records(source, topic, key)
            # Python has no time behind the year 9999.
            shown = {"value": F.substring("value", 1, SHOWN_BYTES), "timestamp": F.unix_millis("timestamp")}
            cut = every.withColumns(shown)
            newest = cut.orderBy(F.desc("timestamp"), F.desc("partition"), F.desc("offset")).limit(limit)
            rows = sorted(newest.collect(), key=lambda row: (row["partition"], row["offset"]))
            count = every.count() if len(rows) == limit else len(rows)
        records += count
        events += _placed(_events(rows, topic, key))
        notes += _notes(topic, source, hidden=count - len(rows))
    events.sort(key=lambda placed: placed[0])
    return History(key=printable(key), events=[event for _, event in events], records=records, notes=notes)


def _placed(events: Iterable[Event]) -> Iterator[tuple[int, Event]]:
    """Return events with their places in time: clocks differ, and no record comes before one of a lower offset."""
    clocks: dict[int, int] = {}
    for event in events:
        if event.kind == "expire":
            yield event.at_ms, event
        else:
            clocks[event.partition] = max(clocks.get(event.partition, 0), event.at_ms)
            yield clocks[event.partition], event


def _events(rows: Sequence[Row], topic: Topic, key: bytes) -> Iterator[Event]:
    now, epochs = now_ms(), dict[int, int]()
    later: dict[tuple[int, bytes], int] = {}
    expiries: dict[int, bool] = {}
    for place in reversed(range(len(rows))):
        row = rows[place]
        if row["transaction"] == "committed":
            name = (row["partition"], bytes(row["row"]))
            until = later.get(name, now)
            expires = row["expires_at_ms"] or NEVER
            expiries[place] = row["value"] is not None and expires != NEVER and expires <= until
            later[name] = row["timestamp"]
    for place, row in enumerate(rows):
        remarks = []
        if row["epoch"] is None:
            remarks.append("no write metadata: another program wrote it")
        elif row["epoch"] < epochs.get(row["partition"], 0):
            remarks.append(f"behind epoch {epochs[row['partition']]}: its owner had been replaced")
        else:
            epochs[row["partition"]] = row["epoch"]
        if row["home"] != row["partition"]:
            remarks.append(f"murmur2 puts the key into partition {row['home']}")
        event = _event(row, topic, key, tuple(remarks))
        yield event
        if expiries.get(place):
            yield replace(event, kind="expire", at_ms=row["expires_at_ms"], remarks=())


def _event(row: Row, topic: Topic, key: bytes, remarks: tuple[str, ...]) -> Event:
    names = ("partition", "offset", "epoch", "source_offset", "input", "expires_at_ms", "transaction")
    value = row["value"]
    return Event(
        at_ms=row["timestamp"],
        changelog=topic.name,
        kind="delete" if value is None else "put",
        row=_row(bytes(row["row"]), topic, key),
        value=None if value is None else row_value(value, has_windows=topic.deletes),
        remarks=remarks,
        **{name: row[name] for name in names},
    )


def _row(row: bytes, topic: Topic, key: bytes) -> str:
    if row == key:
        return ""
    kind = _kind_of(topic)
    if kind is not None:
        return f"{kind} {printable(row[_KEY_AT + int.from_bytes(row[1:_KEY_AT]) :])}"
    return row_key(row, has_windows=True).removeprefix(f"{printable(key)}, ")


def _notes(topic: Topic, source: Source, *, hidden: int) -> Iterator[str]:
    if hidden:
        yield f"not shown: {counted(hidden, 'older record')} of {topic.name}. Raise --limit"
    if not all(topic.exact):
        yield (
            f"{source} is compacted: earlier writes of the key may be gone from it; an archive that was begun before "
            "has them (--archive)"
        )
    if any(topic.starts):
        yield f"{source} doesn't reach back to offset 0: what was written before isn't shown"
