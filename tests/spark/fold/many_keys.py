"""Rebuilds of many keys, in a process of its own; its arguments are a folder and the number of keys."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from spark_replay import spark_session, write_rebuild
from spark_replay.sources.columns import by_partition
from stores._core.record import METADATA_HEADER, encode_metadata
from tests.spark.fold.test_extending import MemorySource, point
from tests.spark.helpers import NOW_MS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_replay.sources.brokers.topic import Topic

PARTITIONS = 2
TAIL = 50
"""A key of so many is written again behind the first rebuild's point."""
GAP = 64
"""Offsets are so far apart, as compaction leaves them: no two writes share a word of bits, and the
words are too many to be sent to all tasks."""


@dataclass(frozen=True)
class FileSource(MemorySource):
    """A log in Parquet files."""

    folder: str = ""

    def records(self, topic: Topic) -> DataFrame:
        offset = F.col("offset")
        rows = self.spark.read.parquet(self.folder)
        return rows.where((offset >= by_partition(topic.starts)) & (offset < by_partition(topic.ends)))


def main(folder: Path, keys: int) -> None:
    """Write a log, rebuild it from the start and from there, and print what the rebuilds count."""
    spark = spark_session(master="local[2]", settings={"spark.driver.memory": "1g"})
    header = F.struct(F.lit(METADATA_HEADER).alias("key"), F.lit(encode_metadata(1, 1)).alias("value"))
    number = F.col("id") % keys
    records = keys + keys // TAIL
    spark.range(records).select(
        (number % PARTITIONS).cast("int").alias("partition"),
        (F.floor(F.col("id") / PARTITIONS) * GAP).alias("offset"),
        F.encode(F.format_string("key-%012d", number), "UTF-8").alias("key"),
        F.encode(F.format_string("%0100d", F.col("id")), "UTF-8").alias("value"),
        F.lit(None).cast("timestamp").alias("timestamp"),
        F.array(header).alias("headers"),
    ).write.parquet(str(folder / "log"))
    source = FileSource(spark, [], (records // PARTITIONS * GAP,) * PARTITIONS, folder=str(folder / "log"))
    first = point([keys // PARTITIONS * GAP] * PARTITIONS)
    whole = write_rebuild(source, to=folder / "to", as_of=first, as_of_ms=NOW_MS)
    done = write_rebuild(source, to=folder / "to", base=folder / "to", overwrite=True, as_of_ms=NOW_MS)
    print(json.dumps({"whole": whole.totals, "done": done.totals, "layers": [layer.rows for layer in done.layers]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
