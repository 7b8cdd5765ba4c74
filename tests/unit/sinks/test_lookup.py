"""Lookups: what is cached, for how long, and who shares a call."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from actors.errors import ConfigurationError
from actors.sinks import Lookup


class Table:
    """Values by key, which counts its loads; a load waits for `gate`."""

    def __init__(self, values: dict[str, int]) -> None:
        self.values = values
        self.loads: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.now_s = 0.0

    async def load(self, key: str) -> int | None:
        self.loads.append(key)
        await self.gate.wait()
        if key == "broken":
            raise OSError("away")
        return self.values.get(key)

    def lookup(self, **options: object) -> Lookup[str, int]:
        spans = {"ttl": timedelta(seconds=10), "absent_ttl": timedelta(seconds=2)}
        return Lookup(self.load, clock=lambda: self.now_s, **(spans | options))  # type: ignore[arg-type]


async def test_a_value_is_cached_for_its_time_and_an_absent_one_for_less() -> None:
    table = Table({"a": 1})
    lookup = table.lookup()
    for at_s, a, b in ((0.0, 1, 1), (1.9, 1, 1), (2.0, 1, 2), (9.9, 1, 3), (10.0, 2, 3)):
        table.now_s = at_s
        assert (await lookup.get("a"), await lookup.get("b")) == (1, None)
        assert (table.loads.count("a"), table.loads.count("b")) == (a, b), at_s


async def test_calls_at_the_same_time_share_one_load_also_if_one_is_cancelled() -> None:
    table = Table({"a": 1})
    table.gate.clear()
    lookup = table.lookup()
    calls = [asyncio.create_task(lookup.get("a")) for _ in range(3)]
    await asyncio.sleep(0)
    calls[0].cancel()
    await asyncio.sleep(0)
    table.gate.set()
    assert await asyncio.gather(*calls[1:]) == [1, 1]
    assert table.loads == ["a"]


async def test_an_error_reaches_all_callers_and_is_not_cached() -> None:
    table = Table({})
    lookup = table.lookup()
    for _ in range(2):
        results = await asyncio.gather(lookup.get("broken"), lookup.get("broken"), return_exceptions=True)
        assert [type(result) for result in results] == [OSError, OSError]
    assert table.loads == ["broken", "broken"]


async def test_a_key_that_is_forgotten_while_it_is_loaded_is_loaded_again() -> None:
    table = Table({"a": 1})
    table.gate.clear()
    lookup = table.lookup()
    first = asyncio.create_task(lookup.get("a"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    lookup.forget("a")
    table.values["a"] = 2
    second = asyncio.create_task(lookup.get("a"))
    table.gate.set()
    await asyncio.gather(first, second)
    assert await lookup.get("a") == 2
    assert table.loads == ["a", "a"]


async def test_the_least_recently_used_key_goes_first() -> None:
    table = Table({"a": 1, "b": 2, "c": 3})
    lookup = table.lookup(most=2)
    for key in ("a", "b", "a", "c", "a", "b"):
        await lookup.get(key)
    assert table.loads == ["a", "b", "c", "b"]


@pytest.mark.parametrize("options", [{"most": 0}, {"ttl": 5}, {"absent_ttl": timedelta(seconds=-1)}])
def test_arguments_that_can_not_be_meant_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        Lookup(lambda key: None, **options)  # type: ignore[arg-type, return-value]
