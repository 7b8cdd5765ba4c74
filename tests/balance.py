"""Distributes the tests over processes (`-n`): long files begin first, and what shares something stays together."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("tests/spark/", "tests/kafka/access/", "tests/browser/")
"""Folders whose files share a Spark session, a broker with access lists, or Chromium."""

LONGEST: tuple[str, ...] = ()
"""Files and folders that take longest, the longest first. The others follow in alphabetical order."""


class LongestFirst(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each process the next file, or the next folder of `TOGETHER`, when it has done one."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def group(nodeid: str) -> str:
    """Return the folder or file of a test, which one process runs."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


def sort(items: list[pytest.Item]) -> None:
    """Put the tests of the longest files first; the order within a file stays."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(group(item.nodeid), len(places)))


def scheduler(config: pytest.Config, log: Any) -> LongestFirst:
    """Return the scheduler for `config`; it keeps the order of the tests."""
    config.option.loadscopereorder = False
    return LongestFirst(config, log)
