"""The fold, the write metadata and the placement, against plain Python that shares no code with them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.partitioner import murmur2 as reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812

from spark_replay import home_partition, murmur2
from spark_replay.fold.fold import last_offsets, last_writes, live, only_writes, with_writes
from spark_replay.sources.reading import with_limit
from stores._core.record import METADATA_HEADER, encode_metadata
from tests.examples import examples
from tests.spark.helpers import NOW_MS, Write, fold

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = "partition int, offset bigint, key binary, value binary, metadata binary"

int64 = st.integers(-(2**63), 2**63 - 1)
writes = st.builds(
    Write,
    partition=st.integers(0, 2),
    key=st.sampled_from([b"", b"a", b"b", b"\x00\xff", b"long" * 9]),
    value=st.none() | st.binary(max_size=4),
    source_offset=int64,
    epoch=st.integers(0, 2**63 - 1),
    expires_at_ms=st.sampled_from([0, 1, NOW_MS - 1, NOW_MS, NOW_MS + 1, 2**63 - 1]),
)


def raw(rows: DataFrame) -> DataFrame:
    """Return rows as a source has them: with headers, in which the write metadata is not looked for yet."""
    header = F.struct(F.lit(METADATA_HEADER).alias("key"), F.col("metadata").alias("value"))
    return rows.withColumns({"headers": F.array(header), "timestamp": F.timestamp_millis(F.lit(0))}).drop("metadata")


def twice(rows: DataFrame, before: list[int | None]) -> DataFrame:
    return with_writes(last_offsets(rows, before), raw(rows))


def writes_alone(rows: DataFrame, before: list[int | None]) -> DataFrame:
    return only_writes(last_offsets(rows, before), raw(rows))


Fold = Callable[..., Any]
WAYS = (
    pytest.param((last_writes, 0), id="one-pass"),
    pytest.param((twice, 1_000_000), id="two-passes-broadcast"),
    pytest.param((twice, 0), id="two-passes-shuffled"),
)


WRITES = (
    pytest.param((writes_alone, 1_000_000), id="writes-broadcast"),
    pytest.param((writes_alone, 0), id="writes-shuffled"),
)


def fold_of(patch: pytest.MonkeyPatch, way: tuple[Fold, int]) -> Fold:
    """Return the function of a way to fold; more keys than its number aren't broadcast."""
    patch.setattr("spark_replay.fold.fold._BROADCAST_ROWS", way[1])
    return way[0]


def test_murmur2_of_all_lengths_is_that_of_the_java_client(spark: SparkSession):
    chance = random.Random(41)
    keys = [chance.randbytes(length) for length in range(41) for _ in range(10)]
    keys += [bytes([255]) * length for length in range(41)]
    frame = spark.createDataFrame([(key,) for key in keys], "key binary")
    rows = frame.select("key", murmur2(F.col("key")).alias("hash"), home_partition(F.col("key"), 7).alias("home"))
    for key, hashed, home in rows.collect():
        assert hashed == reference(bytes(key)), bytes(key)
        assert home == (reference(bytes(key)) & 0x7FFFFFFF) % 7


@pytest.mark.parametrize("way", [*WAYS, *WRITES])
@settings(max_examples=examples(6), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    records=st.lists(writes, max_size=60),
    before=st.lists(st.none() | st.integers(0, 60), min_size=3, max_size=3),
)
def test_fold_equals_a_plain_one(
    spark: SparkSession, records: list[Write], before: list[int | None], way: tuple[Fold, int]
):
    log = [Write(**{**vars(write), "offset": offset}) for offset, write in enumerate(records)]
    rows = [
        (w.partition, w.offset, w.key, w.value, encode_metadata(w.epoch, w.source_offset, w.expires_at_ms)) for w in log
    ]
    with pytest.MonkeyPatch.context() as patch:
        folded = fold_of(patch, way)(spark.createDataFrame(rows, ROWS), before)
    found = {
        (row["partition"], bytes(row["key"])): (
            bytes(row["value"]),
            row["source_offset"],
            row["epoch"],
            row["expires_at_ms"],
            row["offset"],
        )
        for row in live(folded, [NOW_MS] * len(before)).collect()
    }
    expected = fold(log, before=before)
    assert found == {
        place: (w.value, w.source_offset, w.epoch, w.expires_at_ms, w.offset) for place, w in expected.items()
    }


@pytest.mark.parametrize("way", WAYS)
def test_counts_of_a_fold_include_what_it_leaves_out(
    spark: SparkSession, way: tuple[Fold, int], monkeypatch: pytest.MonkeyPatch
):
    metadata = encode_metadata(1, 2, 3)
    rows = [
        (0, 0, b"k", b"v", metadata),
        (0, 1, b"k", b"w", None),
        (0, 2, b"k", b"x", None),
        (0, 3, b"k", None, metadata),
        (0, 4, b"later", b"v", metadata),
    ]
    fold_rows = fold_of(monkeypatch, way)
    folded = {bytes(row["key"]): row for row in fold_rows(spark.createDataFrame(rows, ROWS), [3]).collect()}
    row = folded[b"k"]
    assert (row["last"]["offset"], row["later_offset"]) == (2, 3)
    assert (row["records"], row["damaged"], row["damaged_offset"]) == (4, 2, 1)
    assert (folded[b"later"]["last"], folded[b"later"]["later_offset"]) == (None, 4)


def test_the_jvm_compiles_the_second_read(spark: SparkSession, capsys: pytest.CaptureFixture[str]):
    """A method of 8,000 bytes or more would be interpreted."""
    log = spark.createDataFrame([(0, 0, b"k", b"v", encode_metadata(1, 2, 3))], ROWS)
    rows = with_limit(log, F.lit("app--store-changelog"))
    state = live(writes_alone(rows, [None]), [NOW_MS])
    asked = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    before = {name: spark.conf.get(name) for name in asked}
    try:
        for name, value in asked.items():
            spark.conf.set(name, value)
        state.explain(mode="codegen")
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    sizes = re.findall(r"maxMethodCodeSize:(\d+)", capsys.readouterr().out)
    assert sizes
    assert max(map(int, sizes)) < 8_000
