"""A replay of the input leads to the state that the workers came to, and says what the input doesn't tell."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from random import Random
from types import SimpleNamespace

import faust
import msgspec
import pytest

from actors import Actor, ActorsError, App, Context, EffectCall, GivenUp, OnError, UsageError, receive, timer
from actors._core.task.commit import CommitMark
from actors._core.task.topic_ids import TopicIds
from actors.ports import TopicPartition
from actors.replay.replay import DONE, STATE, UNKNOWN, Kept, Replayed, Replayer
from actors.testing import ActorTestDriver

START_MS = 1_760_000_000_000
PARTITIONS = 2


def make_app() -> App:
    return App("replayed", broker="kafka://127.0.0.1:1")


def record(offset: int, value: bytes | None, *, key: bytes | None = b"a", at_ms: int = 0, headers=()) -> object:
    return SimpleNamespace(offset=offset, timestamp=START_MS + at_ms, key=key, value=value, headers=list(headers))


def replay(app: App, actor: object, records: Iterable[object], **options: object) -> list[Replayed]:
    return list(Replayer.of(app, actor).run(0, of_first(records), **{"partition_count": 1, **options}))


def of_first(records: Iterable[object]) -> list[tuple[int, object]]:
    return [(0, record) for record in records]


def states(rows: Iterable[Replayed]) -> dict[tuple[str | None, bytes | None], bytes | None]:
    return {(row.store, row.key): row.value for row in rows if row.kind == STATE}


def unknowns(rows: Iterable[Replayed]) -> list[tuple[bytes | None, int, str]]:
    return [(row.key, row.source_offset, (row.value or b"").decode()) for row in rows if row.kind == UNKNOWN]


def replayed_items(driver: ActorTestDriver, app: App, actor: object, *stores: str) -> dict[str, dict]:
    """Replay what the driver's input holds, and give the state as `driver.items` does."""
    replayer, found = Replayer.of(app, actor), {name: {} for name in stores}
    until_ms = driver._clock.wall_ms()
    for number in range(PARTITIONS):
        log, _ = driver._cluster.fetch(TopicPartition(replayer.topics[0], number), 0, 1 << 30)
        rows = list(
            replayer.run(number, of_first(log), partition_count=PARTITIONS, until_ms=until_ms, stores=stores or None)
        )
        assert unknowns(rows) == []
        assert rows[-1] == Replayed(DONE, None, None, None, len(log))
        for row in rows[:-1]:
            if not row.expires_at_ms or row.expires_at_ms > until_ms:
                store = app.stores[row.store]
                found.setdefault(row.store, {})[store.decode_key(row.key)] = store.decode_value(row.value)
    return found


class Put(faust.Record):
    amount: int


def test_ids_of_messages_are_those_of_the_workers():
    app, topic_id = make_app(), "00000000-0000-0000-0000-000000000007"
    ids = app.store("ids", key_type=str, value_type=str)

    @app.actor(app.topic("in", key_type=str, value_type=str), stores=[ids])
    def note(ctx: Context, value: str) -> None:
        ids.set(ctx.key, ctx.message_id)

    again = TopicIds(topic_id, 3, is_recreated=True)
    for topics, expected in ((TopicIds(topic_id), "in-0-5"), (again, f"in@{again.message_tag}-0-5")):
        metadata = CommitMark(4, 1, "n", topics=topics).encode()
        rows = replay(app, "note", [record(5, b"x")], topic_ids=[topic_id], metadata=[metadata])
        assert [ids.decode_value(value) for value in states(rows).values()] == [expected]


def test_stores_and_repeated_messages():
    app = make_app()
    source = app.topic("in", key_type=str, value_type=Put)
    sums = app.store("sums", key_type=str, value_type=int)
    firsts = app.store("firsts", key_type=str, value_type=int, ttl=timedelta(seconds=30))
    out = app.topic("out", key_type=str, value_type=int)

    @app.actor(source, stores=[sums, firsts], dedupe_by="id")
    async def add(ctx: Context, put: Put) -> None:
        firsts.put_if_absent(ctx.key, put.amount)
        if put.amount == 13:
            sums.delete(ctx.key)
            return
        sums.set(ctx.key, (sums.get(ctx.key) or 0) + put.amount)
        ctx.send(out, key=ctx.key, value=put.amount)

    chance = Random(4)
    with ActorTestDriver(app, partitions=PARTITIONS) as driver:
        for number in range(300):
            amount, key = chance.randrange(20), f"k{chance.randrange(15)}"
            headers = {"id": str(number - (number % 7 == 0)).encode()}
            driver.post(source, key=key, value=Put(amount=amount), headers=headers)
            if not number % 10:
                driver.advance(chance.choice([0.5, 5.0, 20.0]))
        driver.settle()
        expected = {"sums": driver.items(sums), "firsts": driver.items(firsts)}
        assert replayed_items(driver, app, add) == expected
        assert replayed_items(driver, app, add, "add-ids")["add-ids"] == driver.items(app.stores["add-ids"])


class Remind(msgspec.Struct, tag="remind"):
    pass


class Touch(msgspec.Struct, tag="touch"):
    seconds: int


class Told(msgspec.Struct):
    touched: int = 0
    reminded: int = 0
    order: str = ""


def test_timers_by_clock_and_by_stream_time():
    app = make_app()
    source = app.topic("in", key_type=str)

    @app.actor(source, timers=True)
    class Shopper(Actor[Told]):
        @receive
        async def touch(self, message: Touch) -> None:
            self.state.touched += 1
            self.state.order += "t"
            after = timedelta(seconds=message.seconds)
            self.ctx.schedule(Remind(), after=after, name="once")
            self.ctx.schedule(Remind(), after=2 * after, name="stream", stream_time=True)
            if message.seconds == 3:
                self.ctx.schedule(Remind(), every=timedelta(seconds=7), name="often")
            elif message.seconds == 4:
                self.ctx.cancel("often")

        @receive
        async def remind(self, _: Remind) -> None:
            self.state.reminded += 1
            self.state.order += self.ctx.timer[0]

    chance = Random(1)
    with ActorTestDriver(app, partitions=PARTITIONS) as driver:
        for _ in range(80):
            driver.tell(Shopper, f"k{chance.randrange(6)}", Touch(chance.randrange(1, 6)))
            driver.advance(chance.choice([0.3, 1.3, 30.3]))
        expected = driver.items(Shopper)
        assert sum(told.reminded for told in expected.values()) > 80
        assert replayed_items(driver, app, Shopper) == {"Shopper": expected}


def test_a_record_that_timers_by_stream_time_cannot_go_by_is_refused_again():
    app = make_app()
    source = app.topic("in", key_type=str, value_type=int)
    sums = app.store("sums", key_type=str, value_type=int)

    @app.actor(source, stores=[sums], timers=True, on_error="skip")
    async def add(ctx: Context, amount: int) -> None:
        sums.set(ctx.key, (sums.get(ctx.key) or 0) + amount)
        if amount == 1:
            ctx.schedule(1_000, after=timedelta(days=300), stream_time=True)

    with ActorTestDriver(app, partitions=PARTITIONS) as driver:
        for number, at_ms in enumerate((None, 253_370_764_800_000, None)):
            driver.send(source, key="a", value=10**number, timestamp_ms=at_ms)
        assert driver.items(sums) == {"a": 101}
        assert replayed_items(driver, app, add) == {"sums": {"a": 101}}


def test_hooks_of_what_expires():
    app = make_app()
    source = app.topic("in", key_type=str, value_type=int)
    ended = app.store("ended", key_type=str, value_type=int)

    def on_expire(ctx: Context, value: int) -> None:
        ended.set(ctx.key, (ended.get(ctx.key) or 0) + value)

    open_ = app.store("open", key_type=str, value_type=int, ttl=timedelta(seconds=60), on_expire=on_expire)

    @app.actor(source, stores=[open_, ended])
    async def visit(ctx: Context, value: int) -> None:
        open_.set(ctx.key, (open_.get(ctx.key) or 0) + value)

    chance = Random(2)
    with ActorTestDriver(app, partitions=PARTITIONS) as driver:
        for _ in range(100):
            driver.send(source, key=f"k{chance.randrange(8)}", value=chance.randrange(1, 9))
            # never in the seconds between an expiry and the round that removes, when it's a race
            driver.advance(chance.choice([0.3, 150.0]))
        driver.advance(200.0)
        expected = {"open": driver.items(open_), "ended": driver.items(ended)}
        assert expected["open"] == {}
        assert sum(expected["ended"].values()) > 0
        assert {"open": {}} | replayed_items(driver, app, visit) == expected


class Visits(msgspec.Struct):
    now: int = 0
    ended: int = 0


def test_a_class_whose_states_expire():
    app = make_app()
    source = app.topic("in", key_type=str)

    @app.actor(source)
    class Visitor(Actor[Visits]):
        state_ttl = timedelta(seconds=60)

        @receive
        async def touch(self, message: Touch) -> None:
            self.state.now += message.seconds

        async def on_expire(self) -> None:
            self.state = Visits(ended=self.state.ended + self.state.now)

    chance = Random(2)
    with ActorTestDriver(app, partitions=PARTITIONS) as driver:
        for _ in range(150):
            driver.tell(Visitor, f"k{chance.randrange(8)}", Touch(chance.randrange(1, 9)))
            driver.advance(chance.choice([0.3, 21.0]))
        expected = driver.items(Visitor)
        assert sum(visits.ended for visits in expected.values()) > 20
        assert replayed_items(driver, app, Visitor) == {"Visitor": expected}


def test_answers_and_parked_messages():
    app = make_app()
    source = app.topic("in", key_type=str)

    @app.actor(source, on_error=OnError(retries=3, then="park"))
    class Account(Actor[Told]):
        @receive
        async def touch(self, message: Touch) -> int:
            self.state.touched += message.seconds
            if message.seconds == 13:
                raise ValueError("13")
            return self.state.touched

    with ActorTestDriver(app, partitions=PARTITIONS) as driver:
        assert driver.ask(Account, "a", Touch(3)) == 3
        driver.tell(Account, "b", Touch(13))
        driver.tell(Account, "b", Touch(1))
        driver.tell(Account, "a", Touch(2))
        stores = ("Account", "Account-answers")
        expected = {"Account": driver.items(Account), "Account-answers": driver.items(app.stores["Account-answers"])}
        assert expected["Account"] == {"a": Told(touched=5)}
        assert replayed_items(driver, app, Account, *stores) == expected
        assert set(Replayer.of(app, Account).others) == {"Account-answers", "Account-parked"}


def test_a_message_that_asks_is_taken_back_even_if_its_handler_goes_on():
    app = make_app()
    source, other = app.topic("in", key_type=str, value_type=int), app.topic("other", key_type=str, value_type=int)
    sums = app.store("sums", key_type=str, value_type=int)

    @app.actor(other)
    async def answer(ctx: Context, value: int) -> int:
        return value

    @app.actor(source, stores=[sums], concurrency=5)
    async def add(ctx: Context, value: int) -> None:
        sums.set(ctx.key, (sums.get(ctx.key) or 0) + value)
        if value == 7:
            try:
                await ctx.ask(answer, ctx.key, value)
            except Exception:
                sums.set(ctx.key, 0)

    values = [1, 7, 2]
    rows = replay(app, add, [record(offset, b"%d" % value) for offset, value in enumerate(values)])
    assert states(rows) == {("sums", b"a"): b"3"}
    assert unknowns(rows) == [(b"a", 1, "it asks actor answer")]


def test_effects_are_not_called_and_what_they_send_back_is_unknown():
    app = make_app()
    source = app.topic("in", key_type=str, value_type=int)
    sums = app.store("sums", key_type=str, value_type=int)
    called: list[int] = []

    @app.effect()
    async def tell(call: EffectCall, value: int) -> None:
        called.append(value)

    @app.effect()
    async def fetch(call: EffectCall, value: int) -> int:
        called.append(value)
        return value

    @app.actor(source, stores=[sums], effects=[tell, fetch])
    async def add(ctx: Context, value: int) -> None:
        sums.set(ctx.key, (sums.get(ctx.key) or 0) + value)
        ctx.effect(fetch if value == 7 else tell, value)

    rows = replay(app, add, [record(offset, b"%d" % value) for offset, value in enumerate([1, 7])])
    assert called == []
    assert states(rows) == {("sums", b"a"): b"8"}
    assert unknowns(rows) == [(b"a", 1, "what effect fetch sent back isn't in the input")]


def test_what_would_stop_a_partition_is_passed_over():
    app = make_app()
    source = app.topic("in", key_type=str, value_type=int)
    sums = app.store("sums", key_type=str, value_type=int)

    @app.actor(source, stores=[sums])
    async def add(ctx: Context, value: int) -> None:
        sums.set(ctx.key, (sums.get(ctx.key) or 0) + value)
        if value == 7:
            raise ValueError("seven")

    inputs = [record(0, b"1"), record(1, b"7"), record(2, b"x"), record(3, None), record(4, b"1", key=None)]
    rows = replay(app, add, [*inputs, record(9, b"2")])
    assert states(rows) == {("sums", b"a"): b"3"}
    found = unknowns(rows)
    assert [(key, offset) for key, offset, _ in found] == [(b"a", 1), (b"a", 2), (b"a", 3), (None, 4)]
    assert "raised ValueError: seven" in found[0][2]
    assert "doesn't decode" in found[1][2]
    assert rows[-1].source_offset == len(inputs) + 1


def test_a_timer_whose_message_fails_is_passed_over():
    app = make_app()

    @app.actor(app.topic("in", key_type=str), timers=True)
    class Shopper(Actor[Told]):
        @receive
        async def touch(self, message: Touch) -> None:
            self.state.touched += 1
            self.ctx.schedule(Remind(), after=timedelta(seconds=message.seconds))

        @receive
        async def remind(self, _: Remind) -> None:
            raise ValueError("no")

    rows = replay(app, Shopper, [record(n, b'{"type":"touch","seconds":1}', at_ms=5_000 * n) for n in (0, 1)])
    assert states(rows) == {("Shopper", b"a"): b'{"touched":2,"reminded":0,"order":""}'}
    [(key, offset, reason)] = unknowns(rows)
    assert (key, offset) == (b"a", 0)
    assert "raised ValueError: no" in reason


def test_timers_call_their_methods_and_what_effects_tell_them_is_unknown():
    app = make_app()

    @app.effect(on_give_up="failed")
    async def write(call: EffectCall) -> None: ...

    @app.actor(app.topic("in", key_type=str), effects=[write])
    class Shopper(Actor[Told]):
        @receive
        async def touch(self, message: Touch) -> None:
            self.state.touched += 1
            self.ctx.schedule(self.remind, 3, after=timedelta(seconds=message.seconds))
            assert self.ctx.effects() == []
            if message.seconds == 2:
                self.ctx.effect(write)

        @timer
        async def remind(self, count: int) -> None:
            self.state.reminded += count

        async def failed(self, _: GivenUp) -> None: ...

    values = (b'{"type":"touch","seconds":1}', b'{"type":"touch","seconds":2}')
    rows = replay(app, Shopper, [record(n, value, at_ms=5_000 * n) for n, value in enumerate(values)])
    assert states(rows) == {("Shopper", b"a"): b'{"touched":2,"reminded":3,"order":""}'}
    assert unknowns(rows) == [(b"a", 1, "what effect write sent back isn't in the input")]


def test_a_parked_message_of_any_size_is_no_unknown():
    app = make_app()
    source = app.topic("in", key_type=str, value_type=str)

    @app.actor(source, stores=[app.store("sums", key_type=str, value_type=int)], on_error="park")
    async def add(ctx: Context, value: str) -> None:
        raise ValueError

    rows = replay(app, add, [record(0, b"x" * 1_048_000), record(1, b"y", key=b"b")])
    assert unknowns(rows) == []
    assert rows[-1].source_offset == 2


def test_state_that_was_there_before():
    app = make_app()
    source = app.topic("in", key_type=str, value_type=int)
    sums = app.store("sums", key_type=str, value_type=int)

    @app.actor(source, stores=[sums])
    async def add(ctx: Context, value: int) -> None:
        sums.set(ctx.key, (sums.get(ctx.key) or 0) + value)

    kept = [Kept("sums", b"a", b"40", 5, 0), Kept("sums", b"b", b"1", 3, 0)]
    rows = replay(app, add, [record(5, b"1"), record(6, b"2")], starts=[6], kept=kept)
    assert [(row.key, row.value, row.source_offset) for row in rows[:-1]] == [(b"a", b"42", 6), (b"b", b"1", 3)]


def test_a_handler_that_sleeps_takes_no_time_and_one_that_waits_for_ever_is_an_error():
    app = make_app()
    source = app.topic("in", key_type=str, value_type=int)
    sums = app.store("sums", key_type=str, value_type=int)

    @app.actor(source, stores=[sums])
    async def add(ctx: Context, value: int) -> None:
        await asyncio.sleep(3600)
        if value == 7:
            await asyncio.get_running_loop().create_future()
        sums.set(ctx.key, ctx.now_ms)

    rows = replay(app, add, [record(0, b"1", at_ms=12)])
    assert states(rows) == {("sums", b"a"): b"%d" % (START_MS + 12)}
    with pytest.raises(ActorsError, match="offsets in 4 to in 5: a handler of actor add waits for something"):
        replay(app, add, [record(4, b"1"), record(5, b"7")])


def test_an_actor_that_is_not_there():
    with pytest.raises(UsageError, match="'nobody' is no actor of this app"):
        Replayer.of(make_app(), "nobody")


@pytest.mark.parametrize("has_secret", [True, False])
def test_a_command_that_the_workers_refuse_is_refused_where_the_secret_is(has_secret: bool):
    def make(secret: str | None) -> tuple[App, object]:
        app = App("replayed", broker="kafka://127.0.0.1:1", worker_secret=secret)
        source = app.topic("in", key_type=str, value_type=str)
        handled = app.store("handled", key_type=str, value_type=str)

        @app.actor(source, stores=[handled], on_error="park")
        def work(ctx: Context, value: str) -> None:
            if value == "bad":
                raise ValueError(value)
            handled.set(ctx.key, handled.get(ctx.key, "") + value)

        return app, source

    app, source = make("s" * 32)
    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(source, key="a", value="bad")
        forged = b'{"actor":"work","what":"message","command":"drop","id":"*"}'
        driver.send(source, key="a", value="x", headers={"fa-control": forged})
        driver.send(source, key="b", value="bad")
        driver.drop_parked("work", "b")
        for key in ("a", "b"):
            driver.send(source, key=key, value="ok")
        records, _ = driver._cluster.fetch(TopicPartition("in", 0), 0, 1 << 30)
        topic_id, items = driver._cluster.topic("in").topic_id, driver.items(app.stores["handled"])
        assert items == {"b": "ok"}
    other, _ = make("s" * 32 if has_secret else None)
    rows = Replayer.of(other, "work").run(0, of_first(records), partition_count=1, topic_ids=[topic_id])
    store = other.stores["handled"]
    found = {store.decode_key(row.key): store.decode_value(row.value) for row in rows if row.kind == STATE}
    assert found == (items if has_secret else {"a": "ok", "b": "ok"})
