"""What reads the changelogs of parked messages: the wanted key only, and lists that end with a cursor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from actors import App, Context
from actors.admin.parked import reader as module
from actors.admin.parked.reader import ParkedError, ParkedReader, chosen, wanted_keys
from actors.admin.parked.showing import entry_json
from actors.ports import LogBounds, TopicPartition
from actors.testing import ActorTestDriver
from tests.unit.runtime.quarantine.test_parked import World


class Logs:
    """The changelogs of a driver's app, read as a broker gives them."""

    def __init__(self, driver: ActorTestDriver) -> None:
        self._driver = driver
        self.damaged: dict[bytes, bytes] = {}

    def records(self, source: TopicPartition) -> Sequence[Any]:
        return [
            SimpleNamespace(
                offset=one.offset,
                timestamp=one.timestamp,
                key=one.key,
                value=self.damaged.get(one.key, one.value),
                headers=one.headers,
            )
            for one in self._driver._cluster.log(source).history
            if one.is_committed
        ]

    async def topics(self, names: Any) -> dict[str, Any]:
        return {name: SimpleNamespace(partitions=self._driver._partitions) for name in names}

    async def bounds(self, source: TopicPartition) -> LogBounds:
        return LogBounds(0, max((one.offset for one in self.records(source)), default=-1) + 1)

    async def read(self, source: TopicPartition, start: int, end: int) -> AsyncIterator[tuple[Sequence[Any], int]]:
        yield [one for one in self.records(source) if start <= one.offset < end], end


def reader_of(driver: ActorTestDriver) -> tuple[ParkedReader, Logs]:
    logs: Any = Logs(driver)
    reader = ParkedReader.__new__(ParkedReader)
    setup: Any = driver._setup
    reader._setup, reader.control, reader._logs = setup, logs, logs
    reader._readers = asyncio.Semaphore(4)
    return reader, logs


def test_only_the_wanted_key_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    world, decoded = World(), list[bytes]()
    summary_of, read_entry = module.summary_of, module.read_entry
    monkeypatch.setattr(module, "summary_of", lambda raw: decoded.append(raw) or summary_of(raw))
    monkeypatch.setattr(module, "read_entry", lambda *parts: decoded.append(parts[3]) or read_entry(*parts))
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.post(driver, *(f"{key} bad{'x' * 200_000}" for key in "abcdef"), "c 2")
        (reader, _), definition = reader_of(driver), world.app.actors["work"]
        line = driver._run(reader.line(definition, "message", 0, b"c"))
        assert [(entry.id, entry.size >= 200_000) for entry in line.entries] == [("in-0-2", True), ("in-0-6", False)]
        assert len(decoded) == 2
        contents = driver._run(reader.contents(definition, line, line.entries))
        assert list(contents) == [1]
        assert len(decoded) == 3
        full = driver._run(reader.contents(definition, line, line.entries[:1], is_full=True))
        assert len(full[0].value) == 200_003
        large, small = (entry_json(definition, line, one, contents.get(one.sequence)) for one in line.entries)
        assert (large["is_shown"], "value" in large, large["bytes"] >= 200_000) == (False, False, True)
        assert (small["is_shown"], small["value"]) == (True, "2")
        found = driver._run(reader.lines([definition], wanted_keys(definition, "e")))
        assert [one.key for one in chosen(definition, found, "e")] == [b"e"]
        assert driver._run(reader.line(definition, "message", 0, b"nobody")) is None


def test_a_list_is_read_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=3) as driver:
        world.post(driver, *(f"k{number} bad" for number in range(20)))
        world.tell(driver, "k7", "drop")
        (reader, _), definitions = reader_of(driver), list(world.app.actors.values())
        all_lines, is_cut = driver._run(reader.page(definitions, limit=100))
        assert (len(all_lines), is_cut) == (19, False)
        for limit, page_bytes in ((1, 1 << 20), (6, 1 << 20), (19, 1 << 20), (100, 150)):
            monkeypatch.setattr(module, "PAGE_BYTES", page_bytes)
            found, after, is_cut = [], None, True
            while is_cut:
                page, is_cut = driver._run(reader.page(definitions, limit=limit, after=after))
                assert 0 < len(page) <= limit
                found += page
                after = page[-1].cursor
            assert found == all_lines
        with pytest.raises(ParkedError, match="isn't a cursor"):
            driver._run(reader.page(definitions, limit=1, after="what"))


def test_an_entry_that_cannot_be_read_hides_no_other() -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.post(driver, "a bad", "b bad")
        (reader, logs), definitions = reader_of(driver), list(world.app.actors.values())
        logs.damaged[min(driver.items(world.store))] = b'{"v":3,"what":1}'
        lines, _ = driver._run(reader.page(definitions, limit=10))
        assert [(line.key, line.head.is_readable) for line in lines] == [(b"a", False), (b"b", True)]
        assert lines[0].head.error == module.UNREADABLE


def test_effects_are_listed_without_their_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str)

    @app.effect(attempts=1)
    async def pay(call: Any, name: str) -> None:
        raise ValueError("no")

    @app.actor(topic, effects=[pay])
    async def work(ctx: Context, value: str) -> None:
        ctx.effect(pay, value)

    with ActorTestDriver(app, partitions=1, effects={pay: pay}) as driver:
        driver.send(topic, key="a", value="x" * 200_000)
        (reader, _), definition = reader_of(driver), app.actors["work"]
        line = driver._run(reader.line(definition, "effect", 0, b"a"))
        assert (line.head.is_parked, line.head.size > 200_000, line.head.error) == (True, True, "ValueError: no")
        assert driver._run(reader.contents(definition, line, line.entries)) == {}
        full = driver._run(reader.contents(definition, line, line.entries, is_full=True))
        assert full[line.head.sequence].args == ["x" * 200_000]
        assert msgspec.json.encode(entry_json(definition, line, line.head, None))


def test_an_entry_of_another_input_was_written_where_the_first_one_was_then() -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic, more = (app.topic(name, key_type=str, value_type=str) for name in ("in", "more"))

    @app.effect(attempts=1)
    async def fail(call: Any) -> None:
        raise ValueError("no")

    @app.actor(topic, more, on_error="park", effects=[fail])
    async def work(ctx: Context, value: str) -> None:
        if value == "bad":
            raise ValueError(value)
        if value == "effect":
            ctx.effect(fail)

    with ActorTestDriver(app, partitions=1, effects={fail: fail}) as driver:
        for value in ("1", "2", "3"):
            driver.send(topic, key="b", value=value)
        for value in ("effect", "bad"):
            driver.send(more, key="a", value=value)
        (reader, _), definition = reader_of(driver), app.actors["work"]
        for what in ("message", "effect"):
            line = driver._run(reader.line(definition, what, 0, b"a"))
            assert [entry.written_by for entry in line.entries] == [2]
            (content,) = driver._run(reader.contents(definition, line, line.entries)).values()
            shown = entry_json(definition, line, line.entries[0], content)
            assert shown.get("topic") == ("more" if what == "message" else None)
