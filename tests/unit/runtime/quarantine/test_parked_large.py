"""Parked messages of any size: in slices, read by what wants them only."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from actors import HandlerFailedError
from actors._core.keys import line_bounds, make_place, place_of
from actors.errors import NewerVersionError, RefusedRecordError
from actors.runtime.message.internal_messages import InternalRecord
from actors.runtime.quarantine import entries as parked_entries
from actors.runtime.quarantine.entries import ParkedMessage, line_key_of, read_entry, summary_of
from actors.runtime.quarantine.quarantine import Parked
from actors.testing import ActorTestDriver
from tests.unit.runtime.quarantine.test_parked import Standing, World

LARGE = "x" * 900_000


def slices(items: Any) -> list[bytes]:
    return [place for place in items if place.startswith(b"s")]


# --- as a user sees it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_disk", [True, False])
def test_a_large_message_and_those_behind_it_are_parked_retried_in_order_and_leave_nothing(keep_disk: bool):
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.post(driver, f"a bad{LARGE}", f"a {LARGE}", "a 3", "b 1")
        assert world.handled(driver) == ["b 1 1"]
        assert [len(found.value) for found in driver.parked("work")] == [900_003, 900_000, 1]
        driver.crash(keep_disk=keep_disk)
        world.post(driver, "a 4")
        driver.retry_parked("work", "a")
        first = driver.parked("work")[0]
        assert (first.value, first.attempts, len(driver.parked("work"))) == (f"bad{LARGE}", 2, 4)
        world.is_mended = True
        driver.crash(keep_disk=keep_disk)
        driver.retry_parked("work", "a")
        assert [sent[:5] for sent in world.handled(driver)] == ["a bad", "a xxx", "a 3 3", "a 4 4"]
        assert driver.items(world.store) == {}


@pytest.mark.parametrize("command", [{}, {"id": "in-0-0"}, {"id": "*"}])
def test_a_dropped_large_message_leaves_no_slices(command: dict[str, Any]):
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.post(driver, f"a bad{LARGE}")
        assert slices(driver.items(world.store))
        world.tell(driver, "a", "drop", **command)
        assert driver.items(world.store) == {}


def test_large_headers_and_a_value_that_compressed_well_are_parked():
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        headers = [("x" * 30_000, b"\xff" * 900_000)] * 2
        driver.send(world.raw, key=b"a", value=b"bad", headers=headers)
        driver.send(world.raw, key=b"b", value=b"bad" + b"x" * 5_000_000)
        first, second = driver.parked("work")
        assert (list(first.headers), len(second.value)) == (headers, 5_000_003)
        world.is_mended = True
        driver.retry_parked("work", "a")
        assert list(world.seen[-1].headers) == headers


def test_messages_with_a_key_too_long_for_the_changelog_wait_in_one_line_in_order():
    world, long, other = World(), "k" * 300_000, "k" * 299_999 + "j"
    with ActorTestDriver(world.app, partitions=1) as driver:
        for key, value in ((long, "bad"), (long, "2"), (other, "no"), ("b", "1")):
            driver.send(world.topic, key=key, value=value)
        assert world.handled(driver) == ["b 1 1"]
        assert [(found.key == long, found.value) for found in driver.parked("work")] == [(True, "bad"), (True, "2")]
        driver.crash()
        driver.send(world.topic, key=long, value="3")
        assert [found.value for found in driver.parked("work")] == ["bad", "2", "3"]
        world.tell(driver, line_key_of(long.encode()).decode(), "drop", id="*")
        assert driver.items(world.store) == {}


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_record_whose_parking_the_broker_refuses_stops_the_partition(concurrency: int):
    world = World(concurrency=concurrency)
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver._cluster.limit_records("shop--work-parked-changelog", 200)
        driver.post(world.topic, key="b", value="1")
        with pytest.raises(RefusedRecordError, match=r"in\[0\] offset 1 key 'a'.*refuses that its on_error policy"):
            driver.send(world.topic, key="a", value="bad")
        assert world.handled(driver) == ["b 1 1"]
        assert driver.items(world.store) == {}


# --- the entries ---------------------------------------------------------------------------------------------------


def entries(standing: Standing, key: bytes) -> list[tuple[int, bytes]]:
    overlay = standing.state.overlays[standing.store]
    return [(place_of(place)[1], raw) for place, raw in overlay.items(*line_bounds(b"p", key))]


def test_a_message_that_does_not_fit_in_any_way_stops_the_partition_and_leaves_nothing():
    standing = Standing()
    standing.state.max_record_bytes = {"work-parked": 300}
    with pytest.raises(HandlerFailedError) as told:
        standing.fail(b"a", 7, b"x" * 2_000)
    text = str(told.value)
    for part in ("in[0] offset 7 key 'a'", "because; and it can't be parked", "2001 bytes", "max.message.bytes=300"):
        assert part in text
    assert entries(standing, b"a") == []
    assert standing.state.outputs == []
    assert standing.scope.undo == []


def test_small_messages_are_one_entry():
    standing = Standing()
    standing.fail(b"a", 0, b"x" * 1_000)
    ((_, raw),) = entries(standing, b"a")
    assert msgspec.json.decode(raw, type=ParkedMessage).value == b"x" * 1_000
    assert not raw.startswith(b'{"v"')


def test_an_entry_that_fills_its_record_is_read_and_can_fail_again():
    standing = Standing()
    standing.fail(b"a", 0)
    ((_, raw),) = entries(standing, b"a")
    large = msgspec.structs.replace(msgspec.json.decode(raw, type=ParkedMessage), value=b"x" * 7_000)
    raw = msgspec.json.encode(large)
    overlay = standing.state.overlays[standing.store]
    overlay.set(make_place(b"p", b"a", 0), raw)
    assert read_entry(overlay.get, b"a", 0, raw) == large
    assert parked_entries.write_failure(standing.store, standing.state, b"a", 0, raw, "because " * 200) == 2
    ((_, again),) = entries(standing, b"a")
    assert read_entry(overlay.get, b"a", 0, again) == msgspec.structs.replace(large, error="because " * 200, attempts=2)


def test_a_summary_has_no_content():
    standing = Standing()
    for key, offset, value in ((b"a", 0, b"1"), (b"a", 1, b"x" * 100_000)):
        standing.fail(key, offset, value)
    standing.parked.park(
        standing.state,
        InternalRecord(2, 0, None, b"x" * 100_000),
        HandlerFailedError("because", topic="in", partition=0, offset=2, key=None),
        1,
    )
    found = [summary_of(raw) for key in (b"a", b"") for _, raw in entries(standing, key)]
    assert [(one.message_id, one.has_key, one.slices > 0) for one in found] == [
        ("in-0-0", True, False),
        ("in-0-1", True, True),
        ("in-0-2", False, True),
    ]
    assert [one.size // 100_000 for one in found] == [0, 1, 1]


def test_an_entry_whose_slice_is_gone_cannot_be_read():
    standing = Standing()
    standing.fail(b"a", 0, b"x" * 100_000)
    ((sequence, raw),) = entries(standing, b"a")
    overlay = standing.state.overlays[standing.store]
    overlay.delete(next(place for place in overlay.writes if place.startswith(b"s")))
    with pytest.raises(NewerVersionError, match=r"in-0-0 lacks slice 0 of \d+"):
        read_entry(overlay.get, b"a", sequence, raw)


def test_a_retry_of_a_message_whose_slice_is_gone_does_not_stop_the_partition():
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        world.post(driver, f"a bad{LARGE}", "a 2")
        slice_key = slices(driver.items(world.store))[0]
        driver._produce("shop--work-parked-changelog", slice_key, None, (), 0, None)
        driver.crash(keep_disk=False)
        world.is_mended = True
        driver.retry_parked("work", "a")
        world.post(driver, "b 1")
        assert world.handled(driver) == ["b 1 1"]
        head = next(raw for raw in driver.items(world.store).values() if raw.startswith(b'{"v":2'))
        assert "lacks slice 0" in str(summary_of(head).error)
        world.tell(driver, "a", "drop")
        world.tell(driver, "a", "retry")
        assert world.handled(driver) == ["a 2 1"]
        assert driver.items(world.store) == {}


def test_nothing_is_decoded_to_know_the_lines(monkeypatch: pytest.MonkeyPatch):
    standing = Standing()
    standing.fail(b"a", 0, b"x" * 100_000)
    standing.fail(b"b", 1)
    monkeypatch.setattr(msgspec.json, "decode", None)
    monkeypatch.setattr(msgspec.msgpack, "decode", None)
    assert Parked(standing.spec, standing.state)._next == {b"a": 1, b"b": 1}


async def test_a_command_to_one_key_reads_nothing_of_others(monkeypatch: pytest.MonkeyPatch):
    standing, read = Standing(), list[bytes]()
    for offset, key in enumerate((b"a", b"b", b"c")):
        standing.fail(key, offset, b"x" * 100_000)
    overlay, parked = standing.state.overlays[standing.store], Parked(standing.spec, standing.state)
    of_others = {line_bounds(b"p", key)[0] for key in (b"a", b"c")}
    of_others |= {parked_entries.slices_of_line(key) for key in (b"a", b"c")}
    get = type(overlay).read
    monkeypatch.setattr(type(overlay), "read", lambda self, key: read.append(key) or get(self, key))
    monkeypatch.setattr(type(overlay), "get", lambda self, key: read.append(key) or get(self, key)[25:])
    told = b'{"actor":"work","what":"message","command":"drop","id":"*"}'
    handling: Any = None
    internal_record: Any = InternalRecord(9, 0, b"b", told, [("fa-control", told)])
    assert await parked.intercept(standing.state, internal_record, handling)
    assert read
    assert not [key for key in read if any(key.startswith(other) for other in of_others)]


def test_one_whose_dead_letter_is_too_large_is_parked_without_it(caplog: pytest.LogCaptureFixture):
    standing = Standing()
    standing.fail(b"a", 0)
    standing.fail(b"b", 1, b"x" * 2_000)
    assert standing.sequences(b"b") == [0]
    assert [output.key for output in standing.state.outputs] == [b"a"]
    assert "in[0] offset 1: parked without a dead letter: letters" in caplog.records[-1].getMessage()
