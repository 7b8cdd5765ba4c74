"""`faust state` of a join's store, from a data folder that no worker uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from actors.cli import cli
from actors.testing import ActorTestDriver
from tests.unit.cli import joins_app
from tests.unit.cli.data_folder import write_data_folder

NOON_MS = 1_700_049_600_000


@pytest.fixture(scope="module", autouse=True)
def datadir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of the app with what a test driver's join wrote."""
    root = tmp_path_factory.mktemp("joins")
    app = joins_app.app
    with ActorTestDriver(app, partitions=2) as driver:
        driver.send(joins_app.orders, key="ada", value=5, timestamp_ms=NOON_MS)
        driver.send(joins_app.payments, key="ada", value=3, timestamp_ms=NOON_MS + 1)
        driver.send(joins_app.orders, key="bob", value=9, timestamp_ms=NOON_MS)
        write_data_folder(app, root, driver)
    return root


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["-A", "tests.unit.cli.joins_app", *words])


@pytest.mark.parametrize("more", [(), ("--from", "0"), ("--partition", "0")])
def test_a_key_of_its_store_is_refused_with_what_to_do(more: tuple[str, ...]) -> None:
    done = run("state", "get", "paid", "ada", "--offline", *more)
    assert done.exit_code == 2
    assert " ".join(done.output.split()).endswith(
        "store paid has the records that join paid may still match, and can't be asked for a key: `faust state export "
        "paid --to DIR` writes all of its rows"
    )


def test_its_other_stores_are_shown() -> None:
    assert run("state", "get", "debts", "ada", "--offline").output == "2\n"
