"""`timers list` and `timers drop`, against the owner's task on the test driver."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from actors import App, Context
from actors.admin.operation import Answer
from actors.admin.parked import control
from actors.admin.parked.reader import ParkedError
from actors.admin.timers import DropTimer, ListTimers
from actors.errors import UsageError
from actors.runtime.commands import CONTROL_HEADER, Command
from actors.testing import ActorTestDriver
from stores._core.printable import printable
from tests.unit.admin.test_parked_operations import Shop


class Reminders:
    """An app whose keys set timers by their messages, such as "once a 60"; `fired` has key and name of each."""

    def __init__(self, concurrency: int) -> None:
        self.app = app = App("shop", broker="kafka://127.0.0.1:1")
        self.topic = app.topic("in", key_type=str, value_type=str)
        self.fired: list[tuple[str, str]] = []

        @app.actor(self.topic, timers=True, concurrency=concurrency)
        async def remind(ctx: Context, text: str) -> None:
            how, name, *seconds = text.split()
            if how == "fire":
                self.fired.append((ctx.key, name))
            else:
                after = timedelta(seconds=int(seconds[0]))
                when: Any = {"every": after} if how == "every" else {"after": after}
                ctx.schedule(f"fire {name}", name=name, stream_time=how == "stream", **when)

        @app.actor(app.topic("other", key_type=str, value_type=str))
        async def plain(ctx: Context, text: str) -> None: ...


@pytest.fixture(params=[1, 4])
def shop(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Any]:
    world: Any = Reminders(request.param)
    with ActorTestDriver(world.app, partitions=1) as driver:
        for key, text in (("a", "once late 60"), ("a", "every often 10"), ("b", "stream soon 5"), ("c", "once c 90")):
            driver.send(world.topic, key=key, value=text)
        monkeypatch.setattr("actors.admin.timers.machine_ms", driver._clock.wall_ms)
        yield Shop(driver, world, monkeypatch)


def ids(answer: Answer) -> dict[tuple[str, str], str]:
    return {(timer["key"], timer["timer"]): timer["id"] for timer in answer.content}


def test_timers_are_listed_by_key_in_order_of_time(shop: Shop) -> None:
    answer = shop.run(ListTimers())
    assert [(timer["key"], timer["timer"], timer["clock"], timer["every_ms"]) for timer in answer.content] == [
        ("a", "often", "wall", 10_000),
        ("a", "late", "wall", None),
        ("b", "soon", "stream", None),
        ("c", "c", "wall", None),
    ]
    assert answer.table is not None
    assert [len(row) for row in answer.table[2]] == [len(answer.table[1])] * 4
    assert [timer["key"] for timer in shop.run(ListTimers(actor="remind", key="b")).content] == ["b"]
    first = shop.run(ListTimers(limit=1))
    assert ({timer["key"] for timer in first.content}, len(first.remarks)) == ({"a"}, 1)
    assert {timer["key"] for timer in shop.run(ListTimers(after=first.content[-1]["cursor"])).content} == {"b", "c"}


def test_a_dropped_timer_never_fires_and_the_others_do(shop: Shop) -> None:
    of = ids(shop.run(ListTimers()))
    for key, name in (("a", "often"), ("c", "c")):
        answer = shop.run(DropTimer(actor="remind", key=key, id=of[key, name]))
        assert (answer.failure, answer.lines) == (None, [f"dropped: {of[key, name]}"])
    assert set(ids(shop.run(ListTimers()))) == {("a", "late"), ("b", "soon")}
    shop.driver.advance(200)
    assert shop.world.fired == [("a", "late")]  # type: ignore[attr-defined]


def test_a_periodic_timer_has_one_id_and_is_dropped_between_its_times(shop: Shop) -> None:
    before = ids(shop.run(ListTimers()))["a", "often"]
    shop.driver.advance(35)
    fired: Any = list(shop.world.fired)  # type: ignore[attr-defined]
    assert ids(shop.run(ListTimers()))["a", "often"] == before
    shop.run(DropTimer(actor="remind", key="a", id=before))
    shop.driver.advance(20)
    assert shop.world.fired == fired == [("a", "often")] * 3  # type: ignore[attr-defined]


def test_a_timer_that_may_have_fired_is_not_said_to_be_dropped(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def send(*args: Any) -> list[int]:
        await asyncio.sleep(100)
        return await shop.send(*args)

    of = ids(shop.run(ListTimers()))
    monkeypatch.setattr(control, "send_commands", send)
    fired = shop.run(DropTimer(actor="remind", key="c", id=of["c", "c"]))
    assert ("c", "c") in shop.world.fired  # type: ignore[attr-defined]
    assert (fired.content["gone"], fired.failure) == ([of["c", "c"]], None)
    assert fired.lines[-1].startswith(f"gone: {of['c', 'c']}, dropped or fired: it was due at 2")
    stream = shop.run(DropTimer(actor="remind", key="b", id=of["b", "soon"]))
    assert stream.lines[-1].startswith(f"gone: {of['b', 'soon']}, dropped or fired: it was due at 2")
    often = shop.run(DropTimer(actor="remind", key="a", id=of["a", "often"]))
    assert often.lines == [f"dropped: {of['a', 'often']}"]


def test_a_key_is_named_as_a_table_shows_it(shop: Shop) -> None:
    key = "tab\there\u202e"
    shop.driver.send(shop.world.topic, key=key, value="once k 60")  # type: ignore[attr-defined]
    table = shop.run(ListTimers(actor="remind", key=key)).table
    assert table is not None
    shown = printable(table[2][0][2])
    (timer,) = shop.run(ListTimers(actor="remind", key=shown)).content
    assert (shown, timer["key"]) == (r"tab\there\u202e", key)
    assert shop.run(DropTimer(actor="remind", key=shown, id=timer["id"])).failure is None
    assert key not in {key for key, _ in ids(shop.run(ListTimers()))}


def test_a_command_that_is_written_again_drops_no_timer_that_was_set_since(shop: Shop) -> None:
    old = ids(shop.run(ListTimers()))["c", "c"]
    shop.driver.send(shop.world.topic, key="c", value="once c 30")  # type: ignore[attr-defined]
    new = ids(shop.run(ListTimers()))["c", "c"]
    assert old != new
    order = Command(actor="remind", what="timer", command="drop", id=old, before=1 << 40)
    headers = [(CONTROL_HEADER, msgspec.json.encode(order))]
    shop.driver._run(shop.driver._append("in", b"c", b"control", headers, 0, None))
    shop.driver.settle()
    assert ids(shop.run(ListTimers()))["c", "c"] == new
    with pytest.raises(ParkedError, match=f"has no timer '{old}' for key 'c': it fired, or was dropped or set again"):
        shop.run(DropTimer(actor="remind", key="c", id=old))


def test_what_cannot_be_listed_or_dropped_is_refused(shop: Shop) -> None:
    with pytest.raises(UsageError, match="--key needs --actor"):
        shop.run(ListTimers(key="a"))
    with pytest.raises(ParkedError, match="actor plain has no timers: declare it with"):
        shop.run(ListTimers(actor="plain"))
    with pytest.raises(ParkedError, match="actor remind has no timers for key 'z': see `timers list`"):
        shop.run(DropTimer(actor="remind", key="z", id="1"))
    shop.driver.advance(3_600)
    shop.run(DropTimer(actor="remind", key="a", id=ids(shop.run(ListTimers()))["a", "often"]))
    shop.is_away = True
    late = shop.run(DropTimer(actor="remind", key="b", id=ids(shop.run(ListTimers()))["b", "soon"], timeout_s=0))
    assert (late.failure or "").startswith("no owner of in[0] carried the command out in time")
