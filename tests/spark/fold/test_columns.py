"""Values of a store with an Avro format as columns, by schemas that were exported; no app, no registry."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pytest

from actors import App
from actors._core.values.rows import encode_span, rows_prefix, span_key
from actors._core.windows.join_rows import encode_headers
from actors._core.windows.rows import VALUE, aligned_key
from actors.formats import Avro
from actors.formats.schemas.declared import exported
from actors.runtime.message.unresolved import resolved_now
from actors.testing import FakeRegistry
from spark_replay import InputError, kafka, rebuild_state, value_columns, write_rebuild
from spark_replay.jars import package_of
from stores._core.windows import PROGRESS_KEY, Progress, encode_progress
from tests.spark.helpers import NOW_MS, Transaction, Write, home, write_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class First(msgspec.Struct, tag=False):
    owner: str
    cents: int


class Price(msgspec.Struct):
    amount: Annotated[Decimal, msgspec.Meta(extra={"precision": 9, "scale": 2})]


class Second(msgspec.Struct):
    owner: str
    cents: int
    at: datetime | None = None
    prices: list[Price] = []


class Opened(msgspec.Struct, tag=True):
    owner: str


class Closed(msgspec.Struct, tag=True):
    reason: str


def store(registry: FakeRegistry, type_: Any, name: str) -> Any:
    type_.__name__ = "Account"
    app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry=registry)
    return app, app.store(name, format=Avro(type_))


AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
LATER = Second("bob", 7, AT, [Price(Decimal("2.50"))])


def bytes_and_schemas(name: str = "accounts") -> tuple[bytes, bytes, dict[str, Any]]:
    import asyncio

    registry = FakeRegistry()
    _, first = store(registry, First, name)
    app, second = store(registry, Second, name)
    old = resolved_now(lambda: first.encode_value(First("ada", 5)))
    new = resolved_now(lambda: second.encode_value(LATER))
    return old, new, asyncio.run(exported(app))


def written(folder: Path, schemas: dict[str, Any], changelog: str) -> Path:
    [own] = schemas.values()
    (folder / "schemas.json").write_text(json.dumps({changelog: own}))
    return folder / "schemas.json"


def test_values_of_two_schemas_have_the_columns_of_the_newer_one(spark: SparkSession, tmp_path: Path) -> None:
    old, new, schemas = bytes_and_schemas()
    assert list(schemas) == ["shop--accounts-changelog"]
    file = written(tmp_path, schemas, "log")
    rows = spark.createDataFrame([(old,), (new,), (None,)], "value binary")
    frame = value_columns(rows, file, "log")
    assert "PythonUDF" not in frame._jdf.queryExecution().toString()
    first, second, null = [row["value_columns"] for row in frame.collect()]
    assert first.asDict(recursive=True) == {"owner": "ada", "cents": 5, "at": None, "prices": []}
    assert (second["owner"], second["cents"], second["at"].timestamp()) == ("bob", 7, AT.timestamp())
    assert (second["prices"][0]["amount"], null) == (Decimal("2.50"), None)


@pytest.mark.parametrize(
    "damage", [b"\0\0\0\0\x63", *(pytest.param(raw, marks=pytest.mark.nightly) for raw in (b"{}", b""))]
)
def test_a_value_of_another_schema_ends_the_job(spark: SparkSession, tmp_path: Path, damage: bytes) -> None:
    _, _, schemas = bytes_and_schemas()
    rows = spark.createDataFrame([(damage,)], "value binary")
    frame = value_columns(rows, written(tmp_path, schemas, "log"), "log")
    with pytest.raises(Exception, match="log: not a value of the exported schemas: "):
        frame.collect()


def test_a_file_without_the_changelog_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "schemas.json").write_text("{}")
    rows = spark.createDataFrame([(b"",)], "value binary")
    with pytest.raises(InputError, match="faust -A APP schemas export"):
        value_columns(rows, tmp_path / "schemas.json", "log")
    assert package_of("avro", "4.0.0") == "org.apache.spark:spark-avro_2.13:4.0.0"


def test_a_rebuild_has_the_columns(spark: SparkSession, brokers: str, tmp_path: Path) -> None:
    old, new, schemas = bytes_and_schemas()
    log = write_log(brokers, [Transaction((Write(home(b"a"), b"a", old), Write(home(b"b"), b"b", new)))])
    file = written(tmp_path, schemas, log.topic)
    source = kafka(spark, brokers, log.topic)
    assert write_rebuild(source, to=tmp_path / "rebuilt", as_of_ms=NOW_MS, schemas=file).keys == 2
    frame = spark.read.parquet(f"file://{tmp_path}/rebuilt")
    rows = {bytes(row["key"]): (row["owner"], row["cents"]) for row in frame.select("key", "value_columns.*").collect()}
    assert rows == {b"a": ("ada", 5), b"b": ("bob", 7)}
    assert value_columns(rebuild_state(source, as_of_ms=NOW_MS), file, log.topic).count() == 2


def test_the_record_that_counts_the_rows_of_a_key_is_no_value(spark: SparkSession, tmp_path: Path) -> None:
    old, _, schemas = bytes_and_schemas()
    [own] = schemas.values()
    file = written(tmp_path, {"rows": own | {"has_rows": True}}, "log")
    content = [(span_key(b"ada"), encode_span(0, 1)), (rows_prefix(b"ada") + b"n", old)]
    frame = value_columns(spark.createDataFrame(content, "key binary, value binary"), file, "log")
    assert [row["value_columns"] and row["value_columns"]["owner"] for row in frame.collect()] == [None, "ada"]


def test_windows_have_columns_and_their_progress_and_headers_have_none(spark: SparkSession, tmp_path: Path) -> None:
    old, _, schemas = bytes_and_schemas()
    [own] = schemas.values()
    file = written(tmp_path, {"windows": own | {"has_windows": True}}, "log")
    window, headers = aligned_key(60_000, b"ada"), encode_headers([("tenant", b"acme")])
    content = [(PROGRESS_KEY, encode_progress(Progress())), (window, VALUE + old), (b"W" + window[1:], headers)]
    frame = value_columns(spark.createDataFrame(content, "key binary, value binary"), file, "log")
    owners = [row["value_columns"] and row["value_columns"]["owner"] for row in frame.collect()]
    assert owners == [None, "ada", None]


@pytest.mark.parametrize("subject", ["topic", pytest.param("record", marks=pytest.mark.nightly)])
def test_values_of_a_union_have_the_column_of_their_type(spark: SparkSession, tmp_path: Path, subject: Any) -> None:
    import asyncio

    app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry=FakeRegistry())
    accounts = app.store("accounts", format=Avro(Opened | Closed, subject=subject))
    values = [(resolved_now(partial(accounts.encode_value, value)),) for value in (Opened("ada"), Closed("bankrupt"))]
    file = written(tmp_path, asyncio.run(exported(app)), "log")
    frame = value_columns(spark.createDataFrame(values, "value binary"), file, "log")
    rows = [row["value_columns"].asDict(recursive=True) for row in frame.collect()]
    assert rows == [
        {"member0": {"owner": "ada"}, "member1": None},
        {"member0": None, "member1": {"reason": "bankrupt"}},
    ]


def test_a_list_of_an_avro_type_is_exported_as_one_with_rows() -> None:
    import asyncio

    app = App("shop", broker="kafka://127.0.0.1:9092", schema_registry=FakeRegistry())
    app.list_store("lines", format=Avro(First))
    assert [own["has_rows"] for own in asyncio.run(exported(app)).values()] == [True]
