"""What a changelog looks like: keys and bytes per partition, skew, ages, rates and owners over time.

The log is read twice. The first pass folds it by key, and so knows the time that it spans; the second counts records by
slots of that time and by owner. Rows stay in the JVM; what comes here is one row for each partition and age, slot, or
owner, and the largest keys.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.fold.fold import expired
from spark_replay.fold.points import now_ms
from spark_replay.printing import new_table, printable, say
from spark_replay.sources.base import Source
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.changelog import metadata_fields, read_rows
from spark_replay.sources.reading import reading

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row
    from rich.console import Console

SCHEMA = 1
"""The version of the JSON profile: it grows when a field is taken away or means something else."""
_LARGEST = 20
_SHOWN_BYTES = 200
_SLOTS = 100
_EPOCHS_PER_PARTITION = 50
_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_AGES_MS = (_MINUTE, 10 * _MINUTE, _HOUR, 6 * _HOUR, _DAY, 7 * _DAY, 30 * _DAY, 90 * _DAY, 365 * _DAY)
_STEPS_MS = (
    *(count * _SECOND for count in (1, 2, 5, 10, 30)),
    *(count * _MINUTE for count in (1, 2, 5, 10, 30)),
    *(count * _HOUR for count in (1, 2, 6, 12)),
    *(count * _DAY for count in (1, 2, 7, 30, 90, 365)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """What one partition holds.

    Attributes:
        partition: Its number.
        start: The first offset that the source has.
        end: The offset after the last one.
        records: Committed records; of these `tombstones` delete their key, and `damaged` have no key or no write
        metadata. tombstones: See `records`.
        damaged: See `records`.
        log_bytes: Of keys and values of all records, without headers.
        keys: That are there: the last record has a value, which hasn't expired.
        key_bytes: Of these.
        value_bytes: Of these.
        expired: Keys whose last record has a value that has expired.
        deleted: Keys whose last record is a tombstone.
    """

    partition: int
    start: int
    end: int
    records: int = 0
    tombstones: int = 0
    damaged: int = 0
    log_bytes: int = 0
    keys: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    expired: int = 0
    deleted: int = 0

    @property
    def live_bytes(self) -> int:
        """Bytes of the keys that are there, and of their values."""
        return self.key_bytes + self.value_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key that stands out.

    Attributes:
        partition: Where it lies.
        key: As text if it is printable UTF-8, else as base64 after `base64:`; its first 200 bytes.
        records: How often it was written.
        log_bytes: Of all its records.
    """

    partition: int
    key: str
    records: int
    log_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Age:
    """Keys by the time since they were written.

    Attributes:
        below_ms: The age that they haven't reached, None without bound.
        keys: Keys that are there.
        live_bytes: Of these and their values.
    """

    below_ms: int | None
    keys: int
    live_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What was written in a slot of time.

    Attributes:
        start_ms: When it begins, Unix milliseconds by the records' timestamps.
        records: Committed records that the log still has.
        tombstones: Those without a value.
        log_bytes: Of all.
    """

    start_ms: int
    records: int
    tombstones: int
    log_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """What one owner of a partition wrote, as far as the log still has it.

    Attributes:
        partition: The partition.
        epoch: The owner's.
        records: How many.
        first_offset: Of the first.
        last_offset: Of the last.
        first_ms: The smallest timestamp, None if no record has one.
        last_ms: The greatest.
        overlaps: Whether an owner of an earlier epoch wrote behind its first record.
    """

    partition: int
    epoch: int
    records: int
    first_offset: int
    last_offset: int
    first_ms: int | None
    last_ms: int | None
    overlaps: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a changelog looks like.

    Attributes:
        changelog: The topic.
        source: Where it was read.
        at_ms: The time at which keys count as expired and ages are taken, Unix milliseconds.
        partitions: All, by number.
        most_written: The 20 keys with the most records.
        largest: The 20 keys with the most bytes in the log.
        ages: Keys by age, from the youngest.
        slot_ms: How long a slot is.
        slots: All from the first record to the last, also those without any.
        epochs: The last 50 owners of each partition, by partition and epoch.
        owners: How many there were in all.
        seconds: How long it took.
    """

    changelog: str
    source: str
    at_ms: int
    partitions: Sequence[Partition]
    most_written: Sequence[Key]
    largest: Sequence[Key]
    ages: Sequence[Age]
    slot_ms: int
    slots: Sequence[Slot]
    epochs: Sequence[Epoch]
    owners: int
    seconds: float

    @property
    def totals(self) -> dict[str, Any]:
        """The sums for a machine, with `skew`: the largest partition over the mean."""
        written = ("records", "tombstones", "damaged", "log_bytes")
        names = (*written, "keys", "key_bytes", "value_bytes", "expired", "deleted")
        return {
            **{name: sum(getattr(part, name) for part in self.partitions) for name in names},
            "partitions": len(self.partitions),
            "owners": self.owners,
            "overlaps": sum(epoch.overlaps for epoch in self.epochs),
            "skew": {name: self.skew(name) for name in ("records", "keys", "live_bytes")},
            "seconds": self.seconds,
        }

    @property
    def as_json(self) -> dict[str, Any]:
        """All fields for a machine, with `schema` (the version of this shape) and `totals`."""
        return {"schema": SCHEMA, **asdict(self), "totals": self.totals}

    def skew(self, name: str) -> float | None:
        """Return the largest partition's `name` over the mean of all; None if there is nothing."""
        values = [getattr(part, name) for part in self.partitions]
        return round(max(values) * len(values) / sum(values), 3) if sum(values) else None


def profile_log(source: Source, *, at_ms: int | None = None) -> Profile:
    """Find out what a changelog looks like.

    Args:
        source: The changelog, as `kafka(...)` or `archive(...)` gives it.
        at_ms: Unix milliseconds at which keys count as expired and ages are taken; now if None.

    Raises:
        ReadError: Spark couldn't read the log.
        ReplayError: What `Source.describe` raises.
    """
    started = time.monotonic()
    topic = source.describe()
    moment = now_ms() if at_ms is None else at_ms
    with reading(str(source)):
        sized = _sized(read_rows(source, topic))
        keys = _by_key(sized, moment).persist()
        try:
            states = _by_state(keys).collect()
            most_written, largest = (_largest(keys, name) for name in ("records", "log_bytes"))
        finally:
            keys.unpersist()
        bounds = _bounds(states)
        slot_ms = _slot_ms(bounds)
        timed = _over_time(sized, slot_ms).collect()
    epochs = _epochs(row for row in timed if not row["is_slot"])
    return Profile(
        changelog=topic.name,
        source=str(source),
        at_ms=moment,
        partitions=_partitions(topic, states),
        most_written=most_written,
        largest=largest,
        ages=_ages(states),
        slot_ms=slot_ms,
        slots=_slots([row for row in timed if row["is_slot"] and row["slot"] is not None], bounds, slot_ms),
        epochs=_last_of_each(epochs),
        owners=len(epochs),
        seconds=round(time.monotonic() - started, 3),
    )


def show_profile(found: Profile, console: Console) -> None:
    """Print a profile as tables a person reads."""
    names = ("records", "tombstones", "damaged", "keys", "live_bytes", "expired", "deleted")
    table = new_table(found.source, "partition", "offsets", *names)
    for part in found.partitions:
        counts = (f"{getattr(part, name):,}" for name in names)
        table.add_row(str(part.partition), f"{part.start:,} to {part.end:,}", *counts)
    table.add_section()
    table.add_row("all", "", *(f"{sum(getattr(part, name) for part in found.partitions):,}" for name in names))
    console.print(table)
    for line in _lines(found):
        say(console, line)


def _lines(found: Profile) -> Iterator[str]:
    for name in ("records", "keys", "live_bytes"):
        skew = found.skew(name)
        if skew is not None:
            yield f"largest partition by {name.replace('_', ' ')}: {skew:.2f} times the mean"
    for key in found.most_written[:3]:
        yield f"written often: partition {key.partition} key {key.key}: {key.records:,} records"
    for key in found.largest[:3]:
        yield f"large: partition {key.partition} key {key.key}: {key.log_bytes:,} bytes in the log"
    for epoch in found.epochs:
        if epoch.overlaps:
            yield (
                f"partition {epoch.partition}: an earlier owner wrote behind offset {epoch.first_offset}, where epoch "
                f"{epoch.epoch} begins: run check"
            )


def _sized(rows: DataFrame) -> DataFrame:
    key_bytes, value_bytes = (F.coalesce(F.octet_length(name), F.lit(0)).cast("bigint") for name in ("key", "value"))
    fields = metadata_fields(F.col("metadata"))
    is_damaged = F.col("metadata").isNull()
    at_ms = F.unix_millis("timestamp")
    return rows.select(
        "partition",
        "offset",
        "key",
        key_bytes.alias("key_bytes"),
        value_bytes.alias("value_bytes"),
        F.col("value").isNull().alias("is_empty"),
        is_damaged.alias("is_damaged"),
        (F.col("value").isNull() & ~is_damaged).alias("is_tombstone"),
        # Kafka's -1: the record has none
        F.when(at_ms >= 0, at_ms).alias("at_ms"),
        fields["epoch"].alias("epoch"),
        fields["expires_at_ms"].alias("expires_at_ms"),
    )


def _counts() -> list[Column]:
    return [
        F.count(F.lit(1)).alias("records"),
        F.sum(F.col("key_bytes") + F.col("value_bytes")).alias("log_bytes"),
        F.count_if("is_tombstone").alias("tombstones"),
        F.count_if("is_damaged").alias("damaged"),
        F.min("at_ms").alias("first_ms"),
        F.max("at_ms").alias("last_ms"),
    ]


def _by_key(sized: DataFrame, moment: int) -> DataFrame:
    last = F.max_by(F.struct("key_bytes", "value_bytes", "is_empty", "at_ms", "expires_at_ms"), "offset")
    folded = sized.repartition("partition", "key").groupBy("partition", "key").agg(last.alias("last"), *_counts())
    state = (
        # without a key it is no one's state
        F.when(F.col("key").isNull(), "none")
        .when(F.col("last.is_empty"), "deleted")
        .when(expired(F.col("last.expires_at_ms"), F.lit(moment)), "expired")
        .otherwise("live")
    )
    age = F.lit(moment) - F.col("last.at_ms")
    bounds = F.coalesce(*(F.when(age < below, number) for number, below in enumerate(_AGES_MS)), F.lit(len(_AGES_MS)))
    return folded.select(
        "partition",
        F.substring("key", 1, _SHOWN_BYTES).alias("key"),
        state.alias("state"),
        F.when(age.isNotNull() & (state == "live"), bounds).alias("age"),
        F.col("last.key_bytes").alias("key_bytes"),
        F.col("last.value_bytes").alias("value_bytes"),
        "records",
        "log_bytes",
        "tombstones",
        "damaged",
        "first_ms",
        "last_ms",
    )


def _by_state(keys: DataFrame) -> DataFrame:
    sums = ("key_bytes", "value_bytes", "records", "log_bytes", "tombstones", "damaged")
    return keys.groupBy("partition", "state", "age").agg(
        F.count(F.lit(1)).alias("keys"),
        *(F.sum(name).alias(name) for name in sums),
        F.min("first_ms").alias("first_ms"),
        F.max("last_ms").alias("last_ms"),
    )


def _largest(keys: DataFrame, name: str) -> list[Key]:
    ranked = keys.where(F.col("key").isNotNull()).orderBy(F.col(name).desc(), "partition", "key").limit(_LARGEST)
    return [
        Key(
            partition=row["partition"],
            key=printable(row["key"]),
            records=row["records"],
            log_bytes=row["log_bytes"],
        )
        for row in ranked.select("partition", "key", "records", "log_bytes").collect()
    ]


def _over_time(sized: DataFrame, slot_ms: int) -> DataFrame:
    """Count by slot, and by partition and owner, in one pass; `is_slot` tells which of both a row is."""
    slot, owner = [F.col("slot")], [F.col("partition"), F.col("epoch")]
    rows = sized.withColumn("slot", F.floor(F.col("at_ms") / slot_ms) * slot_ms)
    return rows.groupingSets([slot, owner], *slot, *owner).agg(
        (F.grouping("slot") == 0).alias("is_slot"),
        *_counts(),
        F.min("offset").alias("first_offset"),
        F.max("offset").alias("last_offset"),
    )


def _bounds(states: Sequence[Row]) -> tuple[int, int] | None:
    firsts = [row["first_ms"] for row in states if row["first_ms"] is not None]
    lasts = [row["last_ms"] for row in states if row["last_ms"] is not None]
    return (min(firsts), max(lasts)) if firsts else None


def _slot_ms(bounds: tuple[int, int] | None) -> int:
    span = 0 if bounds is None else bounds[1] - bounds[0]
    # the widest bounds even a record with a mad timestamp
    return next((step for step in _STEPS_MS if span // step < _SLOTS), max(_STEPS_MS[-1], span // _SLOTS))


def _slots(rows: Iterable[Row], bounds: tuple[int, int] | None, slot_ms: int) -> list[Slot]:
    if bounds is None:
        return []
    found = {row["slot"]: row for row in rows}
    starts = range(bounds[0] // slot_ms * slot_ms, bounds[1] + 1, slot_ms)
    names = ("records", "tombstones", "log_bytes")
    counts = ({name: found[start][name] if start in found else 0 for name in names} for start in starts)
    return [Slot(start_ms=start, **held) for start, held in zip(starts, counts, strict=True)]


def _partitions(topic: Topic, states: Sequence[Row]) -> list[Partition]:
    sums: dict[int, Counter[str]] = {}
    for row in states:
        counts = sums.setdefault(row["partition"], Counter())
        counts.update({name: row[name] for name in ("records", "tombstones", "damaged", "log_bytes")})
        if row["state"] == "live":
            counts.update({name: row[name] for name in ("keys", "key_bytes", "value_bytes")})
        elif row["state"] != "none":
            counts[row["state"]] += row["keys"]
    bounds = enumerate(zip(topic.starts, topic.ends, strict=True))
    return [
        Partition(partition=number, start=start, end=end, **sums.get(number, Counter()))
        for number, (start, end) in bounds
    ]


def _ages(states: Sequence[Row]) -> list[Age]:
    keys: Counter[int] = Counter()
    live_bytes: Counter[int] = Counter()
    for row in states:
        if row["age"] is not None:
            keys[row["age"]] += row["keys"]
            live_bytes[row["age"]] += row["key_bytes"] + row["value_bytes"]
    return [
        Age(below_ms=below, keys=keys[number], live_bytes=live_bytes[number])
        for number, below in enumerate((*_AGES_MS, None))
    ]


def _epochs(rows: Iterable[Row]) -> list[Epoch]:
    found = []
    partition, reached = -1, -1
    known = (row for row in rows if row["epoch"] is not None)
    for row in sorted(known, key=lambda row: (row["partition"], row["epoch"])):
        if row["partition"] != partition:
            partition, reached = row["partition"], -1
        found.append(
            Epoch(
                overlaps=reached > row["first_offset"],
                **{name: row[name] for name in Epoch.__slots__ if name != "overlaps"},
            )
        )
        reached = max(reached, row["last_offset"])
    return found


def _last_of_each(epochs: Sequence[Epoch]) -> list[Epoch]:
    left = Counter(epoch.partition for epoch in epochs)
    kept = []
    for epoch in epochs:
        if left[epoch.partition] <= _EPOCHS_PER_PARTITION or epoch.overlaps:
            kept.append(epoch)
        left[epoch.partition] -= 1
    return kept
