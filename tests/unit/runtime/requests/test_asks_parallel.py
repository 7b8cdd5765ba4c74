"""Handlers that ask each other while others run: circles, lanes, kills, and what waits behind them."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from actors import Actor, AskCycleError, AskFailedError, HandlerFailedError, receive
from actors._core.partitioner import partition_for
from actors.runtime.requests.requests import DEADLINE
from actors.testing import ActorTestDriver
from tests.unit.runtime.requests.test_asks import an_app, asked


class Ring(msgspec.Struct):
    """Ask the first of `keys` with the rest."""

    keys: list[str]


def ring(concurrency: int = 4, **options: Any):
    app = an_app()
    topic = app.topic("ring", key_type=str)

    @app.actor(topic, concurrency=concurrency, **options)
    class Account(Actor[None]):
        @receive
        async def on(self, message: Ring) -> list[str]:
            if not message.keys:
                return [self.key]
            found = await self.ctx.ask(Account, message.keys[0], Ring(message.keys[1:]))
            return [self.key, *found]

    return app, Account


@pytest.mark.parametrize("partitions", [1, 4])
def test_keys_of_one_partition_ask_each_other(partitions):
    app, account = ring()
    with ActorTestDriver(app, partitions=partitions) as driver:
        begin_s = driver.now_s
        keys = [f"k{number}" for number in range(20)]
        assert driver.ask(account, keys[0], Ring(keys[1:])) == keys
        assert driver.now_s - begin_s < 10.0


def test_a_circle_is_an_error_that_shows_it():
    app, account = ring(on_error="skip")
    with ActorTestDriver(app) as driver:
        with pytest.raises(AskFailedError) as caught:
            driver.ask(account, "a", Ring(["b", "a"]))
        assert "AskCycleError" in str(caught.value)
        assert "Account 'a' -> Account 'b' -> Account 'a'" in str(caught.value)
        with pytest.raises(AskFailedError, match="Account 'a' -> Account 'a'"):
            driver.ask(account, "a", Ring(["a"]))


def test_a_circle_can_be_caught_where_it_closes():
    app = an_app()
    topic = app.topic("in", key_type=bytes, value_type=int)

    @app.actor(topic, concurrency=2)
    async def node(ctx, depth) -> str:
        try:
            return await ctx.ask(node, b"\xff" if ctx.key == b"\xfe" else b"\xfe", depth + 1)
        except AskCycleError:
            return f"closed at {depth}"

    with ActorTestDriver(app) as driver:
        # Two keys that look alike aren't the same.
        assert driver.ask(node, b"\xff", 0) == "closed at 1"


def test_questions_that_one_message_asks_at_once_free_one_lane():
    app = an_app()
    inbox, orders = app.topic("inbox", key_type=str, value_type=int), app.topic("orders", key_type=str, value_type=int)
    running = {"now": 0, "most": 0}

    @app.actor(inbox)
    def double(ctx, number) -> int:
        return 2 * number

    @app.actor(orders, concurrency=2)
    async def many(ctx, number):
        if number == 0:
            answers = await asyncio.gather(*(ctx.ask(double, f"d{each}", each) for each in range(5)))
            assert answers == [0, 2, 4, 6, 8]
        running["now"] += 1
        running["most"] = max(running["most"], running["now"])
        await asyncio.sleep(1)
        running["now"] -= 1

    with ActorTestDriver(app, partitions=1) as driver:
        for number in range(6):
            driver.post(orders, key=f"k{number}", value=number)
        driver.settle()
    # The one that asked goes on without waiting for a lane.
    assert running["most"] == 3


def waits_while_others_go_on(**options: Any):
    """`work` asks when its message says so, and writes down what it does; `slow` answers after `seconds`."""
    app = an_app()
    inbox, orders = app.topic("inbox", key_type=str, value_type=str), app.topic("orders", key_type=str, value_type=str)
    done = app.topic("done", key_type=str, value_type=str)
    history = app.store("history", value_type=list)
    log, world = [], {"seconds": 100.0}

    @app.actor(inbox)
    async def slow(ctx, text) -> str:
        await asyncio.sleep(world["seconds"])
        log.append(f"answered {text}")
        return text

    @app.actor(orders, stores=[history], concurrency=2, **options)
    async def work(ctx, text):
        log.append(f"begin {text}")
        if text.startswith("ask"):
            assert await ctx.ask(slow, ctx.key, text, timeout=timedelta(hours=1)) == text
        if text.endswith("fail"):
            raise ValueError(text)
        history.set(ctx.key, [*history.get(ctx.key, []), text])
        ctx.send(done, key=ctx.key, value=text)

    return app, orders, done, history, log, world


def test_a_message_that_waits_holds_up_its_key_and_no_other():
    app, orders, done, history, _, _ = waits_while_others_go_on()
    with ActorTestDriver(app) as driver:
        for key, text in (("x", "ask 1"), ("x", "2"), ("y", "3"), ("y", "4")):
            driver.post(orders, key=key, value=text)
        driver.advance(50, settle=False)
        assert [sent.value for sent in driver.outputs(done)] == ["3", "4"]
        assert driver.items(history) == {"y": ["3", "4"]}
        driver.settle()
        assert [sent.value for sent in driver.outputs(done)] == ["ask 1", "2"]
        assert driver.items(history) == {"x": ["ask 1", "2"], "y": ["3", "4"]}


@pytest.mark.parametrize("keep_disk", [True, False])
def test_a_message_that_waits_survives_its_worker_and_stays_before_the_later_ones_of_its_key(keep_disk):
    app, orders, done, history, log, world = waits_while_others_go_on()
    with ActorTestDriver(app) as driver:
        for key, text in (("x", "ask 1"), ("x", "2"), ("y", "3"), ("z", "ask 4"), ("y", "5")):
            driver.post(orders, key=key, value=text, headers={"h": text.encode()})
        driver.advance(50, settle=False)
        for _ in range(2):
            driver.crash(keep_disk=keep_disk, settle=False)
            driver.advance(50, settle=False)
        world["seconds"] = 0.0
        driver.settle()
        assert driver.items(history) == {"x": ["ask 1", "2"], "y": ["3", "5"], "z": ["ask 4"]}
        assert sorted(sent.value for sent in driver.outputs(done)) == ["2", "3", "5", "ask 1", "ask 4"]
        assert log.index("begin 2") > max(index for index, line in enumerate(log) if line == "begin ask 1")
        assert log.count("answered ask 1") == log.count("answered ask 4") == 1


def test_a_message_that_waited_may_fail():
    app, orders, done, history, _, _ = waits_while_others_go_on(on_error="park")
    with ActorTestDriver(app) as driver:
        for key, text in (("x", "ask, fail"), ("x", "2"), ("y", "3")):
            driver.post(orders, key=key, value=text)
        driver.advance(50, settle=False)
        assert [sent.value for sent in driver.outputs(done)] == ["3"]
        driver.settle()
        assert driver.items(history) == {"y": ["3"]}
        assert len(driver.items(app.stores["work-parked"])) == 2


def test_a_message_that_waited_and_fails_stops_the_partition_also_after_a_restart():
    app, orders, done, _, _, _ = waits_while_others_go_on()
    with ActorTestDriver(app) as driver:
        driver.post(orders, key="x", value="ask, fail")
        driver.post(orders, key="y", value="2")
        with pytest.raises(HandlerFailedError, match="offset 0 key 'x'"):
            driver.settle()
        assert [sent.value for sent in driver.outputs(done)] == ["2"]
        with pytest.raises(HandlerFailedError, match="offset 0 key 'x'"):
            driver.crash()


def test_a_question_that_may_have_asked_already_is_handled_however_late_it_is():
    app = an_app()
    inbox, orders = app.topic("inbox", key_type=str, value_type=int), app.topic("orders", key_type=str, value_type=int)
    given, taken = app.store("given", value_type=int), app.store("taken", value_type=int)

    @app.actor(inbox, stores=[given])
    def give(ctx, amount) -> int:
        given.set(ctx.key, given.get(ctx.key, 0) + amount)
        return amount

    @app.actor(orders, stores=[taken], concurrency=2)
    async def take(ctx, amount) -> int:
        got = await ctx.ask(give, "bank", amount)
        await asyncio.sleep(20)
        taken.set(ctx.key, taken.get(ctx.key, 0) + got)
        return got

    with ActorTestDriver(app) as driver:
        deadline = b"%d" % (driver._clock.wall_ms() + 15_000)
        driver.post(orders, key="a", value=5, headers=asked(b"q", **{DEADLINE: deadline}))
        driver.advance(10, settle=False)
        assert driver.get(given, "bank") == 5
        driver.crash(settle=False)
        driver.advance(60)
        assert (driver.get(given, "bank"), driver.get(taken, "a")) == (5, 5)


def test_the_chain_of_who_waits_goes_with_the_question():
    app, account = ring()
    with ActorTestDriver(app, partitions=4) as driver:
        driver.ask(account, "a", Ring(["b", "c"]))
        chains = [
            json.loads(dict(record.headers)["fa-chain"])
            for log in driver._cluster.topic("ring").partitions
            for record in log.history
            if "fa-chain" in dict(record.headers)
        ]
        a, b = (["Account", partition_for(key, 4), key.decode()] for key in (b"a", b"b"))
        assert sorted(chains, key=len) == [[a], [a, b]]
