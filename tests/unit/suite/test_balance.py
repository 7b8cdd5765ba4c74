"""The order of tests/balance.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import balance
from tests.kafka.forked import ROOT


def test_what_is_named_is_there() -> None:
    for name in (*balance.TOGETHER, *balance.LONGEST):
        assert (ROOT / name).exists(), f"{name} was moved: change tests/balance.py"


def test_files_of_a_folder_stay_together_if_they_share_something() -> None:
    assert balance.group("tests/spark/cli/test_cli.py::test_a[b/c]") == "tests/spark/"
    assert balance.group("tests/kafka/cli/test_cli.py::test_a[b::c]") == "tests/kafka/cli/test_cli.py"


def test_the_longest_come_first_and_the_others_in_their_order() -> None:
    ids = [
        f"{file}::test_{number}"
        for file in ("tests/a.py", *reversed(balance.LONGEST), "tests/b.py")
        for number in (2, 1)
    ]
    items: list[Any] = [SimpleNamespace(nodeid=nodeid) for nodeid in ids]
    balance.sort(items)
    found = [item.nodeid for item in items]
    assert list(dict.fromkeys(map(balance.group, found))) == [*balance.LONGEST, "tests/a.py", "tests/b.py"]
    assert all(found.index(f"{file}::test_2") < found.index(f"{file}::test_1") for file in balance.LONGEST)


def test_files_that_wait_are_spread_among_those_that_compute() -> None:
    files = [f"tests/kafka/{name}.py" for name in "ab"] + [f"tests/unit/{name}.py" for name in "abcd"]
    items: list[Any] = [SimpleNamespace(nodeid=f"{file}::test") for file in files]
    balance.sort(items)
    order = [item.nodeid.removesuffix(".py::test").removeprefix("tests/") for item in items]
    assert order == ["kafka/a", "unit/a", "unit/b", "kafka/b", "unit/c", "unit/d"]


def test_a_long_test_is_named_unless_it_is_nightly() -> None:
    def report(name: str, when: str, duration: float, *marks: str) -> pytest.TestReport:
        keywords = dict.fromkeys(marks, 1)
        return pytest.TestReport(name, ("", 0, ""), keywords, "passed", None, when, duration=duration)  # type: ignore[arg-type]

    reports = [
        report("a", "call", 10.5),
        report("b", "call", 30.0),
        report("c", "call", 9.5),
        report("d", "call", 40.0, "nightly"),
        report("e", "setup", 40.0),
        "no report",
    ]
    assert list(balance.too_long(reports)) == ["  30.0 s b", "  10.5 s a"]
