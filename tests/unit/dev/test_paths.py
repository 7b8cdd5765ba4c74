"""The ways through the code that are measured exist, and stay as short as they are."""

from __future__ import annotations

import pytest

from dev import paths

MOST_FILES, MOST_LINES = 15, 769


@pytest.mark.parametrize("name", paths.WAYS)
def test_every_function_of_a_way_exists(name: str) -> None:
    assert paths.measure(paths.WAYS[name]).lines > 0


def test_a_function_that_is_not_there_is_noticed() -> None:
    with pytest.raises(LookupError, match=r"Worker\.walk"):
        paths.measure([("actors/runtime/worker.py", "Worker.walk")])


def test_the_records_way_is_short() -> None:
    way = paths.measure(paths.WAYS["record: poll to RocksDB"])
    assert way.files <= MOST_FILES
    assert way.lines <= MOST_LINES
