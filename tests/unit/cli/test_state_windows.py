"""`faust state get` of a window store, from a data folder that no worker uses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from actors._faust.setup import Setup
from actors.cli import cli
from actors.runtime.windows import committed
from actors.testing import ActorTestDriver
from stores._core.record import Position
from stores.folder import DataFolder
from stores.rocks import RocksStore
from tests.unit.cli import windows_app

NOON_MS = 1_700_049_600_000
MINUTE_MS = 60_000


@pytest.fixture(scope="module", autouse=True)
def datadir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of the app with what a test driver's actor wrote."""
    root = tmp_path_factory.mktemp("windows")
    app = windows_app.app
    app.conf.datadir = root
    with ActorTestDriver(app, partitions=2) as driver:
        for key, amount, minute in [("ada", 1, 0), ("ada", 2, 0.5), ("bob", 9, 0), ("ada", 7, 2)]:
            driver.send(windows_app.events, key=key, value=amount, timestamp_ms=NOON_MS + int(minute * MINUTE_MS))
        files = [(one.store, int(one.path.name.rpartition("-")[2]), dict(one.data)) for one in driver._disk.files()]
    folder = DataFolder.open(Setup(app).folder, app="shown-windows")
    for store, partition, rows in files:
        path = folder.store_path(store, partition)
        held = RocksStore.open(path, identity=folder.identity(store, partition))
        held.apply(list(rows.items()), Position(10, 20, 0, 1, "id"))
        held.close()
    folder.close()
    return root


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["-A", "tests.unit.cli.windows_app", *words, "--offline"])


def test_the_windows_of_a_key_a_line_each() -> None:
    done = run("state", "get", "minutes", "ada")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        "2023-11-15 12:00:00 UTC  2023-11-15 12:01:00 UTC  1.5",
        "2023-11-15 12:02:00 UTC  2023-11-15 12:03:00 UTC  7.0",
    ]


def test_as_json() -> None:
    lines: list[Any] = [
        json.loads(line) for line in run("--json", "state", "get", "minutes", "ada").output.splitlines()
    ]
    assert lines[0] == {"start_ms": NOON_MS, "end_ms": NOON_MS + MINUTE_MS, "value": 1.5}
    assert len(lines) == 2


def test_bounds_and_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed, "MAX_PLACES", 1)
    span = ["--from", str(NOON_MS - MINUTE_MS), "--to", str(NOON_MS + 2 * MINUTE_MS)]
    assert len(run("state", "get", "minutes", "ada", *span).output.splitlines()) == 2
    span[-1] = str(NOON_MS + 2 * MINUTE_MS - 1)
    assert len(run("state", "get", "minutes", "ada", *span).output.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["minutes", "nobody"], "store minutes has no windows of key 'nobody' that begin then"),
        (["newest", "ada", "--from", "1"], "store newest has no windows: leave --from and --to out"),
    ],
)
def test_what_isnt_there(words: list[str], text: str) -> None:
    done = run("state", "get", *words)
    assert done.exit_code != 0
    assert text in done.output


def test_plain_stores_are_as_before() -> None:
    assert run("state", "get", "newest", "ada").output == "7\n"
