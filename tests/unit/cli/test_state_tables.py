"""`faust state get` and `scan` of a table, from a data folder that no worker uses."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from actors._faust.setup import Setup
from actors.cli import cli
from actors.testing import ActorTestDriver
from stores._core.record import Position
from stores.folder import DataFolder
from stores.rocks import RocksStore
from tests.unit.cli import tables_app
from tests.unit.cli.data_folder import write_data_folder

NOON_MS = 1_700_049_600_000
HOUR_MS = 3_600_000
ROWS = [
    *(("ada", "Ada", NOON_MS), ("ada", "Ada L.", NOON_MS + 1), ("cyd", "Cyd", NOON_MS + 2), ("cyd", None, NOON_MS + 3)),
    ("eve", "Eve", NOON_MS + 4),
]


@pytest.fixture(scope="module", autouse=True)
def datadir(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A data folder of the app with what a test driver's actor wrote."""
    app = tables_app.app
    with ActorTestDriver(app, partitions=2) as driver:
        for key, name, at_ms in ROWS:
            value = None if name is None else {"name": name}
            driver.send(tables_app.customers.topic, key=key, value=value, timestamp_ms=at_ms)
        write_data_folder(app, tmp_path_factory.mktemp("tables"), driver)


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["-A", "tests.unit.cli.tables_app", *words, "--offline"])


def test_the_latest_value_of_a_key() -> None:
    done = run("state", "get", "customers", "ada")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output) == {"name": "Ada L."}


def test_a_key_without_a_row() -> None:
    done = run("state", "get", "customers", "bob")
    assert done.exit_code == 1
    assert "has no key 'bob'" in done.output


def test_the_value_of_a_key_as_of_a_time() -> None:
    for at_ms, name in ((NOON_MS, "Ada"), (NOON_MS + 1, "Ada L."), (NOON_MS + HOUR_MS, "Ada L.")):
        done = run("state", "get", "customers", "ada", "--as-of", str(at_ms))
        assert json.loads(done.output) == {"name": name}, done.output
    done = run("state", "get", "customers", "cyd", "--as-of", str(NOON_MS + 2))
    assert json.loads(done.output) == {"name": "Cyd"}, done.output
    done = run("state", "get", "customers", "cyd", "--as-of", str(NOON_MS + 3))
    assert (done.exit_code, "has no key 'cyd'" in done.output) == (1, True)


def scanned(*words: str) -> dict[str, str]:
    done = CliRunner().invoke(
        cli, ["--json", "-A", "tests.unit.cli.tables_app", "state", "scan", "customers", *words, "--offline"]
    )
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["key"]: row["value"]["name"] for row in rows}


def test_a_scan_shows_keys_and_values() -> None:
    assert scanned() == {"ada": "Ada L.", "eve": "Eve"}
    assert scanned("--prefix", "e") == {"eve": "Eve"}
    assert len(scanned("--limit", "1")) == 1
    done = run("state", "scan", "customers", "--prefix", "a")
    assert done.stdout == '"ada"  {"name": "Ada L."}\n'


def test_a_scan_shows_the_values_as_of_a_time() -> None:
    assert scanned("--as-of", str(NOON_MS + 2)) == {"ada": "Ada L.", "cyd": "Cyd"}
    assert scanned("--as-of", str(NOON_MS + 3)) == {"ada": "Ada L."}
    assert scanned("--as-of", str(NOON_MS + 4)) == {"ada": "Ada L.", "eve": "Eve"}
    assert scanned("--as-of", str(NOON_MS + 2), "--prefix", "c") == {"cyd": "Cyd"}


def test_a_time_before_the_history_is_refused() -> None:
    early = str(NOON_MS - HOUR_MS - 1)
    for words in (("get", "customers", "ada"), ("scan", "customers")):
        done = run("state", *words, "--as-of", early)
        assert done.exit_code == 1
        assert f"as_of={early} is before: ask for a later time" in done.stderr


def test_a_store_without_a_history_is_refused() -> None:
    for words in (("get", "customers-history", "ada"), ("scan", "customers-history")):
        done = run("state", *words, "--as-of", "5")
        assert done.exit_code == 1
        assert "store customers-history keeps no former values: leave --as-of out" in done.stderr


def test_databases_of_different_commits_are_no_state_of_a_time() -> None:
    folder = DataFolder.inspect(Setup(tables_app.app).folder)
    for partition in folder.partitions_on_disk("customers-history"):
        identity = folder.identity("customers-history", partition)
        held = RocksStore.open(folder.store_path("customers-history", partition), identity=identity)
        former = held.position()
        assert former is not None
        held.apply([], Position(9, 19, 0, 1, "id"))
        held.close()
        done = run("state", "scan", "customers", "--as-of", str(NOON_MS), "--partition", str(partition))
        assert done.exit_code == 1
        assert "at input offset 10 of epoch 1, and its history customers-history at 9 of epoch 1" in done.stderr
        held = RocksStore.open(folder.store_path("customers-history", partition), identity=identity)
        held.apply([], former)
        held.close()
