"""Distributes the tests over processes (`-n`): long files begin first, and what shares something stays together."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("tests/spark/comparison/", "tests/spark/", "tests/kafka/access/")
"""Folders whose files share a Spark session, or a broker with access lists.

Spark's tests take two sessions: in one they would be the last to end.
"""

LONGEST = (
    "tests/spark/",
    "tests/spark/comparison/",
    "tests/kafka/access/",
    "tests/locks/test_chaos.py",
    "tests/kafka/takeover/test_disasters.py",
    "tests/kafka/coordination/test_coordination_cli.py",
    "tests/kafka/takeover/test_replaced_changelog.py",
    "tests/kafka/runtime/test_parked.py",
    "tests/crash/test_crash.py",
    "tests/sim/test_simulation.py",
    "tests/kafka/docs/test_tutorial.py",
    "tests/kafka/web/test_queries_right.py",
    "tests/browser/test_report_page.py",
    "tests/browser/test_dashboard_pages.py",
    "tests/browser/test_dashboard.py",
    "tests/kafka/takeover/test_standby.py",
    "tests/kafka/takeover/test_input_identity.py",
    "tests/names/test_names.py",
    "tests/kafka/docs/test_documents.py",
    "tests/kafka/runtime/test_exactly_once.py",
    "tests/kafka/runtime/test_graceful.py",
    "tests/kafka/coordination/test_fencing.py",
    "tests/kafka/wire/test_commit.py",
    "tests/kafka/app/test_views.py",
    "tests/kafka/docs/test_dev_kafka.py",
    "tests/kafka/runtime/test_effects.py",
    "tests/kafka/web/test_queries.py",
    "tests/hostile/test_hostile.py",
    "tests/sim/test_planted.py",
    "tests/sim/test_planted_model.py",
)
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
