"""`processing_guarantee="at_least_once"`: no commit is atomic, and nothing is lost wherever one is cut off."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from actors import App, Context, EffectCall, Session, Tumbling, aggregates
from actors.ports import TopicPartition
from actors.runtime.task.steps import in_steps
from actors.testing import ActorTestDriver
from actors.testing.fakes.errors import NoAnswerError
from actors.testing.fakes.ports import FakeOrderedWriter
from tests.unit.runtime.quarantine.test_parked import Standing


class World:
    """An actor with all that waits in its own stores; `done` has what was made of messages."""

    def __init__(self) -> None:
        self.app = App("shop", broker="kafka://127.0.0.1:1", processing_guarantee="at_least_once")
        self.topic = self.app.topic("in", key_type=str, value_type=str)
        self.done = done = self.app.store("done", key_type=str, value_type=int)
        self.is_mended = False

        @self.app.effect()
        async def post(call: EffectCall, text: str) -> str:
            return f"posted {text}"

        self.post = post

        @self.app.actor(
            self.topic, stores=[done], on_error="park", dedupe_by=lambda _, value: value, effects=[post], timers=True
        )
        async def work(ctx: Context, value: str) -> str | None:
            if value.startswith("bad") and not self.is_mended:
                raise ValueError(value)
            if value == "later":
                ctx.schedule("due", after=timedelta(seconds=1), name="later")
            elif value == "often":
                ctx.schedule("tick", every=timedelta(minutes=5), name="often")
            elif value == "call":
                ctx.effect(post, "it")
            elif value == "stop":
                ctx.cancel("often")
            done.set(value, done.get(value, 0) + 1)
            return None


def fail_at(monkeypatch: pytest.MonkeyPatch, number: int) -> Callable[[], bool]:
    """Let the produce of a changelog with that number be lost, and give what tells whether it was."""
    count, sent = itertools.count(), FakeOrderedWriter._produce

    async def produce(self: Any, producer: int, target: TopicPartition, records: list[Any]) -> int:
        if target.topic.endswith("-changelog") and next(count) == number:
            raise NoAnswerError("lost")
        return await sent(self, producer, target, records)

    monkeypatch.setattr(FakeOrderedWriter, "_produce", produce)
    return lambda: next(count) > number


def play(world: World, driver: ActorTestDriver, case: str) -> str:
    """Do what a case is about, and give what the actor must have done at the end."""
    if case in ("bad 1", "bad call"):
        driver.retry_parked("work", "a")
        return case
    if case in ("later", "often", "call"):
        driver.post(world.topic, key="a", value=case)
        driver.advance(6 * 60, settle=False)
        driver.settle()
        return {"later": "due", "often": "tick", "call": "posted it"}[case]
    driver.post(world.topic, key="a", value=case)
    return case


@pytest.mark.parametrize("case", ["once", "bad 1", "later", "often", "call"])
def test_nothing_is_lost_where_one_of_a_commits_writes_is(case: str, monkeypatch: pytest.MonkeyPatch):
    for number in itertools.count():
        world = World()
        with ActorTestDriver(world.app, partitions=1, effects={world.post: world.post}) as driver:
            if case.startswith("bad"):
                driver.send(world.topic, key="a", value=case)
                world.is_mended = True
            with monkeypatch.context() as patch:
                has_failed = fail_at(patch, number)
                wanted = play(world, driver, case)
                driver.advance(3 * 60, settle=False)
                driver.settle()
                if not has_failed():
                    assert number > 1
                    return
            driver.crash(keep_disk=False)
            assert driver.items(world.done).get(wanted, 0) >= 1, f"{case}: lost with write {number}"
            assert driver.parked("work") == []


def test_a_large_parked_message_is_no_entry_before_all_of_its_slices_are_there():
    standing = Standing()
    standing.fail(b"a", 0, b"x" * 100_000)
    writes = standing.state.overlays[standing.store].writes
    changelog: Any = SimpleNamespace(topic="parked")
    spec = replace(standing.spec, stores=(standing.store,), changelogs={standing.store.name: changelog})
    (step,) = in_steps(spec, {"parked": dict(reversed(writes.items()))})
    assert [key[:1] for key in step["parked"]] == [b"s"] * (len(writes) - 1) + [b"p"]
    assert [key[:1] for key in writes][-1] == b"p"


def test_a_message_that_is_handled_again_is_not_late_by_a_time_that_was_written_without_it(
    monkeypatch: pytest.MonkeyPatch,
):
    for number in itertools.count():
        app = App("shop", broker="kafka://127.0.0.1:1", processing_guarantee="at_least_once")
        both, clicks = (app.topic(name, key_type=str, value_type=int) for name in ("both", "clicks"))
        stores = [
            app.window_store("tens", Tumbling(seconds=10), aggregate=aggregates.count()),
            app.window_store("visits", Session(timedelta(seconds=5)), aggregate=aggregates.count()),
        ]

        @app.actor(both)
        async def send_both(ctx: Context, value: int, to: Any = clicks) -> None:
            # They come together, and are committed together.
            for key, at_ms in (("a", 1_000), ("z", 60_000)):
                ctx.send(to, key=key, value=value, timestamp_ms=1_700_000_000_000 + at_ms)

        @app.actor(clicks, stores=stores)
        async def count(ctx: Context, value: int, stores: Any = stores) -> None:
            for store in stores:
                store.add(ctx.key, value)

        with ActorTestDriver(app, partitions=1) as driver:
            with monkeypatch.context() as patch:
                has_failed = fail_at(patch, number)
                driver.send(both, key="b", value=1)
                if not has_failed():
                    assert number > 1
                    return
            driver.crash(keep_disk=False)
            counts = [sum(driver.windows(store, "a").values()) for store in stores]
            assert min(counts) >= 1, f"lost with write {number}: {counts}"
