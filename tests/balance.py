"""Distributes the tests over processes (`-n`): long files begin first, and what shares something stays together.

At the end of a run it names the tests that are longer than CONTRIBUTING.md allows those of `make test`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("tests/spark/comparison/", "tests/spark/", "tests/kafka/access/", "tests/equivalence/")
"""Folders whose files share a Spark session, a broker with access lists, or a JVM with Kafka Streams.

Spark's tests take two sessions: in one they would be the last to end.
"""

LONGEST = (
    "tests/spark/",
    "tests/spark/comparison/",
    "tests/kafka/access/",
    "tests/crash/test_crash.py",
    "tests/sim/test_simulation.py",
    "tests/inhand/test_inhand.py",
    "tests/kafka/wire/test_commit.py",
    "tests/kafka/coordination/test_coordination_cli.py",
    "tests/kafka/wire/test_takeover.py",
    "tests/kafka/coordination/test_coordination.py",
    "tests/kafka/runtime/test_exactly_once.py",
    "tests/kafka/cli/test_dev.py",
    "tests/equivalence/",
    "tests/formats/test_debezium.py",
    "tests/kafka/runtime/test_bad_input.py",
    "tests/browser/test_dashboard_pages.py",
    "tests/kafka/cli/test_reset.py",
    "tests/kafka/runtime/test_parked.py",
    "tests/kafka/takeover/test_standby.py",
    "tests/kafka/takeover/test_replaced_changelog.py",
    "tests/kafka/runtime/test_repartition.py",
    "tests/kafka/docs/test_readme.py",
    "tests/kafka/takeover/test_registry.py",
    "tests/kafka/cli/test_cli.py",
    "tests/kafka/wire/test_refusals.py",
    "tests/kafka/runtime/test_graceful.py",
    "tests/kafka/docs/test_dev_kafka.py",
    "tests/unit/app/test_hostile_bytes.py",
    "tests/judges/test_kafka_drivers.py",
    "tests/judges/test_registers.py",
    "tests/locks/test_chaos.py",
    "tests/hostile/test_hostile.py",
    "tests/kafka/takeover/test_disasters.py",
    "tests/kafka/takeover/test_input_identity.py",
    "tests/kafka/docs/test_tutorial.py",
    "tests/kafka/web/test_queries_right.py",
    "tests/kafka/runtime/test_streams_under_kills.py",
    "tests/browser/test_site.py",
    "tests/wheel/test_wheel.py",
)
"""Files and folders that take longest, the longest first: those of `make test`, and then those of `make nightly`. The
others follow in alphabetical order, those of `WAITING` evenly among those that compute."""

WAITING = ("tests/browser/", "tests/contract/", "tests/formats/", "tests/kafka/")
"""Folders whose tests wait most of the time: four files of them at once leave the processors to nobody."""

LONG_S = 10.0
"""A test that takes longer is nightly, unless it is the only one for what it shows."""


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
    places: dict[str, float] = {name: place for place, name in enumerate(LONGEST)}
    others = [name for name in dict.fromkeys(group(item.nodeid) for item in items) if name not in places]
    for waits in (True, False):
        alike = [name for name in others if name.startswith(WAITING) == waits]
        places |= {name: len(LONGEST) + place / len(alike) for place, name in enumerate(alike)}
    items.sort(key=lambda item: places[group(item.nodeid)])


def scheduler(config: pytest.Config, log: Any) -> LongestFirst:
    """Return the scheduler for `config`; it keeps the order of the tests."""
    config.option.loadscopereorder = False
    return LongestFirst(config, log)


def too_long(reports: Iterable[object]) -> Iterator[str]:
    """Yield a line for each test that took longer than `LONG_S` and isn't nightly, the longest first."""
    slow = [
        report
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call" and report.duration > LONG_S
    ]
    for report in sorted(slow, key=lambda report: -report.duration):
        if "nightly" not in report.keywords:
            yield f"{report.duration:6.1f} s {report.nodeid}"
