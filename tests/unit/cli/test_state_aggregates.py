"""`faust state get` of a store of aggregates shows results, from a data folder that no worker uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from actors.cli import cli
from actors.testing import ActorTestDriver
from tests.unit.cli import aggregates_app
from tests.unit.cli.aggregates_app import Sale
from tests.unit.cli.data_folder import write_data_folder


@pytest.fixture(scope="module", autouse=True)
def datadir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of the app with what a test driver's actor wrote."""
    root = tmp_path_factory.mktemp("aggregates")
    app = aggregates_app.app
    with ActorTestDriver(app, partitions=1) as driver:
        for cents in (5, 2, 8):
            driver.send(aggregates_app.sales, key="ada", value=Sale(cents, "x"))
        write_data_folder(app, root, driver)
    return root


@pytest.mark.parametrize(
    ("store", "shown"),
    [("means", 5.0), ("largest", [{"cents": 8, "shop": "x"}, {"cents": 5, "shop": "x"}])],
)
def test_the_result_of_a_key(store: str, shown: object) -> None:
    done = CliRunner().invoke(cli, ["-A", "tests.unit.cli.aggregates_app", "state", "get", store, "ada", "--offline"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output) == shown
