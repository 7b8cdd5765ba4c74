"""The command line, as a user calls it: real processes, a real broker, a worker that runs."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from aiokafka import AIOKafkaProducer

from actors._core.partitioner import partition_for
from dev.kafka import free_port
from stores._core.record import Position, encode_metadata
from stores.errors import StoreError
from stores.folder import DataFolder
from stores.rocks import RocksReader, RocksStore
from tests.kafka import forked
from tests.kafka.helpers import WorkerProcess, eventually, make_topics, read_all, send, unique

MODULE = "tests.kafka.apps.cli_app"
PARTITIONS = 2
KEYS = [f"key-{number}" for number in range(40)]
INPUTS = [(key, json.dumps({"command": "ls", "args": [key]})) for key in KEYS + KEYS[:20]]
NOBODY_LISTENS = "127.0.0.1:1"


@dataclass(frozen=True, slots=True)
class Running:
    """An app whose worker has handled `INPUTS` and runs on."""

    name: str
    brokers: str
    folder: Path
    web_port: int

    def faust(
        self, *arguments: str, folder: Path | None = None, brokers: str | None = None, name: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Call `faust -A … -D …` with the arguments."""
        environment = {
            "APP_NAME": name or self.name,
            "APP_WEB_PORT": str(self.web_port),
            "KAFKA_URL": ";".join(f"kafka://{broker}" for broker in (brokers or self.brokers).split(",")),
        }
        return faust(*arguments, folder=folder or self.folder, environment=environment)

    def json(self, *arguments: str, **where: object) -> object:
        """Call a command that has to succeed with `--json`, and give what it printed."""
        done = self.faust("--json", *arguments, **where)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)


def faust(*arguments: str, folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return forked.faust("-A", MODULE, "-D", str(folder), *arguments, environment=environment)


def together(*calls: Callable[[], object]) -> list:
    """Make the calls at the same time: most of a command's time is its start."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [made.result() for made in [pool.submit(call) for call in calls]]


def stored_offsets(folder: Path, name: str) -> int:
    """How many inputs the worker's newest-written store stands for."""
    try:
        data = DataFolder.inspect(folder / "v1" / "actors", app=name)
        readers = [RocksReader.open(data.store_path("newest", part)) for part in data.partitions_on_disk("newest")]
    except StoreError:
        return 0
    try:
        return sum(position.source_offset for reader in readers if (position := reader.position()) is not None)
    finally:
        for reader in readers:
            reader.close()


@pytest.fixture(scope="module")
async def running(brokers: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    name, folder, port = unique("cli"), tmp_path_factory.mktemp("cli") / "worker", free_port()
    await make_topics(brokers, f"{name}-in", partitions=PARTITIONS)
    await send(brokers, f"{name}-in", [(key.encode(), value.encode()) for key, value in INPUTS], partitions=PARTITIONS)
    worker = WorkerProcess(MODULE, brokers, folder, APP_NAME=name, APP_WEB_PORT=str(port)).start(web=True)
    app = Running(name, brokers, folder, port)

    def caught_up() -> bool:
        assert worker.is_running(), worker.log()[-3000:]
        return stored_offsets(folder, name) == len(INPUTS)

    try:
        await eventually(caught_up, what=worker.log)
        yield app
        assert worker.is_running(), worker.log()[-3000:]
    finally:
        worker.kill()


def refused(done: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    """Check that a command ended with `code` and one clear error, without a traceback."""
    assert done.returncode == code, done
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, done.stderr
    assert "Traceback" not in done.stderr
    if code == 1:
        assert done.stderr.splitlines() == errors
    for part in parts:
        assert part in errors[0]


def home(key: str) -> int:
    return partition_for(key.encode(), PARTITIONS)


def foreign_folder(path: Path, about: Mapping[str, object]) -> Path:
    """Make a datadir whose actors' folder says `about`."""
    inside = path / "v1" / "actors"
    inside.mkdir(parents=True)
    (inside / "worker.json").write_text(json.dumps(about))
    return path


# --- actors --------------------------------------------------------------------------------------------------------


def test_actors_lists_tasks_owners_and_offsets(running: Running) -> None:
    rows = running.json("actors")
    assert [(row["actor"], row["topic"], row["partition"]) for row in rows] == [
        ("remember", f"{running.name}-in", partition) for partition in range(PARTITIONS)
    ]
    for row in rows:
        count = sum(home(key) == row["partition"] for key, _ in INPUTS)
        assert (row["committed_offset"], row["end_offset"], row["lag"]) == (count, count, 0)
        assert row["stores"] == ["seen", "brief", "newest"]
        assert row["epoch"] == 1
        assert str(running.web_port) in row["owner"]["address"]
        assert (row["state"], row["reason"]) == ("running", None)


async def test_actors_tells_what_waits_from_markers_and_why_a_partition_stands_still(
    brokers: str, workers: list[WorkerProcess], tmp_path: Path
) -> None:
    name, port = unique("cli"), free_port()
    await make_topics(brokers, f"{name}-in", partitions=PARTITIONS)
    worker = WorkerProcess(MODULE, brokers, tmp_path / "one", APP_NAME=name, APP_WEB_PORT=str(port)).start(web=True)
    workers.append(worker)
    app, (bad, good) = Running(name, brokers, tmp_path / "one", port), range(PARTITIONS)
    producer = AIOKafkaProducer(bootstrap_servers=brokers, transactional_id=name)
    await producer.start()
    try:
        for _ in range(3):
            async with producer.transaction():
                await producer.send(f"{name}-in", INPUTS[0][1].encode(), b"key", partition=good)
        async with producer.transaction():
            await producer.send(f"{name}-in", b"not json", b"key", partition=bad)
    finally:
        await producer.stop()

    def told() -> list[dict[str, Any]] | None:
        rows: Any = app.json("actors")
        is_over = rows[bad]["state"] == "halted" and rows[good]["committed_offset"]
        return rows if is_over and rows[good]["lag"] == 0 else None

    rows = await eventually(lambda: asyncio.to_thread(told), what=worker.log)
    assert [row["state"] for row in rows] == ["halted", "running"]
    assert (rows[bad]["lag"], rows[good]["end_offset"]) == (1, 6)
    assert f"{name}-in[{bad}] offset 0" in rows[bad]["reason"]
    shown = app.faust("actors").stdout
    assert f"remember, partition {bad}, halted: {name}-in[{bad}] offset 0" in " ".join(shown.split())
    worker.kill()
    rows = app.json("actors")
    assert {row["state"] for row in rows} == {"unknown"}


def test_actors_prints_a_table_with_a_row_per_task(running: Running) -> None:
    done = running.faust("actors")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line for line in done.stdout.splitlines() if line.split()[:1] == ["remember"]]
    assert len(rows) == PARTITIONS
    for partition, row in enumerate(rows):
        assert f"{running.name}-in" in row
        assert "seen, brief, newest" in row
        assert f":{running.web_port}" in row
        assert row.split()[2] == str(partition)
        assert row.split()[-1] == "0"


async def test_actors_says_who_was_never_taken_over_and_which_topic_is_missing(running: Running) -> None:
    name = unique("cli-idle")
    missing = running.faust("actors", name=name)
    assert missing.returncode == 0
    assert "(the topic isn't on the broker)" in missing.stdout
    await make_topics(running.brokers, f"{name}-in", partitions=PARTITIONS)
    await send(running.brokers, f"{name}-in", [(b"key", b"{}")], partitions=PARTITIONS)
    idle = running.faust("actors", name=name)
    assert idle.stdout.count("(nobody yet)") == PARTITIONS
    rows = [line.split() for line in idle.stdout.splitlines() if line.split()[:1] == ["remember"]]
    assert sum(int(row[-1]) for row in rows) == 1


def test_an_unreachable_broker_is_one_line(running: Running) -> None:
    for done in together(
        lambda: running.faust("actors", brokers=NOBODY_LISTENS),
        lambda: running.faust("state", "get", "seen", "key-1", brokers=NOBODY_LISTENS),
    ):
        refused(done, 1, NOBODY_LISTENS, "`broker`")


# --- state get -----------------------------------------------------------------------------------------------------


def test_get_prints_the_committed_value(running: Running) -> None:
    done = running.faust("state", "get", "seen", "key-7")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"command": "ls", "args": ["key-7"]}


def test_get_as_json_says_where_and_when_it_was_written(running: Running) -> None:
    found = running.json("state", "get", "seen", "key-7")
    mine = [key for key, _ in INPUTS if home(key) == home("key-7")]
    assert found["value"] == {"command": "ls", "args": ["key-7"]}
    assert (found["partition"], found["source_offset"]) == (home("key-7"), mine.index("key-7"))
    assert (found["found"], found["epoch"]) == (True, 1)
    assert found["position"]["source_offset"] == len(mine)
    assert found["expires_at_ms"] > found["position"]["wall_time_ms"]


def test_get_of_an_absent_key_says_so_and_the_position(running: Running) -> None:
    offset = sum(home(key) == home("nowhere") for key, _ in INPUTS)
    where = f"partition {home('nowhere')} at input offset {offset}"
    absent, expired = together(
        lambda: running.faust("state", "get", "seen", "nowhere"),
        lambda: running.faust("state", "get", "brief", "key-1"),
    )
    refused(absent, 1, "no key 'nowhere'", where, "epoch 1")
    assert absent.stdout == ""
    refused(expired, 1, "no key 'key-1'", "expired at")


def test_get_of_a_store_with_any_key_in_any_partition_asks_which(running: Running) -> None:
    unclear, out_of_range, *found = together(
        lambda: running.faust("state", "get", "newest", "newest"),
        lambda: running.faust("state", "get", "newest", "newest", "--partition", "2"),
        lambda: running.json("state", "get", "newest", "newest", "--partition", "0"),
        lambda: running.json("state", "get", "newest", "newest", "--partition", "1"),
    )
    refused(unclear, 2, "partitions 0, 1", "--partition")
    refused(out_of_range, 1, "partitions 0 to 1")
    for partition, answer in enumerate(found):
        assert answer["value"] == [key for key, _ in INPUTS if home(key) == partition][-1]


def test_get_works_without_a_broker_when_told_so(running: Running) -> None:
    offline = running.json("state", "get", "seen", "key-3", "--offline", brokers=NOBODY_LISTENS)
    assert (offline["value"]["args"], offline["partition"]) == (["key-3"], home("key-3"))


def test_get_of_a_partition_that_is_elsewhere_names_its_owner(running: Running, tmp_path: Path) -> None:
    DataFolder.open(tmp_path / "v1" / "actors", app=running.name).close()
    done = running.faust("state", "get", "seen", "key-1", folder=tmp_path)
    refused(done, 1, f"partition {home('key-1')}", f":{running.web_port}", "epoch 1")


def test_get_warns_where_another_worker_took_over_since(running: Running, tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path / "v1" / "actors", app=running.name)
    store = RocksStore.open(folder.store_path("seen", home("key-1")))
    value = encode_metadata(0, 0) + json.dumps({"command": "old", "args": []}).encode()
    store.apply([(b"key-1", value)], Position(1, 1, 1, 0, "id"))
    store.close()
    folder.close()
    done = running.faust("state", "get", "seen", "key-1", folder=tmp_path)
    assert (done.returncode, json.loads(done.stdout)["command"]) == (0, "old")
    assert "may be out of date" in done.stderr


def test_scan_prints_the_keys_of_all_partitions(running: Running) -> None:
    one = ("--json", "state", "scan", "seen", "--prefix", "key-7", "--partition", str(home("key-7")))
    done, as_json = together(lambda: running.faust("state", "scan", "seen"), lambda: running.faust(*one))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(json.loads(line.partition("  ")[0]) for line in done.stdout.splitlines()) == sorted(KEYS)
    found = [json.loads(line) for line in as_json.stdout.splitlines()]
    wanted = {"key": "key-7", "value": {"command": "ls", "args": ["key-7"]}, "partition": home("key-7")}
    assert wanted in found
    assert all(one["key"].startswith("key-7") for one in found)


def test_scan_refuses_what_it_cant_show(running: Running) -> None:
    elsewhere, former = together(
        lambda: running.faust("state", "scan", "seen", "--partition", "9"),
        lambda: running.faust("state", "scan", "seen", "--as-of", "5"),
    )
    refused(elsewhere, 1, "has these partitions of it: 0, 1")
    refused(former, 1, "store seen keeps no former values", "--as-of")


def test_an_unknown_store_is_a_usage_error_that_lists_the_stores(running: Running, tmp_path: Path) -> None:
    listed = "brief, newest, seen, unused"
    got, exported, unused = together(
        lambda: running.faust("state", "get", "other", "key-1"),
        lambda: running.faust("state", "export", "other", "--to", str(tmp_path)),
        lambda: running.faust("state", "get", "unused", "key-1"),
    )
    refused(got, 1, "'other'", listed)
    refused(exported, 1, "'other'", listed)
    refused(unused, 1, "no actor lists it")


# --- state list and the data folder --------------------------------------------------------------------------------


def test_list_gives_stores_and_positions(running: Running) -> None:
    listed, table = together(lambda: running.json("state", "list"), lambda: running.faust("state", "list").stdout)
    stores = {store["store"]: store for store in listed}
    assert list(stores) == ["seen", "brief", "newest", "unused"]
    assert (stores["seen"]["placement"], stores["seen"]["ttl_ms"]) == ("key", 7 * 24 * 3600 * 1000)
    assert (stores["newest"]["placement"], stores["newest"]["ttl_ms"]) == ("task", None)
    assert [part["partition"] for part in stores["seen"]["partitions"]] == list(range(PARTITIONS))
    assert sum(part["keys"] for part in stores["seen"]["partitions"]) == len(KEYS)
    assert all(part["size_bytes"] > 0 for part in stores["seen"]["partitions"])
    assert stores["unused"]["partitions"] == []
    assert table.count("remember") == 3 * PARTITIONS
    assert "7 days" in table
    assert "(none on this disk)" in table


def test_a_folder_that_is_not_the_apps_is_one_line(running: Running, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    other = foreign_folder(tmp_path / "other", {"app": "another", "format": 1, "id": "1"})
    newer = foreign_folder(tmp_path / "newer", {"app": running.name, "format": 99, "id": "1"})
    listed, got, exported = together(
        lambda: running.faust("state", "list", folder=nothing),
        lambda: running.faust("state", "get", "seen", "key-1", folder=other),
        lambda: running.faust("state", "export", "seen", "--to", str(tmp_path / "to"), folder=newer),
    )
    refused(listed, 1, str(nothing), "datadir")
    assert not nothing.exists()
    refused(got, 1, "'another'", running.name)
    refused(exported, 1, "format 99")
    assert not (tmp_path / "to").exists()


# --- state export --------------------------------------------------------------------------------------------------


async def test_export_while_the_worker_runs_has_what_the_changelog_has(running: Running, tmp_path: Path) -> None:
    done = running.faust("state", "export", "seen", "--to", str(tmp_path))
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last == {"store": "seen", "partitions": PARTITIONS, "keys": len(KEYS), "to": str(tmp_path)}
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["partition 0", "partition 1"]
    target, rows = exported(tmp_path)
    changelog = await read_all(running.brokers, f"{running.name}--seen-changelog")
    assert {(row["partition"], row["key"], row["value"]) for row in rows} == {
        (record.partition, record.key, record.value) for record in changelog
    }
    assert {row["key"].decode() for row in rows} == set(KEYS)
    manifest = json.loads((target / "manifest.json").read_text())
    assert [part["position"]["source_offset"] for part in manifest["partitions"]] == [
        sum(home(key) == partition for key, _ in INPUTS) for partition in range(PARTITIONS)
    ]
    replaced_and_refused(running, target)


def exported(to: Path) -> tuple[Path, list[dict]]:
    """The one worker's folder below `to`, and all rows in it."""
    (target,) = to.iterdir()
    return target, [row for file in sorted(target.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]


def replaced_and_refused(running: Running, target: Path) -> None:
    """Check that an export takes the place of its predecessor, and of nothing else."""

    def export(store: str) -> subprocess.CompletedProcess[str]:
        return running.faust("-q", "state", "export", store, "--to", str(target.parent))

    left_over = target / "partition-00009.parquet"
    left_over.write_bytes(b"of an export with more partitions")
    refused(export("newest"), 1, "store seen", "--to")
    assert left_over.exists()
    assert export("seen").returncode == 0
    assert [entry.name for entry in target.parent.iterdir()] == [target.name]
    assert not left_over.exists()
    (target / "notes.txt").write_text("mine")
    refused(export("seen"), 1, "notes.txt", "--to")
    assert (target / "notes.txt").read_text() == "mine"
