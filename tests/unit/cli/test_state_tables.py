"""`faust state get` of a table, from a data folder that no worker uses."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from faust.exceptions import AlreadyConfiguredWarning

from actors._faust.setup import Setup
from actors.cli import cli
from actors.testing import ActorTestDriver
from stores._core.record import Position
from stores.folder import DataFolder
from stores.rocks import RocksStore
from tests.unit.cli import tables_app

NOON_MS = 1_700_049_600_000


@pytest.fixture(scope="module", autouse=True)
def datadir(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A data folder of the app with what a test driver's actor wrote."""
    app = tables_app.app
    with warnings.catch_warnings():
        # Another test of this process may have looked at the folder.
        warnings.simplefilter("ignore", AlreadyConfiguredWarning)
        app.conf.datadir = tmp_path_factory.mktemp("tables")
    with ActorTestDriver(app, partitions=2) as driver:
        for name, at_ms in (("Ada", NOON_MS), ("Ada L.", NOON_MS + 1)):
            driver.send(tables_app.customers.topic, key="ada", value={"name": name}, timestamp_ms=at_ms)
        files = [(one.store, int(one.path.name.rpartition("-")[2]), dict(one.data)) for one in driver._disk.files()]
    folder = DataFolder.open(Setup(app).folder, app="shown-tables")
    for store, partition, rows in files:
        path: Path = folder.store_path(store, partition)
        held = RocksStore.open(path, identity=folder.identity(store, partition))
        held.apply(list(rows.items()), Position(10, 20, 0, 1, "id"))
        held.close()
    folder.close()


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
