"""Parquet files: a chain of offsets, in a folder and in object storage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from actors.errors import ConfigurationError, FencedError, Rejected
from actors.ports import TopicPartition
from actors.sinks import Batch, Record
from actors.sinks.parquet import Parquet
from tests.kafka.helpers import unique
from tests.s3 import S3Server

SOURCE = TopicPartition("orders", 3)
SCHEMA = pa.schema({"id": pa.string(), "cents": pa.int64()})


def batch(first: int, following: int, values: list[Any] | None = None) -> tuple[Batch, list[Any]]:
    offsets = range(first, following)
    records = [Record("orders", 3, offset, f"k{offset}", offset, 1000, []) for offset in offsets]
    rows = [{"id": record.key, "cents": record.value} for record in records] if values is None else values
    return Batch(topic="orders", partition=3, first=first, next=following, token=1, records=records), rows


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where files go."""
    if request.param == "folder":
        return str(tmp_path / "lake")
    s3: S3Server = request.getfixturevalue("s3")
    variables: Mapping[str, str] = s3.environment
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return s3.make_bucket(unique("lake")) + "/shop"


async def read(target: Parquet) -> list[int]:
    """All offsets of all files, as a reader of the whole place has them."""
    offsets: list[int] = []
    for entries in obstore.list(target._store):
        for entry in entries:
            raw = bytes(obstore.get(target._store, entry["path"]).bytes())
            table = pq.read_table(pa.BufferReader(raw))
            offsets += table["_offset"].to_pylist()
    return offsets


async def test_each_record_is_in_one_file_also_if_batches_repeat(place: str) -> None:
    target = Parquet(place, schema=SCHEMA)
    assert await target.claim(SOURCE, "t1") == (None, None)
    await target.write(*batch(10, 15))
    assert await target.claim(SOURCE, "t1") == (15, None)
    # the outcome of the first attempt was unknown, or another worker was quicker
    with pytest.raises(FencedError, match="00000000000000000010"):
        await target.write(*batch(10, 20))
    await target.write(*batch(15, 17))
    other = Parquet(place)
    assert await other.claim(SOURCE, "t1") == (17, None)
    assert await other.claim(TopicPartition("orders", 30), "t1") == (None, None)
    assert sorted(await read(target)) == list(range(10, 17))


async def test_a_record_that_is_given_up_leaves_a_link_of_the_chain(place: str) -> None:
    target = Parquet(place, schema=SCHEMA)
    await target.write(*batch(0, 2))
    link, _ = batch(2, 3)
    await target.write(Batch(topic="orders", partition=3, first=2, next=3, token=1, records=[]), [])
    assert link.next == 3
    assert await target.claim(SOURCE, "t1") == (3, None)


async def test_records_without_a_row_are_left_out(place: str) -> None:
    target = Parquet(place, schema=SCHEMA)
    await target.write(*batch(0, 3, [{"id": "a", "cents": 1}, None, {"id": "b", "cents": 2}]))
    assert await read(target) == [0, 2]


@pytest.mark.parametrize("rows", [[{"id": "a", "cents": "x"}], ["text"], [{"id": object(), "cents": 1}]])
async def test_rows_that_do_not_fit_are_refused(tmp_path: Path, rows: list[Any]) -> None:
    target = Parquet(tmp_path, schema=SCHEMA)
    with pytest.raises(Rejected):
        await target.write(*batch(0, 1, rows))
    assert await read(target) == []


@pytest.mark.parametrize(
    "row",
    [{"a": 2**70}, {"a": {}}, {"a": "\ud800"}, {"_offset": 1}, {1: 1}],
    ids=["int", "empty", "text", "own", "name"],
)
async def test_rows_that_no_file_can_have_are_refused(tmp_path: Path, row: Any) -> None:
    target = Parquet(tmp_path)
    with pytest.raises(Rejected):
        await target.write(*batch(0, 1, [row]))
    assert await read(target) == []


async def test_columns_that_only_later_rows_have_are_written(tmp_path: Path) -> None:
    target = Parquet(tmp_path)
    await target.write(*batch(0, 3, [{"id": "a"}, {}, {"id": "b", "cents": 2}]))
    (file,) = (tmp_path / "orders" / "3").iterdir()
    assert pq.read_table(file).select(["id", "cents", "_offset"]).to_pylist() == [
        {"id": "a", "cents": None, "_offset": 0},
        {"id": None, "cents": None, "_offset": 1},
        {"id": "b", "cents": 2, "_offset": 2},
    ]
    await target.write(*batch(3, 4, [{}]))
    assert sorted(await read(target)) == [0, 1, 2, 3]


async def test_a_column_that_the_schema_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="column 'price' isn't in the schema"):
        await Parquet(tmp_path, schema=SCHEMA).write(*batch(0, 1, [{"id": "a", "price": 1}]))


async def test_a_topic_that_was_created_again_is_not_mixed_with_the_former(tmp_path: Path) -> None:
    target = Parquet(tmp_path)
    await target.claim(SOURCE, "t1")
    await target.write(*batch(0, 1))
    with pytest.raises(ConfigurationError, match="deleted and created again"):
        await target.claim(SOURCE, "t2")


async def test_a_file_of_another_program_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "orders" / "3"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": ["a"]}), folder / "part.parquet")
    with pytest.raises(ConfigurationError, match=r"part\.parquet wasn't written by a sink"):
        await Parquet(tmp_path).claim(SOURCE, "t1")


def test_a_place_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="ftp://"):
        Parquet("ftp://somewhere")
