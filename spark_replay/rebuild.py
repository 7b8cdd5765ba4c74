"""State from a changelog: the last write of each key, as a DataFrame or as a folder of Parquet."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.observation import Observation

from spark_replay.changelog import read_rows
from spark_replay.errors import TargetError
from spark_replay.fold import last_writes, live
from spark_replay.reading import reading
from spark_replay.sources.base import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUMMARY = "_rebuild.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltPartition:
    """What a rebuild found in one partition, whose log it read up to `end_offset`."""

    partition: int
    end_offset: int
    keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """What a rebuild read and wrote; `_rebuild.json` holds the same.

    Attributes:
        changelog: The topic.
        as_of_ms: Unix milliseconds at which keys count as expired.
        keys: Rows written.
        records: Records read.
        unstamped: How many of these have no key or no stamp of this release's version: damage of the log.
        seconds: How long it took.
        partitions: One entry a partition.
    """

    changelog: str
    as_of_ms: int
    keys: int
    records: int
    unstamped: int
    seconds: float
    partitions: tuple[RebuiltPartition, ...]


def rebuild_state(
    source: Source,
    *,
    before: Sequence[int | None] | None = None,
    as_of_ms: int | None = None,
) -> DataFrame:
    """Give the state that a changelog stands for.

    Args:
        source: The changelog, as `kafka(...)` or `archive(...)` gives it.
        before: For each partition the offset to stop before, None for its end; all ends if left out.
        as_of_ms: Unix milliseconds at which keys count as expired; now if left out.

    Returns:
        One row a key: `partition` int, `key` binary, `value` binary, `source_offset` bigint, `epoch` bigint,
        `expires_at_ms` bigint (0: never), `offset` bigint, the record's own. The three of the stamp are null
        where the key's last record carries none.

    Raises:
        ReplayError: What `Source.describe` raises.
    """
    described = source.describe()
    rows = read_rows(source, described)
    positions = [None] * described.partition_count if before is None else before
    return live(last_writes(rows, positions), now_ms() if as_of_ms is None else as_of_ms)


def write_rebuild(
    source: Source,
    *,
    to: Path,
    overwrite: bool = False,
    as_of_ms: int | None = None,
) -> Rebuilt:
    """Write the state that a changelog stands for to a folder: Parquet as `rebuild_state` shapes it.

    The folder appears when it is complete; until then an older rebuild stays where it is.

    Raises:
        TargetError: The folder exists and `overwrite` isn't set, or isn't a rebuild's.
        ReadError: Spark couldn't read the log to its end.
        ReplayError: What `Source.describe` raises.
    """
    require_free(to, overwrite=overwrite)
    started = time.monotonic()
    as_of_ms = now_ms() if as_of_ms is None else as_of_ms
    described = source.describe()
    folded = last_writes(read_rows(source, described), [None] * described.partition_count)
    seen = Observation()
    counted = folded.observe(seen, F.sum("records").alias("records"), F.sum("damaged").alias("unstamped"))
    with _replacing(to) as staging, reading(str(source)):
        live(counted, as_of_ms).write.parquet(f"file://{staging}")
        keys = _keys(source.spark, staging)
        result = Rebuilt(
            changelog=source.topic,
            as_of_ms=as_of_ms,
            keys=sum(keys.values()),
            records=seen.get.get("records") or 0,
            unstamped=seen.get.get("unstamped") or 0,
            seconds=round(time.monotonic() - started, 3),
            partitions=tuple(
                RebuiltPartition(partition=number, end_offset=end, keys=keys.get(number, 0))
                for number, end in enumerate(described.ends)
            ),
        )
        (staging / SUMMARY).write_text(json.dumps(asdict(result), indent=1) + "\n")
    return result


def require_free(to: Path, *, overwrite: bool) -> None:
    """Check that a rebuild may be written to a folder.

    Raises:
        TargetError: It exists and `overwrite` isn't set, or holds something that isn't a rebuild.
    """
    if not to.exists():
        return
    if not overwrite:
        raise TargetError(f"{to} exists: choose another folder, or replace it with --overwrite")
    if not to.is_dir() or (not (to / SUMMARY).exists() and any(to.iterdir())):
        raise TargetError(f"{to} is no rebuild (it has no {SUMMARY}): not overwritten, choose another folder")


def now_ms() -> int:
    """Give the wall clock in Unix milliseconds."""
    return time.time_ns() // 1_000_000


def _keys(spark: SparkSession, folder: Path) -> dict[int, int]:
    rows = spark.read.parquet(f"file://{folder}").groupBy("partition").count().collect()
    return {row["partition"]: row["count"] for row in rows}


@contextmanager
def _replacing(to: Path) -> Iterator[Path]:
    to = to.absolute()
    staging = to.with_name(f".{to.name}-{os.getpid()}")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        yield staging
        shutil.rmtree(to, ignore_errors=True)
        staging.rename(to)
    except OSError as error:
        raise TargetError(f"{to} can't be written: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
