"""Records of a changelog that no owner of their partition can have written.

The leader registry has the last owner of each partition, and the mark of the group's offset the last commit. An owner
claims its epoch before it writes, and from then on no former owner can. A commit's records, its offset and its
mark are in one transaction. So no owner wrote a record

* `epoch`: of a higher epoch than any owner had.
* `replaced`: of an older epoch, behind the position of a store of a newer owner.
* `done`: behind the position of a store that has the last commit already.
* `unhandled`: of an input that isn't handled, though it says the last owner's epoch.
* `untransacted`: at the log's end without a transaction, whose last offset is its marker.

The last three are known of the last owner's epoch alone. The registry and the group are asked after the log's end, so
that owners who go on meanwhile are no finding.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from spark_replay.comparison.held import Part
from spark_replay.comparison.invariants import Finding, finding
from spark_replay.errors import ReplayError
from spark_replay.printing import SHOWN_BYTES, input_offset, printable
from spark_replay.sources.base import Source
from spark_replay.sources.brokers.topic import CommittedOffset, Topic
from spark_replay.sources.changelog import metadata_fields, read_rows
from spark_replay.sources.columns import by_input, by_partition
from spark_replay.sources.kafka import KafkaSource
from spark_replay.sources.reading import reading
from stores._core.outside import MISSHAPEN

if TYPE_CHECKING:
    from pyspark.sql import Column, Row

_REGISTRY = "-actors-owners"
_WHY = {
    "epoch": "is of epoch {epoch}, and the partition's last owner has epoch {owner.epoch}",
    "replaced": "is of epoch {epoch}, behind the position of a store of epoch {part.epoch}",
    "done": "lies behind the position of a store that has the last commit of epoch {epoch} already",
    "unhandled": "is of epoch {epoch} and of {source}, which the group hasn't committed",
    "untransacted": "is in no transaction, but all records of the owner of epoch {epoch} are",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LastOwner:
    """The last owner of a partition.

    Attributes:
        epoch: The highest epoch that an owner had.
        transaction: The number of its last commit, 0 if that is unknown.
        is_marked: Whether the group's offsets have no mark but its own.
        handled: By input, an offset before which all handled inputs lie; None if that is unknown.
    """

    epoch: int
    transaction: int = 0
    is_marked: bool = False
    handled: tuple[int | None, ...] = ()


def find_foreign(
    source: Source, parts: Sequence[Part] = (), *, only_behind: bool = False
) -> tuple[Finding, Mapping[int, int]]:
    """Look for records that no owner can have written.

    Args:
        source: The changelog.
        parts: What workers hold of it.
        only_behind: Whether only records behind the positions of `parts` are read; else the whole log.

    Returns:
        The finding, and by partition how many records of any writer lie behind the positions.

    Raises:
        ReplayError: What `Source.describe` raises.
    """
    topic, copies = source.describe(), {part.partition: part for part in parts}
    if only_behind:
        firsts = (
            (copies[number].changelog_offset if number in copies else end) for number, end in enumerate(topic.ends)
        )
        topic = replace(topic, starts=tuple(map(min, map(max, topic.starts, firsts), topic.ends)))
        with reading(str(source)):
            if read_rows(source, topic).isEmpty():
                # most often: markers of transactions alone
                return finding("writers", {}, ()), {}
    owners, note = last_owners(source, topic)
    behind = F.col("offset") >= by_partition(
        [_of(copies, number, "changelog_offset") for number in range(topic.partition_count)]
    )
    fields = metadata_fields(F.col("metadata"))
    rows = read_rows(source, topic).select(
        "partition",
        "offset",
        *(F.substring(name, 1, SHOWN_BYTES).alias(name) for name in ("key", "value")),
        *(fields[name].alias(name) for name in ("epoch", "source_offset", "input")),
    )
    judged = rows.withColumn("is_behind", F.coalesce(behind, F.lit(False))).withColumn(
        "why", _why(topic, owners, copies)
    )
    first = F.struct("offset", "key", "value", "epoch", "source_offset", "input", "why")
    counts = {
        "count": F.count("why"),
        "behind": F.count_if("is_behind"),
        "first": F.min(F.when(F.col("why").isNotNull(), first)),
    }
    with reading(str(source)):
        partitions = judged.groupBy("partition").agg(*(count.alias(name) for name, count in counts.items())).collect()
    partitions.sort(key=lambda row: row["partition"])
    return finding(
        "writers",
        {row["partition"]: row["count"] for row in partitions},
        (_told(row["partition"], row["first"], owners, copies) for row in partitions if row["count"]),
        [note] if note else [],
    ), {row["partition"]: row["behind"] for row in partitions}


def _why(topic: Topic, owners: Mapping[int, LastOwner], held: Mapping[int, Part]) -> Column:
    """Return the name of the first rule that a row is against, null if there is none."""
    numbers = range(topic.partition_count)
    marked = {number: owner for number, owner in owners.items() if owner.is_marked}
    commits = {number: (part.epoch, part.transaction) for number, part in held.items()}
    done = {
        number: owner.epoch
        for number, owner in marked.items()
        if owner.transaction and (owner.epoch, owner.transaction) == commits.get(number)
    }
    places = range(max((len(owner.handled) for owner in marked.values()), default=0))
    by_place = {number: dict(enumerate(owner.handled)) for number, owner in marked.items()}
    handled = [[by_place.get(number, {}).get(place) for number in numbers] for place in places]
    epoch, is_behind = F.col("epoch"), F.col("is_behind")
    is_last_owners = epoch == by_partition([_of(marked, number, "epoch") for number in numbers])
    is_last = F.col("offset") == by_partition([end - 1 for end in topic.ends])
    bound = by_input(handled, F.coalesce("input", F.lit(0))) if handled else F.lit(None)
    return (
        F.when(epoch > by_partition([_of(owners, number, "epoch") for number in numbers]), "epoch")
        .when(is_behind & (epoch < by_partition([_of(held, number, "epoch") for number in numbers])), "replaced")
        .when(is_behind & (epoch == by_partition([done.get(number) for number in numbers])), "done")
        .when(is_last_owners & (F.col("source_offset") >= bound), "unhandled")
        .when(is_last_owners & is_last, "untransacted")
    )


def _of(by_number: Mapping[int, object], number: int, name: str) -> int | None:
    return getattr(by_number[number], name) if number in by_number else None


def last_owners(source: Source, topic: Topic) -> tuple[dict[int, LastOwner], str]:
    """Return the last owner of each partition of a changelog, and why some are unknown; "" if none is.

    The group's offsets are read last: what lies in a log whose end was asked for before is in their commits.
    """
    kafka = source.live
    if not isinstance(kafka, KafkaSource):
        return {}, "an archive has no leader registry: whether owners wrote these records is unknown without --brokers"
    try:
        # an app's id has no two dashes, and its changelogs begin with it and two
        registry = topic.name.partition("--")[0] + _REGISTRY
        with kafka.asking() as admin:
            is_there = registry in admin.names()
        records = _records(replace(kafka, topic=registry), topic.topic_id) if is_there else {}
        owners = _with_marks(kafka, records)
    except ReplayError as error:
        return {}, f"whether owners wrote these records is unknown: {error}"
    missing = [str(number) for number in range(topic.partition_count) if number not in owners]
    if missing:
        return owners, f"the leader registry has no owner of this changelog's partitions {', '.join(missing)}"
    return owners, ""


def _records(registry: KafkaSource, topic_id: str) -> dict[int, dict[str, Any]]:
    """Return the last owner that has written to a changelog, by partition, from a registry."""
    rows = registry.records(registry.describe()).select("offset", "value").orderBy("offset")
    with reading(str(registry)):
        values = [bytes(row["value"]) for row in rows.where(F.col("value").isNotNull()).collect()]
    group = registry.topic.removesuffix("-owners")
    owners = dict(owner for value in values if (owner := decode_owner(value, topic_id)) is not None)
    return {number: record | {"group": group} for number, record in owners.items()}


def decode_owner(value: bytes, topic_id: str) -> tuple[int, dict[str, Any]] | None:
    """Return the partition and the owner that a record of a registry names; None if it is about another changelog.

    Workers skip what isn't a record of the registry, and log it.
    """
    try:
        record = json.loads(value)
        if not topic_id or topic_id not in record.get("changelog_ids", {}).values():
            return None
        return int(record["partition"]), {
            "epoch": int(record["epoch"]),
            "inputs": [source["topic"] for source in record["inputs"]],
        }
    except MISSHAPEN:
        return None


def _with_marks(kafka: KafkaSource, records: Mapping[int, Mapping[str, Any]]) -> dict[int, LastOwner]:
    groups = {(record["group"], name) for record in records.values() for name in record["inputs"]}
    committed: dict[tuple[str, str], Sequence[CommittedOffset]] = {}
    with kafka.asking() as admin:
        for group, name in sorted(groups):
            [committed[group, name]] = admin.committed(group, [admin.describe(name)])
    owners = {}
    for number, record in records.items():
        offsets = [committed[record["group"], name][number] for name in record["inputs"]]
        marks = [mark for offset in offsets if (mark := _mark(offset)) is not None]
        epoch = max(record["epoch"], *(mark[0] for mark in marks)) if marks else record["epoch"]
        is_marked = all(mark[:2] == (record["epoch"], marks[0][1]) for mark in marks)
        owners[number] = LastOwner(
            epoch=epoch,
            transaction=marks[0][1] if marks and is_marked else 0,
            is_marked=is_marked,
            handled=tuple(None if (mark := _mark(offset)) is None else mark[2] for offset in offsets),
        )
    return owners


def _mark(committed: CommittedOffset) -> tuple[int, int, int] | None:
    """Return epoch, transaction, and an offset before which all handled inputs lie; None without a worker's mark."""
    parts = committed.metadata.split(";")
    if committed.offset is None or len(parts) not in (3, 4):
        return None
    try:
        finished = base64.b64decode(parts[3]) if len(parts) == 4 else b""
        return int(parts[0]), int(parts[1]), committed.offset + 8 * len(finished)
    except MISSHAPEN:
        return None


def _told(partition: int, row: Row, owners: Mapping[int, LastOwner], held: Mapping[int, Part]) -> str:
    key, value, source = row["key"], row["value"], input_offset(row["source_offset"], row["input"])
    owner, part = owners.get(partition), held.get(partition)
    why = _WHY[row["why"]].format(epoch=row["epoch"], source=source, owner=owner, part=part)
    return f"partition {partition} offset {row['offset']} key {printable(key)} value {printable(value)} {why}"
