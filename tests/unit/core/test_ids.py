"""Ids of what a message leads to: the same when it is handled again, in whatever order its branches run."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from actors import App, Context, EffectCall, HandlerFailedError
from actors._core.keys import line_bounds
from actors._core.task.topic_ids import show_id
from actors.ports import TopicPartition
from actors.runtime.quarantine.entries import ParkedMessage, summary_of
from actors.testing import ActorTestDriver
from stores._core.record import METADATA_HEADER, encode_metadata
from tests.logs import Record
from tests.unit.runtime.quarantine.test_parked import Standing


def an_app() -> App:
    return App("ids", broker="kafka://127.0.0.1:1")


def booking(way: dict[str, Any]) -> tuple[App, Any, list[int]]:
    """`transfer` books 100 and 1 from two branches, whose I/O takes as long as `way` says, then waits."""
    app = an_app()
    inbox, orders = app.topic("inbox", key_type=str, value_type=int), app.topic("orders", key_type=str, value_type=str)
    booked: list[int] = []

    @app.actor(inbox)
    def book(ctx: Context, amount: int) -> int:
        booked.append(amount)
        return len(booked)

    @app.actor(orders, concurrency=4)
    async def transfer(ctx: Context, _: str) -> None:
        async def branch(amount: int, io_s: float) -> int:
            await asyncio.sleep(io_s)
            answer: int = await ctx.ask(book, "sum", amount)
            return answer

        way["answers"] = await asyncio.gather(*(branch(amount, io_s) for amount, io_s in way["branches"]))
        await asyncio.sleep(way["then_s"])

    return app, orders, booked


def test_branches_that_reach_their_asks_in_another_order_ask_the_same_questions() -> None:
    way: dict[str, Any] = {"branches": [(100, 1.0), (1, 2.0)], "then_s": 500.0}
    app, orders, booked = booking(way)
    with ActorTestDriver(app, partitions=1) as driver:
        driver.post(orders, key="x", value="go")
        driver.advance(10, settle=False)
        assert booked == [100, 1]
        way |= {"branches": [(100, 2.0), (1, 1.0)], "then_s": 0.0}
        driver.crash()
        assert booked == [100, 1]
        assert way["answers"] == [1, 2]


def test_equal_questions_of_one_message_are_told_apart() -> None:
    way: dict[str, Any] = {"branches": [(5, 1.0), (5, 2.0), (7, 1.5)], "then_s": 500.0}
    app, orders, booked = booking(way)
    with ActorTestDriver(app, partitions=1) as driver:
        driver.post(orders, key="x", value="go")
        driver.advance(10, settle=False)
        way |= {"branches": [(5, 2.0), (5, 1.0), (7, 1.5)], "then_s": 0.0}
        driver.crash()
        assert booked == [5, 7, 5]
        assert sorted(way["answers"]) == [1, 2, 3]


def test_effects_and_unnamed_timers_keep_their_ids_in_whatever_order_they_are_called() -> None:
    app = an_app()
    orders = app.topic("orders", key_type=str, value_type=str)
    way = {"order": ["a", "b", "b"], "fails": True}
    seen: list[dict[str, list[str]]] = []

    @app.effect()
    async def call(call: EffectCall, text: str, *, loud: bool = False) -> None: ...

    @app.actor(orders, timers=True, effects=[call], on_error="skip")
    async def handle(ctx: Context, value: str) -> None:
        if value != "go":
            return
        seen.append({})
        for text in way["order"]:
            effect = ctx.effect(call, text, loud=True)
            timer = ctx.schedule(text, after=timedelta(seconds=5))
            seen[-1].setdefault(text, []).extend((effect, timer))
        if way["fails"]:
            await asyncio.sleep(500)

    with ActorTestDriver(app, partitions=1, effects={call: call}) as driver:
        driver.post(orders, key="x", value="go")
        driver.advance(10, settle=False)
        way |= {"order": ["b", "a", "b"], "fails": False}
        driver.crash()
        assert seen[0] == seen[1]
        assert len({id for ids in seen[0].values() for id in ids}) == 6


def test_a_parked_message_keeps_its_id_when_its_input_is_re_created():
    standing, ids = Standing(), []
    for tag in ("", "former", "now"):
        standing.state.message_tag = tag
        record = Record(7, b"a", b"1")
        ids.append(Context(standing.state, record, None, b"a").message_id)
        failed = HandlerFailedError("because", topic="in", partition=0, offset=7, key=b"a")
        standing.parked.park(standing.state, record, failed, 1)
    assert ids == ["in-0-7", "in@former-0-7", "in@now-0-7"]
    entries = list(standing.state.overlays[standing.store].items(*line_bounds(b"p", b"a")))
    for id, (_, raw) in zip(ids, entries, strict=True):
        message = msgspec.json.decode(raw, type=ParkedMessage)
        assert message.message_id == summary_of(raw).message_id == id
        assert Context(standing.state, message.record(), None, b"a").message_id == id
        assert message.id is None


class MovedDriver(ActorTestDriver):
    """The app on another cluster: `spark_replay publish` has written a key of its store, partition 0, to the
    changelog."""

    async def _restart(self, *, settle: bool = True) -> None:
        # As `spark_replay` metadata it: no owner, no input.
        headers = [(METADATA_HEADER, encode_metadata(0, -1))]
        self._cluster.produce(TopicPartition("ids--seen-changelog", 0), [(b'"old"', b"1", headers)])
        await super()._restart(settle=settle)


@pytest.mark.parametrize("driven", [ActorTestDriver, MovedDriver])
def test_ids_do_not_repeat_on_another_cluster_to_which_the_state_was_published(driven: type[ActorTestDriver]) -> None:
    app = an_app()
    inbox, out = app.topic("inbox", key_type=str, value_type=str), app.topic("out", key_type=str, value_type=str)
    seen = app.store("seen", key_type=str, value_type=int)

    @app.actor(inbox, stores=[seen])
    def handle(ctx: Context, value: str) -> None:
        seen.set(ctx.key, 1)
        ctx.send(out, key=ctx.key, value=ctx.message_id)

    with driven(app, partitions=1) as driver:
        tag = show_id(driver._cluster.topic("inbox").topic_id)[-8:]
        name = f"inbox@{tag}" if driven is MovedDriver else "inbox"
        driver.send(inbox, key="a", value="first")
        # Every later owner gives the same ones.
        driver.crash(keep_disk=False)
        driver.send(inbox, key="a", value="second")
        assert [sent.value for sent in driver.outputs(out)] == [f"{name}-0-0", f"{name}-0-1"]
