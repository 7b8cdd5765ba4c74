"""A class actor's `on_expire` that runs ahead of a message: its errors and its identity are its own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from actors import Actor, App, EffectCall, HandlerFailedError, OnError, receive
from actors.testing import ActorTestDriver

HOUR = timedelta(hours=1)


class World:
    """`Session` asks `echo` for each page but "look"; its hook sends what expired, or raises."""

    def __init__(self, **options: Any) -> None:
        self.app = App("web", broker="kafka://127.0.0.1:1")
        self.clicks = self.app.topic("clicks", key_type=str, value_type=str)
        self.ended = self.app.topic("ended", key_type=str, value_type=list)
        self.error: Exception | None = None
        self.asks = False
        self.got: list[Any] = []
        world = self

        @self.app.actor(self.app.topic("echo", key_type=str, value_type=str))
        def echo(ctx: Any, text: str) -> str:
            return text

        @self.app.actor(self.clicks, concurrency=2, **options)
        class Session(Actor[list[str]]):
            state_ttl = HOUR

            @receive
            async def click(self, page: str) -> None:
                if page == "look":
                    world.got.append(list(self.state))
                    return
                self.state.append(await self.ctx.ask(echo, "e", page))

            async def on_expire(self) -> None:
                world.got.append(("expired", self.ctx.message_id, self.ctx.timestamp_ms > 0))
                self.ctx.send(world.ended, key=self.key, value=self.state)
                self.state = ["of the hook"]
                if world.asks:
                    await self.ctx.ask(echo, "e", "hook")
                if world.error is not None:
                    raise world.error

        self.Session = Session

    def hold_sweeper(self, driver: ActorTestDriver) -> None:
        for task in driver._worker.tasks:
            if task._processor.sweeper is not None:
                task._processor.sweeper._due_s = 1e9

    def ids(self) -> list[str]:
        return [each[1] for each in self.got if each[:1] == ("expired",)]


def ended(world: World, driver: ActorTestDriver) -> list[Any]:
    return [sent.value for sent in driver.outputs(world.ended)]


def test_a_handler_asks_after_the_hook_of_its_expired_state() -> None:
    world = World()
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.clicks, key="a", value="home")
        world.hold_sweeper(driver)
        driver.advance(3_600)
        driver.send(world.clicks, key="a", value="shop")
        assert ended(world, driver) == [["home"]]
        assert driver.items(world.Session) == {"a": ["of the hook", "shop"]}


@pytest.mark.parametrize("options", [{"on_error": "skip"}, {"on_error": OnError(retries=1, then="park")}])
@pytest.mark.parametrize("asks", [False, True], ids=["raises", "asks"])
def test_an_error_of_the_hook_is_not_the_messages(options: Any, asks: bool, caplog: pytest.LogCaptureFixture) -> None:
    world = World(dedupe_by=lambda ctx, page: page, **options)
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.clicks, key="a", value="home")
        world.hold_sweeper(driver)
        driver.advance(3_600)
        world.asks, world.error = asks, None if asks else ValueError("hook")
        driver.send(world.clicks, key="a", value="shop")
        driver.send(world.clicks, key="a", value="shop")
        assert driver.items(world.Session) == {"a": ["shop"]}
        assert ended(world, driver) == []
    assert "store Session, partition 0: on_expire raised for the expired key 'a'; a message of the key" in caplog.text
    assert "skipped" not in caplog.text
    assert "parked" not in caplog.text
    assert len(world.ids()) == 1


@pytest.mark.parametrize("options", [{}, {"on_error": OnError(retries=2, first_wait=timedelta(seconds=1))}])
def test_a_hook_that_raises_ahead_of_a_message_stops_the_partition_and_is_called_again(options: Any) -> None:
    world = World(**options)
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.clicks, key="a", value="home")
        world.hold_sweeper(driver)
        driver.advance(3_600)
        world.error = ValueError("hook")
        with pytest.raises(HandlerFailedError, match="on_expire of store Session raised ValueError: hook") as caught:
            driver.send(world.clicks, key="a", value="shop")
        assert (caught.value.topic, caught.value.offset, caught.value.key) == ("clicks", 1, b"a")
        attempts = len(world.ids())
        assert attempts == (3 if options else 1)
        world.error = None
        driver.crash()
        assert ended(world, driver) == [["home"]]
        assert driver.items(world.Session) == {"a": ["of the hook", "shop"]}
        assert len(set(world.ids())) == 1
        assert len(world.ids()) == attempts + 1


def test_a_hook_that_failed_ahead_of_a_message_that_only_reads_is_called_again_with_its_id() -> None:
    world = World(on_error="skip")
    with ActorTestDriver(world.app, partitions=1) as driver:
        driver.send(world.clicks, key="a", value="home")
        world.hold_sweeper(driver)
        driver.advance(3_600)
        world.error = ValueError("hook")
        driver.send(world.clicks, key="a", value="look")
        assert world.got[-1] == []
        world.error = None
        for task in driver._worker.tasks:
            if task._processor.sweeper is not None:
                task._processor.sweeper._due_s = 0.0
        driver.advance(60)
        assert ended(world, driver) == [["home"]]
        assert len(world.ids()) == 2
        assert len(set(world.ids())) == 1


def test_what_a_hook_calls_has_an_id_of_the_hook() -> None:
    app = App("web", broker="kafka://127.0.0.1:1")
    clicks = app.topic("clicks", key_type=str, value_type=str)
    calls: list[str] = []

    @app.effect()
    async def note(call: EffectCall, text: str) -> None:
        calls.append(call.idempotency_key)

    @app.actor(clicks, effects=[note])
    class Session(Actor[list[str]]):
        state_ttl = HOUR

        @receive
        def click(self, page: str) -> None:
            self.state.append(page)
            self.ctx.effect(note, "same")

        def on_expire(self) -> None:
            self.ctx.effect(note, "same")

    with ActorTestDriver(app, partitions=1, effects={note: note}) as driver:
        driver.send(clicks, key="a", value="home")
        for task in driver._worker.tasks:
            task._processor.sweeper._due_s = 1e9
        driver.advance(3_600)
        driver.send(clicks, key="a", value="shop")
        assert [call.partition("-0-")[2].split("-")[0] for call in calls] == ["0", "expired", "1"]
