"""Expiry on the test driver: absent at once, removed with tombstones, never back, a hook that can act."""

import asyncio
from datetime import timedelta

import pytest

from actors import Actor, App, ConfigurationError, HandlerFailedError, OnError, Store, receive
from actors.ports import TopicPartition
from actors.runtime.clock import SystemClock
from actors.runtime.handlers.expiry import Sweeper
from actors.runtime.message.task_state import TaskState
from actors.testing import ActorTestDriver
from stores._core.overlay import MessageScope, Overlay
from stores._core.record import Position, encode_metadata
from stores.memory import MemoryStore

HOUR = timedelta(hours=1)

SOURCE = TopicPartition("in", 0)


def sessions(**options):
    app = App("web", broker="kafka://127.0.0.1:1")
    clicks = app.topic("clicks", key_type=str, value_type=str)
    ended = app.topic("ended", key_type=str, value_type=str)
    store = app.store("sessions", key_type=str, value_type=str, **options)

    @app.actor(clicks, stores=[store])
    def click(ctx, page):
        if page == "look":
            ctx.send(ended, key=ctx.key, value=str(store.get(ctx.key)))
        elif page.startswith("for "):
            store.set(ctx.key, page, ttl=timedelta(seconds=float(page[4:])))
        else:
            store.set(ctx.key, page)

    return app, clicks, ended, store


def test_an_expired_key_is_absent_at_once_and_its_remains_go_with_a_tombstone():
    app, clicks, ended, store = sessions(ttl=HOUR)
    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(clicks, key="a", value="home")
        driver.advance(1800)
        driver.send(clicks, key="b", value="home")
        driver.advance(1799)
        driver.send(clicks, key="a", value="look")
        driver.advance(1)
        driver.send(clicks, key="a", value="look")
        assert [sent.value for sent in driver.outputs(ended)] == ["home", "None"]
        driver.advance(60)
        assert [(sent.key, sent.value) for sent in driver.changelog(store)] == [
            ("a", "home"),
            ("b", "home"),
            ("a", None),
        ]
        assert driver.items(store) == {"b": "home"}
        driver.crash(keep_disk=False)
        assert driver.items(store) == {"b": "home"}
        driver.advance(3600)
        assert driver.items(store) == {}
        assert driver.changelog(store)[-1].value is None


def test_a_write_may_have_its_own_time_to_live():
    app, clicks, _, store = sessions(expires=True)
    with ActorTestDriver(app) as driver:
        driver.send(clicks, key="a", value="for 10")
        driver.send(clicks, key="b", value="for 100")
        driver.send(clicks, key="c", value="home")
        driver.advance(30)
        assert sorted(driver.items(store)) == ["b", "c"]
        driver.advance(100_000)
        assert sorted(driver.items(store)) == ["c"]
        assert sum(sent.value is None for sent in driver.changelog(store)) == 2


def test_a_key_that_was_written_again_stays():
    app, clicks, _, store = sessions(ttl=HOUR)
    with ActorTestDriver(app) as driver:
        for _ in range(5):
            driver.send(clicks, key="a", value="home")
            driver.advance(3000)
        assert driver.items(store) == {"a": "home"}
        assert [sent.value for sent in driver.changelog(store)] == ["home"] * 5


def test_many_keys_go_in_slices():
    app, clicks, _, store = sessions(ttl=HOUR)
    with ActorTestDriver(app) as driver:
        for number in range(1_200):
            driver.post(clicks, key=f"k{number:04d}", value="home")
        driver.settle()
        assert len(driver.items(store)) == 1_200
        driver.advance(3_700)
        changelog = driver.changelog(store)
        assert len({sent.key for sent in changelog if sent.value is None}) == 1_200
        assert len(changelog) == 2_400


def hooked(on_expire, **options):
    app, clicks, ended, store = sessions(ttl=HOUR, on_expire=on_expire, **options)
    return app, clicks, ended, store


def test_a_hook_acts_once_for_each_expired_key_also_after_a_kill():
    def end(ctx, page):
        ctx.send("ended", key=ctx.key, value=f"left at {page}")

    app, clicks, ended, _ = hooked(end)
    with ActorTestDriver(app) as driver:
        driver.send(clicks, key="a", value="shop")
        driver.crash(keep_disk=False)
        driver.advance(3_700)
        driver.crash()
        driver.advance(3_700)
        assert [(sent.key, sent.value) for sent in driver.outputs(ended)] == [("a", "left at shop")]


def test_a_hook_that_raises_is_called_again_and_left_nothing(caplog):
    calls = []

    async def end(ctx, page):
        calls.append(page)
        ctx.send("ended", key=ctx.key, value=page)
        if len(calls) < 3:
            raise ValueError("not now")

    app, clicks, ended, store = hooked(end)
    with ActorTestDriver(app) as driver:
        driver.send(clicks, key="a", value="shop")
        driver.advance(3_600)
        driver.advance(11)
        assert driver.outputs(ended) == []
        assert driver.changelog(store)[-1].value == "shop"
        assert "on_expire raised for the expired key 'a'" in caplog.text
        driver.advance(30)
        assert calls == ["shop"] * 3
        assert [sent.value for sent in driver.outputs(ended)] == ["shop"]


def test_a_class_actor_acts_when_its_state_expires():
    app = App("web", broker="kafka://127.0.0.1:1")
    clicks = app.topic("clicks", key_type=str, value_type=str)
    ended = app.topic("ended", key_type=str, value_type=list)

    @app.actor(clicks)
    class Session(Actor[list]):
        state_ttl = HOUR

        @receive
        def click(self, page: str) -> None:
            self.state.append(page)

        async def on_expire(self) -> None:
            self.ctx.send(ended, key=self.key, value=self.state)
            if self.state == ["stay"]:
                self.state = ["stayed"]

    with ActorTestDriver(app) as driver:
        driver.send(clicks, key="a", value="home")
        driver.send(clicks, key="a", value="shop")
        driver.send(clicks, key="b", value="stay")
        driver.advance(3_700)
        assert [(sent.key, sent.value) for sent in driver.outputs(ended)] == [("a", ["home", "shop"]), ("b", ["stay"])]
        assert driver.items(Session) == {"b": ["stayed"]}


def test_what_cannot_be():
    with pytest.raises(ConfigurationError, match="on_expire without ttl"):
        sessions(on_expire=print)
    for options, page, match in (
        ({}, "for 10", "store sessions: a write with a ttl in a store whose keys don't expire"),
        ({"expires": True}, "for 0", "isn't a time to live"),
    ):
        app, clicks, _, _ = sessions(**options)
        with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError, match=match):
            driver.send(clicks, key="a", value=page)


async def test_a_sweep_leaves_what_was_written_again_and_is_not_committed_yet():
    store = Store(
        "s", encode_key=bytes, decode_key=bytes, encode_value=bytes, decode_value=bytes, ttl_ms=10, placement="task"
    )
    base = MemoryStore()
    expired, stays = encode_metadata(1, 1, 5), encode_metadata(1, 1)
    base.apply([(b"a", expired + b"old"), (b"b", expired + b"old"), (b"c", stays + b"old")], Position(2, 2, 1, 1, "id"))
    scope = MessageScope(epoch=1, now_ms=100)
    overlay = Overlay(base, scope)
    messages = TaskState("x", SOURCE, SOURCE, 0, 1, scope, {store: overlay}, {"s": 1_000}, None, [])
    overlay.set(b"a", b"new", 1 << 60)
    scope.release()
    sweeper = Sweeper.over([(store, overlay, base)], SystemClock())
    await sweeper.sweep(messages, 7, lambda: False, lambda _: False)
    assert (overlay.get(b"a"), overlay.get(b"b"), overlay.get(b"c")) == (b"new", None, b"old")
    assert [key for key, (_, value) in overlay.writes.items() if value is None] == [b"b"]
    assert sweeper.wait_s() > 0


def test_what_a_hook_wrote_to_another_expired_key_stays():
    def renew(ctx, page):
        if ctx.key == "a":
            store.set("b", "renewed")

    app, clicks, _, store = sessions(ttl=HOUR, on_expire=renew, placement="task")
    with ActorTestDriver(app) as driver:
        driver.post(clicks, key="a", value="home")
        driver.post(clicks, key="b", value="home")
        driver.settle()
        driver.advance(3_700)
        assert driver.items(store) == {"b": "renewed"}


def test_a_message_that_comes_before_the_removal_lets_the_class_actor_act_first():
    app = App("web", broker="kafka://127.0.0.1:1")
    clicks = app.topic("clicks", key_type=str, value_type=str)
    ended = app.topic("ended", key_type=str, value_type=list)

    @app.actor(clicks)
    class Session(Actor[list]):
        state_ttl = HOUR

        @receive
        def click(self, page: str) -> None:
            self.state.append(page)

        def on_expire(self) -> None:
            self.ctx.send(ended, key=self.key, value=self.state)

    with ActorTestDriver(app) as driver:
        driver.send(clicks, key="a", value="home")
        for task in driver._worker.tasks:
            task._processor.sweeper._due_s = 1e9
        driver.advance(3_600)
        driver.send(clicks, key="a", value="shop")
        assert [sent.value for sent in driver.outputs(ended)] == [["home"]]
        assert driver.items(Session) == {"a": ["shop"]}


def test_effects_of_a_hook_that_the_broker_refuses_stop_no_message(caplog):
    def end(ctx, page):
        ctx.send("ended", key=ctx.key, value=page * 1_000)

    app, clicks, ended, store = hooked(end)
    with ActorTestDriver(app) as driver:
        driver._cluster.limit_records("ended", 1_000)
        driver.send(clicks, key="a", value="shop")
        driver.advance(3_700)
        assert "the broker refuses what expired keys led to" in caplog.text
        assert len([record for record in caplog.records if "refuses what expired" in record.message]) <= 4
        driver.send(clicks, key="b", value="home")
        assert driver.items(store) == {"b": "home"}
        driver._cluster.limit_records("ended", None)
        driver.advance(70)
        assert [sent.value for sent in driver.outputs(ended)] == ["shop" * 1_000]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_value_lives_as_long_as_it_says_from_its_write_however_long_the_handler_took(concurrency):
    app = App("web", broker="kafka://127.0.0.1:1")
    clicks = app.topic("clicks", key_type=str, value_type=str)
    store = app.store("sessions", key_type=str, value_type=str, ttl=timedelta(seconds=60))

    @app.actor(clicks, stores=[store], concurrency=concurrency)
    async def click(ctx, page):
        await asyncio.sleep(100)
        store.set(ctx.key, page)

    with ActorTestDriver(app, partitions=1) as driver:
        driver.post(clicks, key="a", value="home")
        driver.advance(101)
        assert driver.get(store, "a") == "home"
        driver.advance(60)
        assert driver.get(store, "a") is None


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("behind", ["message", "timer", "retry"])
def test_what_expired_while_others_were_handled_is_absent(behind, concurrency):
    app = App("web", broker="kafka://127.0.0.1:1")
    clicks = app.topic("clicks", key_type=str, value_type=str)
    store = app.store("sessions", key_type=str, value_type=str, ttl=timedelta(seconds=60))
    late = timedelta(seconds=100)
    policy = OnError(retries=1, first_wait=late, longest_wait=late)
    seen, tries = [], []

    @app.actor(clicks, stores=[store], timers=True, concurrency=concurrency, on_error=policy)
    async def click(ctx, page):
        if page == "set":
            store.set(ctx.key, page)
        elif page == "timer":
            ctx.schedule("message", after=timedelta(seconds=1), name="a")
            ctx.schedule("look", after=timedelta(seconds=1), name="b")
        elif page == "message":
            await asyncio.sleep(100)
        else:
            tries.append(page)
            if behind == "retry" and len(tries) == 1:
                raise ValueError("not now")
            seen.append(store.get(ctx.key))

    with ActorTestDriver(app, partitions=1) as driver:
        for page in ["set", *([behind] if behind != "retry" else []), *(["look"] if behind != "timer" else [])]:
            driver.post(clicks, key="a", value=page)
        driver.advance(300)
    assert seen == [None]


@pytest.mark.parametrize("sets_in_hook", [False, True])
def test_a_state_that_is_set_to_an_equal_one_lives_longer(sets_in_hook):
    app = App("web", broker="kafka://127.0.0.1:1")
    clicks = app.topic("clicks", key_type=str, value_type=str)

    @app.actor(clicks)
    class Session(Actor[list]):
        state_ttl = timedelta(seconds=60)

        @receive
        def beat(self, page: str) -> None:
            if page == "look":
                assert self.state
            else:
                self.state = ["home"]

        async def on_expire(self):
            if sets_in_hook:
                self.state = list(self.state)

    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(clicks, key="a", value="home")
        driver.advance(50)
        driver.send(clicks, key="a", value="home")
        driver.advance(50)
        assert driver.get(Session, "a") == ["home"]
        driver.send(clicks, key="a", value="look")
        driver.advance(30)
        assert driver.get(Session, "a") == (["home"] if sets_in_hook else None)
