"""What a snapshot has of the inputs of an actor: the position that a worker's restore of the same records has."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from actors.runtime.state.restore import stored_writes
from spark_replay.snapshot.snapshot import highest_marks, marked_writes
from spark_replay.sources.changelog import with_metadata
from stores._core.record import METADATA_BYTES, METADATA_HEADER, Position, encode_metadata
from stores._core.replay import advance
from tests.logs import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGS = 150
NOTHING = Position(source_offset=0, changelog_offset=0, wall_time_ms=0, epoch=0, changelog_id="")
COLUMNS = (
    "partition int, offset bigint, key binary, value binary, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)


def some_log(chance: random.Random) -> list[Record]:
    """Make records of owners with one input or several, in no order, and of other programs."""
    inputs = chance.choice([(None,), (0, 1), (None, 0, 1, 2), (None, 63)])
    records = []
    for offset in range(chance.randint(0, 25)):
        metadata = encode_metadata(
            chance.randint(0, 3), chance.randint(-1, 300), chance.choice([0, 7]), input=chance.choice(inputs)
        )
        headers = chance.choice([((METADATA_HEADER, metadata),)] * 8 + [(), ((METADATA_HEADER, b"short"),)])
        key = chance.choice([b"a", b"b", b"c", b"d", None])
        value = chance.choice([b"", b"x", b"y", None])
        records.append(Record(offset, key, value, headers))
    return records


def test_a_snapshots_position_and_rows_are_those_of_a_restore(spark: SparkSession):
    chance = random.Random(5)
    logs = [some_log(chance) for _ in range(LOGS)]
    rows = [
        (number, record.offset, record.key, record.value, None, list(record.headers))
        for number, records in enumerate(logs)
        for record in records
    ]
    marked = marked_writes(with_metadata(spark.createDataFrame(rows, COLUMNS))).cache()
    marks: dict[int, list[bytes]] = {}
    counted: dict[int, int] = {}
    for row in highest_marks(marked.withColumn("kept", marked["value"].isNotNull())).collect():
        counted[row["partition"]] = counted.get(row["partition"], 0) + row["keys"]
        if row["mark"] is not None:
            marks.setdefault(row["partition"], []).append(bytes(row["mark"]).ljust(METADATA_BYTES, b"\0"))
    held: dict[int, dict[bytes, bytes]] = {}
    for row in marked.where("value IS NOT NULL").collect():
        key, own = bytes(row["key"]), held.setdefault(row["partition"], {})
        assert key not in own, "a key has one value"
        own[key] = bytes(row["value"])
    several = 0
    for number, records in enumerate(logs):
        writes, newest = stored_writes(records)
        kept = {key: value for key, value in dict(writes).items() if value is not None}
        assert held.get(number, {}) == kept
        assert counted.get(number, 0) == len(kept)
        restored = advance(NOTHING, newest, len(records))
        assert advance(NOTHING, marks.get(number, ()), len(records)) == restored, records
        several += sum(offset > 0 for offset in restored.offsets) > 1
    assert several > LOGS // 10, "most logs tell nothing of more than one input"
