"""A database whose table sees every kind of change, and the events that Debezium makes of them.

python -m tests.formats.changes     records the events again, in tests/formats/debezium
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from dev import connect as kafka_connect
from dev import postgres as postgresql
from dev import registry as apicurio
from dev.connect import Format
from dev.kafka import Cluster
from dev.parts import Part
from tests.kafka.helpers import eventually, read_all, unique

RECORDED = Path(__file__).parent / "debezium"
FORMATS: Mapping[Format, str] = {"json": "json.json", "json-schema": "json_schema.json", "avro": "avro.json"}
ONE_PARTITION = {"topic.creation.default.partitions": "1"}
"""The order of all events is that of the changes."""

TABLE = """
create table customers (
  id int primary key, name text not null, email varchar(80), balance numeric(12, 2) not null default 0, born date,
  seen timestamptz, created timestamp, tags jsonb, code uuid, active boolean, score float8, big bigint, note text
)"""
# it is stored outside of the row: an update that leaves it as it is doesn't have it
LARGE = """
insert into customers (id, name, note)
values (4, 'Dan', (select string_agg(md5(i::text), '') from generate_series(1, 80) i))"""
BEFORE = (
    "alter table customers alter column note set storage external",
    """insert into customers values (
  1, 'Ada', 'ada@example.org', 10.50, '1815-12-10', '2026-01-02 03:04:05.678901+01', '2026-01-02 03:04:05.678901',
  '{"a": [1, null]}', '123e4567-e89b-12d3-a456-426614174000', true, 0.1, 9007199254740993, 'ä€')""",
    "insert into customers (id, name) values (2, 'Bob')",
)
"""What the table has when Debezium comes: it reads that as a snapshot."""
CHANGES = (
    "insert into customers (id, name) values (3, 'Cy')",
    "update customers set balance = balance + 1 where id = 1",
    "update customers set id = 20 where id = 2",
    "delete from customers where id = 3",
    LARGE,
    "update customers set balance = -0.01 where id = 4",
    "alter table customers add column level int not null default 7",
    "insert into customers (id, name, level) values (5, 'Eve', 8)",
    "alter table customers replica identity full",
    "update customers set name = 'Eva' where id = 5",
    "begin; update customers set score = 1 where id = 1; update customers set score = 2 where id = 1; commit",
    "truncate customers",
    "insert into customers (id, name) values (6, 'Flo')",
)
EVENTS = 17
"""Of the snapshot 2; a change of the primary key makes 3, a delete 2, a change of the table none."""


def make_database(postgres: str) -> str:
    """Make a database of its own; return its address."""
    name = unique("shop").replace("-", "_").lower()
    postgresql.run_sql(postgres, f"create database {name}")
    return f"{postgres.rpartition('/')[0]}/{name}"


@contextmanager
def following(
    connect: Part,
    database: str,
    value_format: Format = "json",
    *,
    registry: str = "",
    prefix: str | None = None,
    **settings: str,
) -> Iterator[str]:
    """Let Debezium write a database's changes for the time of the context; yield what its topics begin with."""
    prefix = prefix or unique("db").replace("-", "_").lower()
    kafka_connect.follow(
        connect,
        prefix,
        database,
        value_format=value_format,
        registry=registry,
        settings={key.replace("__", "."): value for key, value in settings.items()},
    )
    try:
        yield prefix
    finally:
        kafka_connect.forget(connect, prefix)


async def streaming(connect: Part, prefix: str, database: str) -> None:
    """Wait until the snapshot is done, and the changes are followed."""

    def has_begun() -> bool:
        state = kafka_connect.state_of(connect, prefix)
        assert "FAILED" not in state, state
        query = f"select active from pg_replication_slots where slot_name = '{prefix}'"
        return postgresql.run_sql(database, query).strip() == "t"

    await eventually(has_begun)


async def events_of(brokers: str, topic: str, count: int) -> list:
    """The first records of a topic, when there are so many."""

    async def records() -> list:
        return await read_all(brokers, topic)

    async def enough() -> list:
        found = await records()
        return found if len(found) >= count else []

    return (await eventually(enough, what=f"{count} records of {topic}"))[:count]


async def all_changes(
    connect: Part, brokers: str, database: str, value_format: Format, *, registry: str = "", prefix: str | None = None
) -> list:
    """Make every kind of change, and return the records of the table's topic in order."""
    postgresql.run_sql(database, TABLE, *BEFORE)
    with following(
        connect, database, value_format, registry=registry, prefix=prefix, topic__creation__default__partitions="1"
    ) as name:
        await streaming(connect, name, database)
        postgresql.run_sql(database, *CHANGES)
        return await events_of(brokers, f"{name}.public.customers", EVENTS)


def plain(record: Any, value_format: Format) -> dict[str, Any]:
    """A record as a file of JSON has it: decoded, or in hexadecimal digits if it is Avro."""

    def text(data: bytes | None) -> Any:
        if data is None:
            return None
        return data.hex() if value_format == "avro" else json.loads(data)

    # the headers' converter is Kafka Connect's own, whatever the format
    headers = {name: None if data is None else data.decode() for name, data in record.headers}
    return {"key": text(record.key), "value": text(record.value), "headers": headers}


def schemas_of(registry: str, records: list) -> dict[str, Any]:
    """The schemas of Avro records, by id."""
    ids = sorted({int.from_bytes(data[1:5]) for record in records for data in (record.key, record.value) if data})
    schemas = {}
    for number in ids:
        with urlopen(f"{registry}/schemas/ids/{number}") as response:
            schemas[str(number)] = json.loads(json.loads(response.read())["schema"])
    return schemas


async def record(folder: Path) -> None:
    """Record the events of each format from a fresh database."""
    with (
        Cluster.up(folder / "kafka") as cluster,
        postgresql.up(folder / "postgres") as postgres,
        apicurio.up(folder / "registry") as registry,
        kafka_connect.up(folder / "connect", cluster.bootstrap) as connect,
    ):
        for number, (value_format, name) in enumerate(FORMATS.items()):
            database = make_database(postgres.address)
            records = await all_changes(
                connect, cluster.bootstrap, database, value_format, registry=registry.address, prefix=f"shop_{number}"
            )
            schemas = schemas_of(registry.address, records) if value_format == "avro" else {}
            events = ",\n".join(json.dumps(plain(event, value_format), ensure_ascii=False) for event in records)
            (RECORDED / name).write_text(f'{{"schemas": {json.dumps(schemas)},\n"events": [\n{events}\n]}}\n')


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(record(Path(temporary)))
