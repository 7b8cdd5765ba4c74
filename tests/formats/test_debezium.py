"""Changes of a real database, as a real Debezium writes them into a topic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from actors import App, Context
from actors.testing import ActorTestDriver
from dev import connect as kafka_connect
from dev import postgres as postgresql
from dev.connect import Format
from dev.parts import Part
from tests.documents import block
from tests.formats.changes import (
    FORMATS,
    RECORDED,
    all_changes,
    events_of,
    following,
    make_database,
    plain,
    schemas_of,
    streaming,
)
from tests.kafka.helpers import eventually, read_all

# they differ from run to run; those that a program decides by are compared as present or not
CHANGING = frozenset(("ts_ms", "ts_us", "ts_ns", "lsn", "txId", "sequence", "name", "db", "version"))


def masked(value: Any) -> Any:
    """A value in which what changes from run to run is masked, and what is null isn't."""
    if isinstance(value, dict):
        return {key: "masked" if key in CHANGING and item is not None else masked(item) for key, item in value.items()}
    return [masked(item) for item in value] if isinstance(value, list) else value


def payload(event: dict[str, Any], value_format: Format) -> dict[str, Any]:
    if value_format == "json-schema":
        event = {part: event[part] and event[part]["payload"] for part in ("key", "value")}
    return {"key": event["key"], "value": masked(event["value"])}


def recorded(value_format: Format) -> dict[str, Any]:
    return json.loads((RECORDED / FORMATS[value_format]).read_text())


@pytest.mark.nightly
@pytest.mark.parametrize("value_format", ["json", "json-schema"])
async def test_events_are_those_that_were_recorded(
    debezium: Part, brokers: str, postgres: str, value_format: Format
) -> None:
    records = await all_changes(debezium, brokers, make_database(postgres), value_format)
    events = [payload(plain(record, value_format), value_format) for record in records]
    assert events == [payload(event, value_format) for event in recorded(value_format)["events"]]
    operations = [event["value"] and event["value"]["op"] for event in events]
    assert operations == [*"rrcu", "d", None, "c", "d", None, *"cucuuutc"]


@pytest.mark.nightly
async def test_avro_has_the_ids_of_the_registrys_schemas(
    debezium: Part, brokers: str, postgres: str, registry: str
) -> None:
    records = await all_changes(debezium, brokers, make_database(postgres), "avro", registry=registry)
    content = recorded("avro")
    assert [(record.key is None, record.value is None) for record in records] == [
        (event["key"] is None, event["value"] is None) for event in content["events"]
    ]
    # the table's key, and its rows before and after the new column
    assert len(schemas_of(registry, records)) == len(content["schemas"]) == 3
    assert {record.value[:1] for record in records if record.value} == {b"\0"}


@pytest.mark.nightly
async def test_a_killed_connect_loses_no_change(brokers: str, postgres: str, tmp_path: Path) -> None:
    database = make_database(postgres)
    postgresql.run_sql(database, "create table numbers (n int primary key)", "insert into numbers values (1)")
    with kafka_connect.up(tmp_path / "connect", brokers) as connect, following(connect, database) as prefix:
        await streaming(connect, prefix, database)
        connect.kill()
        postgresql.run_sql(database, "insert into numbers values (2)")
        command = ["up", "--dir", str(tmp_path / "connect"), "--broker", brokers, "--postgres", database]
        done = CliRunner().invoke(kafka_connect.main, [*command, "--prefix", prefix])
        assert (done.exit_code, done.output) == (0, f"{connect.address}\n")
        await streaming(connect, prefix, database)
        postgresql.run_sql(database, "insert into numbers values (3)")

        async def has_all() -> bool:
            # what was written just before the kill may come again
            records = await read_all(brokers, f"{prefix}.public.numbers")
            return {json.loads(record.key)["n"] for record in records} == {1, 2, 3}

        await eventually(has_all)


@pytest.mark.nightly
async def test_a_renamed_table_has_another_topic(debezium: Part, brokers: str, postgres: str) -> None:
    database = make_database(postgres)
    postgresql.run_sql(database, "create table numbers (n int primary key)", "insert into numbers values (1)")
    with following(debezium, database) as prefix:
        await streaming(debezium, prefix, database)
        postgresql.run_sql(database, "alter table numbers rename to figures", "insert into figures values (2)")
        (event,) = await events_of(brokers, f"{prefix}.public.figures", 1)
        assert json.loads(event.key) == {"n": 2}
        assert json.loads(event.value)["source"]["table"] == "figures"
        assert len(await read_all(brokers, f"{prefix}.public.numbers")) == 1


@pytest.mark.nightly
async def test_a_router_keeps_a_renamed_table_in_its_topic(debezium: Part, brokers: str, postgres: str) -> None:
    """The settings are those of the page."""
    database = make_database(postgres)
    postgresql.run_sql(database, "create table customers (id int primary key, name text)")
    postgresql.run_sql(database, "insert into customers values (1, 'Ada')")
    settings = json.loads(block("docs/how-to/debezium.md", "What changes do").code)
    with following(debezium, database) as prefix:
        await streaming(debezium, prefix, database)
        kafka_connect.follow(debezium, prefix, database, settings=settings)
        renamed = ("alter table customers rename to clients", "insert into clients values (2, 'Bob')")
        postgresql.run_sql(database, *renamed, "update clients set name = 'Eve' where id = 1")
        events = await events_of(brokers, f"{prefix}.public.customers", 3)
    app = App("shop", broker="kafka://127.0.0.1:9092")
    table = app.table(app.topic("db.public.customers", key_type=int, value_type=dict), name="customers", cdc="debezium")

    @app.actor(app.topic("orders", key_type=int, value_type=str), stores=[table])
    async def label(ctx: Context, order: str) -> None: ...

    with ActorTestDriver(app) as driver:
        for event in sorted(events, key=lambda event: json.loads(event.value)["source"]["lsn"]):
            driver.send("db.public.customers", key=event.key, value=event.value, raw=True)
        assert {key: row["name"] for key, row in driver.items(table).items()} == {1: "Eve", 2: "Bob"}
