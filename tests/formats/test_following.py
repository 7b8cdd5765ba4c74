"""A table that follows one of a real database through a real Debezium, whatever ends in the middle."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest

from dev import connect as kafka_connect
from dev import postgres as postgresql
from tests.formats.changes import following, make_database, streaming
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

TABLE = (
    """create table customers (
  id int primary key, name text not null, balance numeric(12, 2) not null default 0, seen timestamptz, tags jsonb,
  note text)""",
    "alter table customers alter column note set storage external",
    "insert into customers select i, 'first ' || i, i * 1.5, now(), '{\"a\": 1}', repeat('x', 5000) "
    "from generate_series(1, 20) i",
)
KEYS = 40
ROUNDS = 8


def changes(random: random.Random, number: int) -> str:
    """Statements of all kinds; each is one transaction."""
    statements = []
    for _ in range(15):
        key, other = random.sample(range(1, KEYS + 1), 2)
        statements.append(
            random.choice(
                (
                    f"insert into customers (id, name, note) values ({key}, 'new {number}', repeat('y', 4000)) "
                    "on conflict do nothing",
                    f"update customers set balance = balance + 0.01, name = 'round {number}' where id = {key}",
                    f"delete from customers where id = {key}",
                    f"begin; delete from customers where id = {other}; update customers set id = {other}, "
                    f"note = note || '.' where id = {key}; update customers set seen = now() where id = {other}; "
                    "commit",
                    f"""update customers set tags = '{{"n": {number}}}' where id = {key}""",
                )
            )
        )
    if number == 4:
        statements.append("alter table customers add column level int not null default 7")
    if number == 7:
        statements.append("truncate customers")
    return ";\n".join([*statements, ""])


def rows_of(database: str) -> dict[int, dict[str, Any]]:
    text = postgresql.run_sql(database, "select coalesce(json_agg(c), '[]') from customers c")
    (cell,) = next(csv.reader([text.replace("\n", " ")]))
    return {row["id"]: row for row in json.loads(cell)}


def same(row: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    if row is None or other is None:
        return row is other
    return (
        all(row[name] == other[name] for name in ("id", "name", "tags", "note"))
        and float(row["balance"]) == float(other["balance"])
        and (row["seen"] is None) == (other["seen"] is None)
        and row["level"] == other.get("level", 7)
    )


@pytest.mark.nightly
@pytest.mark.timeout(900)  # what has to be fetched, is fetched in it
async def test_the_table_is_the_databases_under_kills_of_worker_and_connect(
    brokers: str, postgres: str, tmp_path: Path
) -> None:
    name, database, choices = unique("follow"), make_database(postgres), random.Random(5)
    postgresql.run_sql(database, *TABLE)
    await make_topics(brokers, f"{name}-questions", f"{name}-answers", partitions=3)
    with (
        kafka_connect.up(tmp_path / "connect", brokers) as connect,
        following(connect, database) as prefix,
    ):
        source = f"{prefix}.public.customers"
        await streaming(connect, prefix, database)
        worker = WorkerProcess(
            "tests.kafka.apps.debezium_app", brokers, tmp_path / "worker", APP_NAME=name, APP_SOURCE=source
        ).start()
        asked = 0

        async def follows() -> bool:
            nonlocal asked
            asked += 1
            expected = rows_of(database)
            pairs = [(str(key).encode(), f"{asked}".encode()) for key in range(1, KEYS + 1)]
            await send(brokers, f"{name}-questions", pairs, partitions=3)

            async def answered() -> dict[int, Any]:
                records = await read_all(brokers, f"{name}-answers")
                answers = [(int(record.key), json.loads(record.value)) for record in records]
                rows = {key: answer["row"] for key, answer in answers if answer["question"] == f"{asked}"}
                return rows if len(rows) == KEYS else {}

            rows = await eventually(answered, what=worker.log)
            return all(same(rows[key], expected.get(key)) for key in range(1, KEYS + 1))

        assert await eventually(follows)
        for number in range(ROUNDS):
            postgresql.run_sql(database, changes(choices, number))
            if number % 4 == 1:
                worker.kill()
                worker.start()
            if number in (2, 7):
                connect.kill()
                postgresql.run_sql(database, changes(choices, 100 + number))
                connect = kafka_connect.up(tmp_path / "connect", brokers)
            if number in (4, 7, ROUNDS - 1):
                await eventually(follows, deadline_s=120, what=worker.log)
        assert len(rows_of(database)) > 3
        assert worker.terminate() == 0
