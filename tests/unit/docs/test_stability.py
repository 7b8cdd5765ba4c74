"""What the page on stability calls public is there, and nothing else of the package says that it is."""

from __future__ import annotations

import importlib
import re
import tomllib

from tests.documents import ROOT

INSIDE = {"actors.web.access"}
"""Packages whose `__all__` is for the rest of this one."""


def test_the_modules_that_are_stable_are_those_that_say_what_they_export() -> None:
    page = (ROOT / "docs/reference/stability.md").read_text()
    [row] = re.findall(r"^\| Python \| (the names .+?) \| .+\|$", page, re.MULTILINE)
    listed = re.search(r"`__all__` of (.+?), and their", row)
    assert listed is not None
    stable = set(re.findall(r"`([\w.]+)`", listed[1]))
    files = [path for name in ("actors", "spark_replay", "stores") for path in (ROOT / name).rglob("*.py")]
    # a package whose names are imported when asked for has them in its module `api`
    export = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__").removesuffix(".api")
        for path in files
        if re.search(r"^__all__ = ", path.read_text(), re.MULTILINE)
    }
    assert export - INSIDE == stable
    for name in stable:
        module = importlib.import_module(name)
        assert [one for one in module.__all__ if not hasattr(module, one)] == []
        assert len(set(module.__all__)) == len(module.__all__)


def test_the_changelog_begins_with_the_version_that_is_released_next() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    titles = re.findall(r"^## \[(.+?)\](?: - (.+))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert [name for name, _ in titles[:2]] == ["Unreleased", version]
    assert len({name for name, _ in titles}) == len(titles)
