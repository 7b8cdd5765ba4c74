"""The tutorial without a broker: its app, its tests, and how it is deployed; `tests/kafka/docs` runs its commands."""

from __future__ import annotations

import configparser
import sys
from pathlib import Path

import pytest
import yaml

from tests.documents import block, blocks_of
from tests.unit.docs.test_blocks import BLOCKS, check_command

PAGE = "docs/tutorial/shop.md"


def test_its_app_has_its_actors() -> None:
    names = block("docs/tutorial/shop.md", "2. Write an actor with state").run({})
    assert set(names["app"].actors) == {"Cart", "Item"}


def test_its_tests_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop.py").write_text(block("docs/tutorial/shop.md", "2. Write an actor with state").code)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        names = block("docs/tutorial/shop.md", "3. Test it without a broker").run({})
        tests = [test for name, test in names.items() if name.startswith("test_")]
        assert len(tests) == 2
        for test in tests:
            test()
    finally:
        sys.modules.pop("shop", None)


def test_its_units_start_workers() -> None:
    (shown,) = [one for one in blocks_of(PAGE) if one.language == "ini"]
    unit = configparser.ConfigParser(interpolation=None)
    unit.read_string(shown.code)
    check_command(unit["Service"]["ExecStart"].removeprefix("/opt/shop/.venv/bin/"))
    (shown,) = [one for one in blocks_of(PAGE) if one.language == "yaml"]
    for service in yaml.safe_load(shown.code)["services"].values():
        check_command(service["command"])
        assert "/health/ready" in service["healthcheck"]["test"][-1]


def test_only_the_tutorial_has_scripts() -> None:
    """`tests/kafka/docs/test_tutorial.py` runs all blocks in `bash`, and those of the tutorial only."""
    assert {one.label.partition("#")[0] for one in BLOCKS if one.language in {"bash", "ini"}} == {PAGE}
