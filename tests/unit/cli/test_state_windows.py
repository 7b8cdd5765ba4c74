"""`faust state get` and `scan` of window stores, from a data folder that no worker uses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from actors._core.windows.rows import list_key
from actors._faust.setup import Setup
from actors.cli import cli
from actors.runtime.windows import committed
from actors.testing import ActorTestDriver
from stores._core.record import METADATA_BYTES
from stores.folder import DataFolder
from stores.rocks import RocksStore
from tests.unit.cli import windows_app
from tests.unit.cli.data_folder import write_data_folder

NOON_MS = 1_700_049_600_000
MINUTE_MS = 60_000


@pytest.fixture(scope="module", autouse=True)
def datadir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of the app with what a test driver's actor wrote."""
    root = tmp_path_factory.mktemp("windows")
    app = windows_app.app
    with ActorTestDriver(app, partitions=2) as driver:
        for key, amount, minute in [("ada", 1, 0), ("ada", 2, 0.5), ("bob", 9, 0), ("ada", 7, 2)]:
            driver.send(windows_app.events, key=key, value=amount, timestamp_ms=NOON_MS + int(minute * MINUTE_MS))
        write_data_folder(app, root, driver)
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


def scanned(store: str, *words: str) -> list[tuple[str, float, float, Any]]:
    """Key, start and end in minutes after noon, and value of each window."""
    done = run("--json", "state", "scan", store, *words)
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(row["partition"] in (0, 1) for row in rows)
    after = [[(row[name] - NOON_MS) / MINUTE_MS for name in ("start_ms", "end_ms")] for row in rows]
    return sorted((row["key"], *bounds, row["value"]) for row, bounds in zip(rows, after, strict=True))


def test_a_scan_shows_the_windows_of_all_keys() -> None:
    assert scanned("minutes") == [("ada", 0, 1, 1.5), ("ada", 2, 3, 7.0), ("bob", 0, 1, 9.0)]
    assert scanned("visits") == [("ada", 0, 0.5, 2), ("ada", 2, 2, 1), ("bob", 0, 0, 1)]
    for store in ("minutes", "visits", "near"):
        keys = {key: run("--json", "state", "get", store, key).output.splitlines() for key in ("ada", "bob")}
        assert len(scanned(store)) == sum(map(len, keys.values())), store
        assert scanned(store, "--prefix", "b") == [one for one in scanned(store) if one[0] == "bob"]


def test_a_scan_has_a_line_for_each_window() -> None:
    assert run("state", "scan", "minutes", "--prefix", "a").stdout.splitlines() == [
        '"ada"  2023-11-15 12:00:00 UTC  2023-11-15 12:01:00 UTC  1.5',
        '"ada"  2023-11-15 12:02:00 UTC  2023-11-15 12:03:00 UTC  7.0',
    ]


@pytest.mark.parametrize("store", ["minutes", "visits", "near"])
def test_bounds_of_a_scan_are_starts_and_both_are_included(store: str) -> None:
    whole = scanned(store)
    for first, last in ((0, 0), (0, 1), (1, 2), (2, 2), (3, 9)):
        span = ("--from", str(NOON_MS + first * MINUTE_MS), "--to", str(NOON_MS + last * MINUTE_MS))
        assert scanned(store, *span) == [one for one in whole if first <= one[1] <= last], span
    assert scanned(store, "--to", str(NOON_MS)) == [one for one in whole if one[1] <= 0]
    assert scanned(store, "--from", str(NOON_MS + 1)) == [one for one in whole if one[1] > 0]


def test_a_limit_counts_windows() -> None:
    done = run("state", "scan", "minutes", "--limit", "2")
    assert len(done.stdout.splitlines()) == 2
    assert "--limit shows more windows" in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["newest", "--from", "1"], "store newest has no windows: leave --from and --to out"),
        (["minutes", "--as-of", "1"], "store minutes keeps no former values: leave --as-of out"),
        (["minutes", "--from", "9223372036854775808"], "is not in the range"),
        (["minutes", "--partition", "7"], "has these partitions of it: 0, 1"),
    ],
)
def test_what_a_scan_refuses(words: list[str], text: str) -> None:
    done = run("state", "scan", *words)
    assert done.exit_code != 0
    assert text in done.output


def test_a_damaged_list_is_named() -> None:
    folder = DataFolder.inspect(Setup(windows_app.app).folder)
    path, identity = folder.store_path("visits", 0), folder.identity("visits", 0)
    held = RocksStore.open(path, identity=identity)
    position, row = held.position(), list_key(1 << 40, b"eve")
    assert position is not None
    held.apply([(row, next(raw for _, raw in held.scan())[:METADATA_BYTES] + b"l?")], position)
    held.close()
    done = run("state", "scan", "visits")
    assert done.exit_code == 1
    assert "not a list of windows" in done.output
    assert str(path) in done.output
    held = RocksStore.open(path, identity=identity)
    held.apply([(row, None)], position)
    held.close()


def test_plain_stores_are_as_before() -> None:
    assert run("state", "get", "newest", "ada").output == "7\n"
    assert run("state", "scan", "newest", "--prefix", "ada").output == '"ada"  7\n'
