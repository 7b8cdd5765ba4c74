"""The target of PostgreSQL against a real one, without a broker: keys, claims, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec
import psycopg
import pytest

from actors.errors import ConfigurationError, FencedError, Rejected
from actors.ports import TopicPartition
from actors.sinks import Batch, Lookup, Record
from actors.sinks.postgres import Postgres, SelectRow
from dev import postgres as postgresql
from dev.parts import Part
from tests.kafka.helpers import unique

SOURCE = TopicPartition("orders", 3)
TABLE = "CREATE TABLE orders (id text, part int, cents bigint NOT NULL, more jsonb, PRIMARY KEY (id, part))"


@pytest.fixture
def address(database: Part) -> str:
    """A database with a table."""
    name = unique("target").replace("-", "_")
    postgresql.run_sql(database.address, f"CREATE DATABASE {name}")
    address = database.address.rsplit("/", 1)[0] + f"/{name}"
    postgresql.run_sql(address, TABLE)
    return address


@pytest.fixture
async def target(address: str) -> AsyncIterator[Postgres]:
    """A target with two columns for a key."""
    target = made(address)
    yield target
    await target.close()


def made(address: str, **options: Any) -> Postgres:
    target = Postgres(address, **({"table": "orders", "key": ("id", "part")} | options))
    target.prepare("orders")
    return target


class Key(msgspec.Struct):
    id: str
    part: int


def batch(rows: list[tuple[Any, Any]], *, first: int = 0, token: int = 1) -> tuple[Batch, list[Any]]:
    """A batch of (key, row) pairs."""
    records = [Record("orders", 3, first + n, key, None, 0, []) for n, (key, _) in enumerate(rows)]
    following = first + len(rows)
    return (
        Batch(topic="orders", partition=3, first=first, next=following, token=token, records=records),
        [row for _, row in rows],
    )


def row(id: str, part: int, cents: Any, **more: Any) -> tuple[Key, dict[str, Any]]:
    return Key(id, part), {"id": id, "part": part, "cents": cents, **more}


def rows_of(address: str) -> list[str]:
    return postgresql.run_sql(address, "SELECT id, part, cents, more ->> 'a' FROM orders ORDER BY id, part").split()


async def test_the_last_row_of_each_key_is_there_whatever_columns_it_has(target: Postgres, address: str) -> None:
    assert await target.claim(SOURCE, "t1") == (None, 1)
    await target.write(*batch([row("a", 1, 1), row("a", 2, 5, more={"a": 7}), row("a", 1, 2), row("b", 1, 3)]))
    assert rows_of(address) == ["a,1,2,", "a,2,5,7", "b,1,3,"]
    await target.write(*batch([(Key("a", 1), None), (Key("b", 1), None), row("b", 1, 9), row("a", 2, 6)], first=4))
    # columns that a row doesn't have stay as they are
    assert rows_of(address) == ["a,2,6,7", "b,1,9,"]
    assert await target.claim(SOURCE, "t1") == (8, 2)


@pytest.mark.parametrize("key", [Key("a", 1), {"id": "a", "part": 1}, ("a", 1), ["a", 1]])
async def test_a_record_without_a_row_deletes_the_key_s(target: Postgres, address: str, key: Any) -> None:
    await target.claim(SOURCE, "t1")
    await target.write(*batch([row("a", 1, 1)]))
    await target.write(*batch([(key, None)], first=1))
    assert rows_of(address) == []


@pytest.mark.parametrize("column", ["title", "count"])
async def test_a_key_of_one_column_is_the_record_s_whatever_methods_texts_have(address: str, column: str) -> None:
    postgresql.run_sql(address, f"CREATE TABLE texts ({column} text PRIMARY KEY, n int)")
    target = made(address, table="texts", key=column)
    await target.claim(SOURCE, "t1")
    await target.write(*batch([("a", {column: "a", "n": 1}), ("b", {column: "b", "n": 1})]))
    await target.write(*batch([("a", None)], first=2))
    assert postgresql.run_sql(address, f"SELECT {column} FROM texts") == "b\n"
    await target.close()


async def test_without_a_key_rows_are_added_and_those_without_a_row_passed_over(address: str) -> None:
    postgresql.run_sql(address, "CREATE TABLE lines (n int, word text)")
    target = made(address, table="public.lines", key=())
    await target.claim(SOURCE, "t1")
    await target.write(*batch([("k", {"n": 1, "word": "tab\tand \\N"}), ("k", None), ("k", {"n": 1, "word": None})]))
    assert postgresql.run_sql(address, "SELECT n, word FROM lines ORDER BY word") == "1,tab\tand \\N\n1,\n"
    await target.close()


async def test_partitions_that_are_claimed_at_once_make_the_table_of_offsets_once(address: str) -> None:
    targets = [made(address) for _ in range(12)]
    claims = (target.claim(TopicPartition("orders", number), "t1") for number, target in enumerate(targets))
    assert await asyncio.gather(*claims) == [(None, 1)] * len(targets)
    await asyncio.gather(*(target.close() for target in targets))


async def test_a_writer_that_lost_its_partition_is_refused_and_leaves_nothing(address: str) -> None:
    old, new = made(address), made(address)
    assert await old.claim(SOURCE, "t1") == (None, 1)
    assert await new.claim(SOURCE, "t1") == (None, 2)
    with pytest.raises(FencedError, match=r"another worker has claimed orders\[3\]"):
        await old.write(*batch([row("a", 1, 1)], token=1))
    assert rows_of(address) == []
    await new.write(*batch([row("a", 1, 2)], token=2))
    # a repeat of what was committed isn't written again
    with pytest.raises(FencedError):
        await new.write(*batch([row("a", 1, 3)], token=2))
    assert rows_of(address) == ["a,1,2,"]
    await old.close()
    await new.close()


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (row("a", 1, None), "NotNullViolation"),
        (row("a", 1, "x"), "InvalidTextRepresentation"),
        (row("a", 1, 2**80), "NumericValueOutOfRange"),
        (row("a", 1, 1, more=object()), "cannot adapt type 'object'"),
        (row("a\0", 1, 1), "NUL"),
        ((Key("a", 1), {"id": "a", "cents": 1}), "a column of the key is missing: 'part'"),
        ((Key("a", 1), "text"), "has to be a mapping"),
        (("a", None), "isn't one of 2 columns"),
        (({"id": "a"}, None), "a column of the key is missing: 'part'"),
    ],
)
async def test_a_row_that_can_not_be_written_is_refused_with_nothing_of_its_batch(
    target: Postgres, address: str, refused: Any, reason: str
) -> None:
    await target.claim(SOURCE, "t1")
    with pytest.raises(Rejected, match=reason):
        await target.write(*batch([row("b", 1, 1), refused]))
    assert rows_of(address) == []
    await target.write(*batch([row("b", 1, 1)]))
    assert rows_of(address) == ["b,1,1,"]


@pytest.mark.parametrize("value", [{"a": {1}}, {"a": "\ud800"}, {"a": object()}, "\ud800"])
async def test_a_value_that_can_not_be_sent_is_refused(target: Postgres, address: str, value: Any) -> None:
    await target.claim(SOURCE, "t1")
    with pytest.raises(Rejected):
        await target.write(*batch([row("a", 1, 1), row("b", 1, 1, more=value)]))
    assert rows_of(address) == []


async def test_one_key_in_two_forms_is_refused_until_its_rows_are_alone(address: str) -> None:
    postgresql.run_sql(address, "CREATE TABLE sums (id numeric PRIMARY KEY, n int)")
    target = made(address, table="sums", key="id")
    await target.claim(SOURCE, "t1")
    pairs = [("1", {"id": "1", "n": 1}), ("1.0", {"id": "1.0", "n": 2})]
    with pytest.raises(Rejected):
        await target.write(*batch(pairs))
    for first, pair in enumerate(pairs):
        await target.write(*batch([pair], first=first))
    assert postgresql.run_sql(address, "SELECT n FROM sums") == "2\n"
    await target.close()


async def test_a_row_behind_a_delete_of_its_key_in_another_form_stays(address: str) -> None:
    postgresql.run_sql(address, "CREATE TABLE sums (id numeric PRIMARY KEY, n int)")
    target = made(address, table="sums", key="id")
    await target.claim(SOURCE, "t1")
    first: Any = {"id": "1", "n": 1}
    last: Any = {"id": "1.0", "n": 2}
    await target.write(*batch([("1", first), ("1", None), ("1.0", last), ("2", {"id": "2", "n": 3}), ("2.0", None)]))
    assert postgresql.run_sql(address, "SELECT id, n FROM sums") == "1.0,2\n"
    await target.close()


async def test_a_topic_that_was_created_again_is_not_read_from_the_old_offset(target: Postgres) -> None:
    await target.claim(SOURCE, "t1")
    await target.write(*batch([row("a", 1, 1)]))
    with pytest.raises(ConfigurationError, match=r"DELETE FROM faust_sink_offsets WHERE sink = 'orders' AND topic ="):
        await target.claim(SOURCE, "t2")


async def test_a_user_who_may_not_make_the_table_of_offsets_learns_what_to_run(address: str, database: Part) -> None:
    name = unique("reader").replace("-", "_")
    postgresql.run_sql(address, f"CREATE USER {name}", f"GRANT ALL ON orders TO {name}")
    limited = address.replace("postgres@", f"{name}@")
    target = made(limited)
    with pytest.raises(ConfigurationError, match="Run: CREATE TABLE IF NOT EXISTS") as raised:
        await target.claim(SOURCE, "t1")
    statement = str(raised.value).partition("Run: ")[2].partition("; and grant")[0]
    postgresql.run_sql(address, statement, f"GRANT SELECT, INSERT, UPDATE ON faust_sink_offsets TO {name}")
    assert await target.claim(SOURCE, "t1") == (None, 1)
    await target.write(*batch([row("a", 1, 1)]))
    assert rows_of(address) == ["a,1,1,"]
    await target.close()


async def test_a_table_without_a_unique_index_on_the_key_is_an_error_and_no_refusal(address: str) -> None:
    target = made(address, key="cents")
    await target.claim(SOURCE, "t1")
    with pytest.raises(psycopg.errors.InvalidColumnReference, match="no unique or exclusion constraint"):
        await target.write(*batch([row("a", 1, 1)]))
    await target.close()


async def test_a_statement_that_takes_too_long_is_an_error_and_no_refusal(address: str) -> None:
    target = made(address, timeout=timedelta(milliseconds=200))
    await target.claim(SOURCE, "t1")
    postgresql.run_sql(
        address,
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN NEW; END'",
        "CREATE TRIGGER slow BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION slow()",
    )
    with pytest.raises(psycopg.errors.QueryCanceled):
        await target.write(*batch([row("a", 1, 1)]))
    postgresql.run_sql(address, "DROP TRIGGER slow ON orders")
    assert await target.claim(SOURCE, "t1") == (None, 2)
    await target.write(*batch([row("a", 1, 1)], token=2))
    assert rows_of(address) == ["a,1,1,"]
    await target.close()


async def test_a_lookup_reads_rows(address: str) -> None:
    postgresql.run_sql(address, "INSERT INTO orders VALUES ('a', 1, 5)")
    lookup: Lookup[Any, dict[str, Any]] = Lookup(SelectRow(address, "SELECT id, cents FROM orders WHERE id = %s"))
    assert await lookup.get("a") == {"id": "a", "cents": 5}
    assert await lookup.get("b") is None
    pair = SelectRow(address, "SELECT cents FROM orders WHERE id = %s AND part = %s")
    assert await pair(("a", 1)) == {"cents": 5}
    await lookup.close()
    await pair.close()


def test_an_address_that_is_none_is_refused_without_its_text() -> None:
    with pytest.raises(ConfigurationError, match="isn't one of PostgreSQL's") as raised:
        Postgres("mysql secret", table="orders")
    assert "secret" not in str(raised.value)


def test_two_sinks_may_not_share_a_target() -> None:
    target = made("postgresql://127.0.0.1/shop")
    with pytest.raises(ConfigurationError, match="make a second one"):
        target.prepare("other")
