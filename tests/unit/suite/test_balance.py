"""The order of tests/balance.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

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
