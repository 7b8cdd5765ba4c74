"""`faust state get` and `scan` of map, list and set stores, from a data folder that no worker uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from actors.cli import cli
from actors.testing import ActorTestDriver
from tests.unit.cli import rows_app
from tests.unit.cli.data_folder import write_data_folder


@pytest.fixture(scope="module", autouse=True)
def datadir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of the app with what a test driver's actor wrote."""
    root = tmp_path_factory.mktemp("rows")
    app = rows_app.app
    with ActorTestDriver(app, partitions=2) as driver:
        for key, text in (("ada", "hello"), ("ada", "there"), ("bob", "hi")):
            driver.send(rows_app.events, key=key, value=text)
        write_data_folder(app, root, driver)
    return root


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["-A", "tests.unit.cli.rows_app", *words, "--offline"])


def test_the_rows_of_a_key_a_line_each() -> None:
    for store, lines in [
        ("lines", ['0  "hello"', '1  "there"']),
        ("cart", ['"hello"  5', '"there"  5']),
        ("tags", ['"hello"  ""', '"there"  ""']),
    ]:
        done = run("state", "get", store, "ada")
        assert done.exit_code == 0, done.output
        assert done.stdout.splitlines() == lines


def test_as_json_and_a_limit() -> None:
    done = run("--json", "state", "get", "lines", "ada", "--limit", "1")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"row": 0, "value": "hello"}]
    assert "there may be more: --limit shows more rows" in done.output


def test_a_key_without_rows() -> None:
    done = run("state", "get", "lines", "nobody")
    assert done.exit_code == 1
    assert "store lines has no rows of key 'nobody'" in done.output


def test_a_scan_shows_pairs_and_where_the_rows_of_a_key_begin_and_end() -> None:
    done = run("state", "scan", "lines")
    assert done.exit_code == 0, done.output
    assert sorted(done.stdout.splitlines()) == sorted(
        [
            '["ada"]  {"first": 0, "end": 2}',
            '["ada", 0]  "hello"',
            '["ada", 1]  "there"',
            '["bob"]  {"first": 0, "end": 1}',
            '["bob", 0]  "hi"',
        ]
    )
