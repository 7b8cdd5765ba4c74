"""The tutorial without a broker: its app, its tests, and how it is deployed; `tests/kafka/docs` runs its commands."""

from __future__ import annotations

import configparser
import re
import shlex
import sys
import tomllib
import unittest
from pathlib import Path

import pytest

from actors.cli.init.scaffold import TEMPLATES, make_project
from tests.documents import ROOT, block, blocks_of
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
        tests = unittest.defaultTestLoader.loadTestsFromTestCase(names["ShopTest"])
        assert tests.countTestCases() == 2
        done = tests.run(unittest.TestResult())
        assert (done.testsRun, done.errors, done.failures) == (2, [], [])
    finally:
        sys.modules.pop("shop", None)


def test_its_units_start_workers() -> None:
    (shown,) = [one for one in blocks_of(PAGE) if one.language == "ini"]
    unit = configparser.ConfigParser(interpolation=None)
    unit.read_string(shown.code)
    check_command(unit["Service"]["ExecStart"].removeprefix("/opt/shop/.venv/bin/"))


def test_it_starts_with_what_the_project_and_the_package_have(tmp_path: Path) -> None:
    """Without a clone: what it installs, sends and shows is of the wheel and of `faust init`."""
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"].replace("-", "_")
    text = (ROOT / PAGE).read_text()
    assert re.findall(r"pip install ([^\n`]+)\n", text) == [
        f'"$(ls {package}-*.whl)[broker]"',
        f'"$(ls ../{package}-*.whl)[spark]"',
    ]
    assert not re.search(r"make install|dev\.kafka|FAUST_ACTORS", text)
    project = make_project(tmp_path, "shop", TEMPLATES[0])
    shown = next(line for one in blocks_of(PAGE) for line in one.code.splitlines() if line.startswith("faust send"))
    [said] = [line for line in (project / "README.md").read_text().splitlines() if "send" in line.split()]
    assert set(shlex.split(shown)) - {"--value"} <= set(shlex.split(said))
    for one in blocks_of(PAGE):
        for line in one.code.splitlines() if one.language == "bash" else ():
            if line.startswith(("faust ", "python -m spark_replay")):
                check_command(re.sub(r" > .*", "", line))


def test_only_the_tutorial_has_scripts() -> None:
    """`tests/kafka/docs/test_tutorial.py` runs its blocks in `bash`."""
    assert {one.label.partition("#")[0] for one in BLOCKS if one.language in {"bash", "ini"}} == {PAGE}
