"""Real workers that write to a real PostgreSQL, exactly once, while both are killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from dev import postgres as postgresql
from dev.kafka import free_port
from dev.parts import Part
from tests.kafka.helpers import WorkerProcess, delete, eventually, make_topics, read_all, send, unique

MODULE = "tests.kafka.apps.sink_app"
TABLES = (
    "CREATE TABLE latest (id text PRIMARY KEY, number bigint NOT NULL CHECK (number <> 13))",
    "CREATE TABLE lines (partition int, at bigint, id text, number bigint)",
)
KEYS = 50


def make_database(part: Part) -> str:
    name = unique("sink").replace("-", "_")
    postgresql.run_sql(part.address, f"CREATE DATABASE {name}")
    address = part.address.rsplit("/", 1)[0] + f"/{name}"
    postgresql.run_sql(address, *TABLES)
    return address


def kill(database: Part) -> None:
    """Kill the server that runs now: a test before may have started it again."""
    part = Part.open(database.folder)
    assert part is not None
    assert part.process.running()
    part.kill()


def numbers(begin: int, end: int) -> list[tuple[bytes, bytes]]:
    return [(b"k%d" % (number % KEYS), b'{"number": %d}' % number) for number in range(begin, end)]


def count_lines(address: str) -> int:
    return int(postgresql.run_sql(address, "SELECT count(*) FROM lines"))


class World:
    """Two workers, a topic and a database."""

    def __init__(self, brokers: str, part: Part, folder: Path) -> None:
        self.brokers = brokers
        self.name = unique("sinks")
        self.address = make_database(part)
        self.topic = f"{self.name}-numbers"
        self.workers = [
            WorkerProcess(MODULE, brokers, folder / f"w{number}", APP_NAME=self.name, DATABASE=self.address)
            for number in range(2)
        ]

    async def all_written(self, count: int) -> None:
        await eventually(lambda: count_lines(self.address) >= count, what=lambda: self.workers[0].log()[-3000:])

    def check(self, count: int) -> None:
        """All records are in `lines` once, and the last one of each key in `latest`."""
        distinct = postgresql.run_sql(self.address, "SELECT count(*), count(DISTINCT (partition, at)) FROM lines")
        assert distinct.strip() == f"{count},{count}"
        wanted = {f"k{number % KEYS}": number for number in range(count)}
        rows = postgresql.run_sql(self.address, "SELECT id, number FROM latest").split()
        assert dict(row.split(",") for row in rows) == {key: str(number) for key, number in wanted.items()}


async def test_rows_are_written_and_deleted_and_a_refused_one_is_a_dead_letter(
    brokers: str, database: Part, tmp_path: Path
) -> None:
    world = World(brokers, database, tmp_path)
    await make_topics(brokers, world.topic)
    records = [*numbers(0, 500), (b"k7", None), (b"bad", b'{"number": 13}'), (b"undecodable", b"{"), *numbers(500, 501)]
    await send(brokers, world.topic, records)
    world.workers[0].start()
    # `lines` has no row of the tombstone and of what doesn't decode
    await world.all_written(502)

    def latest() -> dict[str, str]:
        rows = postgresql.run_sql(world.address, "SELECT id, number FROM latest").split()
        return dict(row.split(",") for row in rows)

    await eventually(lambda: latest().get("k0") == "500" and "k7" not in latest() and latest().get("k13") == "463")
    assert "bad" not in latest()
    letters = await eventually(lambda: letters_of(brokers, world.name, 3))
    reasons = sorted((letter.key, dict(letter.headers)["fa-actor"], letter.value) for letter in letters)
    assert reasons == [
        (b"bad", b"latest", b'{"number": 13}'),
        (b"undecodable", b"latest", b"{"),
        (b"undecodable", b"lines", b"{"),
    ]
    assert world.workers[0].terminate() == 0


async def letters_of(brokers: str, name: str, count: int) -> list:
    letters = await read_all(brokers, f"{name}-dead-letters")
    return letters if len(letters) >= count else []


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(["worker 0"], id="one worker"),
        pytest.param(["worker 0", "database", "worker 1"], marks=pytest.mark.nightly, id="each"),
    ],
)
async def test_no_row_is_lost_or_doubled_when_workers_and_the_database_are_killed(
    brokers: str, database: Part, tmp_path: Path, faults: list[str]
) -> None:
    world = World(brokers, database, tmp_path)
    postgresql.run_sql(world.address, "ALTER TABLE latest DROP CONSTRAINT latest_number_check")
    await make_topics(brokers, world.topic, partitions=4)
    for worker in world.workers:
        worker.start()
    written = 0
    for fault in faults:
        await send(brokers, world.topic, numbers(written, written + 4000), partitions=4)
        await world.all_written(written + 500)
        written += 4000
        if fault == "database":
            kill(database)
            await asyncio.to_thread(postgresql.up, database.folder)
        else:
            worker = world.workers[int(fault[-1])]
            worker.kill()
            worker.start()
    await world.all_written(written)
    # the two sinks are independent of each other
    offsets = "SELECT sum(next_offset) FROM faust_sink_offsets WHERE sink = 'latest'"
    await eventually(lambda: postgresql.run_sql(world.address, offsets).strip() == str(written))
    world.check(written)


async def test_a_database_that_is_down_at_the_start_is_waited_for(brokers: str, database: Part, tmp_path: Path) -> None:
    world = World(brokers, database, tmp_path)
    await make_topics(brokers, world.topic)
    await send(brokers, world.topic, numbers(100, 200))
    kill(database)
    worker = world.workers[0].start()
    await eventually(lambda: "it is tried again" in worker.log(), what=worker.log)
    await asyncio.to_thread(postgresql.up, database.folder)
    await world.all_written(100)


async def test_a_slow_database_is_waited_for_and_doubles_nothing(brokers: str, database: Part, tmp_path: Path) -> None:
    world = World(brokers, database, tmp_path)
    await make_topics(brokers, world.topic)
    postgresql.run_sql(
        world.address,
        # longer than the statement's time, for the first three batches
        "CREATE SEQUENCE calls",
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN IF nextval(''calls'') <= 3 THEN PERFORM pg_sleep(30); END IF; RETURN NULL; END'",
        "CREATE TRIGGER slow AFTER INSERT ON lines FOR EACH STATEMENT EXECUTE FUNCTION slow()",
    )
    await send(brokers, world.topic, numbers(100, 200))
    worker = world.workers[0].start()
    await world.all_written(100)
    assert "QueryCanceled" in worker.log()
    assert postgresql.run_sql(world.address, "SELECT count(*) FROM lines").strip() == "100"


async def test_a_full_database_is_waited_for_and_nothing_is_skipped(
    brokers: str, database: Part, tmp_path: Path
) -> None:
    world = World(brokers, database, tmp_path)
    await make_topics(brokers, world.topic)
    postgresql.run_sql(
        world.address,
        "CREATE TABLE disk (is_full boolean)",
        "INSERT INTO disk VALUES (true)",
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF (SELECT is_full FROM disk) THEN "
        "RAISE EXCEPTION ''No space left on device'' USING ERRCODE = ''disk_full''; END IF; RETURN NEW; END'",
        "CREATE TRIGGER full_disk BEFORE INSERT ON lines FOR EACH ROW EXECUTE FUNCTION full_disk()",
    )
    await send(brokers, world.topic, numbers(100, 200))
    port = free_port()
    worker = world.workers[0].start(web=True, WEB_PORT=str(port))
    await eventually(lambda: "DiskFull" in worker.log(), what=worker.log)
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/health") as reply:
        health = await reply.json()
    assert (health["status"], health["startup"], health["ready"]) == ("degraded", True, True)
    assert {(row["sink"], row["topic"], row["error"]) for row in health["stopped"]} == {
        ("lines", world.topic, "DiskFull")
    }
    postgresql.run_sql(world.address, "UPDATE disk SET is_full = false")
    await world.all_written(100)
    assert count_lines(world.address) == 100
    assert "fa-error" not in worker.log()


async def test_a_topic_that_was_created_again_is_reported_and_read_when_its_offsets_are_gone(
    brokers: str, database: Part, tmp_path: Path
) -> None:
    world = World(brokers, database, tmp_path)
    await make_topics(brokers, world.topic)
    await send(brokers, world.topic, numbers(100, 200))
    worker = world.workers[0].start()
    await world.all_written(100)
    await delete(brokers, world.topic)
    await make_topics(brokers, world.topic)
    await send(brokers, world.topic, numbers(200, 500))
    # at the latest when the worker has heard of it in its group
    worker.terminate()
    worker.start()
    await eventually(lambda: "was deleted and created again since" in worker.log(), what=worker.log)
    assert count_lines(world.address) == 100
    for sink in ("lines", "latest"):
        statement = f"DELETE FROM faust_sink_offsets WHERE sink = '{sink}' AND topic = '{world.topic}'"
        await eventually(lambda statement=statement: statement in worker.log(), what=worker.log)
        postgresql.run_sql(world.address, statement)
    await world.all_written(400)
    assert count_lines(world.address) == 400
