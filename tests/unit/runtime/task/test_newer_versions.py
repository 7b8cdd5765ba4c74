"""What a newer program wrote stops an older one's partition, whatever `on_error` says, and is still there after it."""

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from actors import Actor, App, NewerProgramError, NewerVersionError, OnError, receive
from actors._core.keys import make_place
from actors.testing import ActorTestDriver
from tests.unit.web.query_server import KEY, get, served

POLICIES = ["stop", "skip", "park", OnError(then="skip", dead_letters=True), OnError(then="park", retries=3)]


class Old(msgspec.Struct):
    count: int = 0


class New(msgspec.Struct):
    total: int = 0


class Add(msgspec.Struct, tag="add"):
    amount: int


class Take(msgspec.Struct, tag="take"):
    amount: int


def app_of() -> App:
    return App("rolling", broker="kafka://127.0.0.1:1")


def counter(version: int, how: str = "add", **options: Any) -> tuple[App, Any]:
    """An actor whose state has one of two versions."""
    app, kind = app_of(), Old if version == 1 else New
    topic = app.topic("in", key_type=str, value_type=int)

    @app.actor(topic, name="counter", **options)
    class Counter(Actor[kind]):  # type: ignore[valid-type]
        state_version = version
        state_upgrades = {} if version == 1 else {1: lambda old: {"total": old["count"]}}

        @receive
        async def on(self, message: int) -> None:
            if how == "set":
                self.state = kind(message)
            elif how == "forget":
                self.forget()
            elif how == "swallow":
                try:
                    self.state.count += message
                except ValueError:
                    self.ctx.send(topic, key="other", value=0)
                    self.state = Old(message)
            elif how == "wrap":
                try:
                    self.state.count += message
                except ValueError:
                    raise RuntimeError("something else") from None
            elif version == 1:
                self.state.count += message
            else:
                self.state.total += message

    return app, topic


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("how", ["add", "set", "forget", "swallow", "wrap"])
def test_a_newer_state_stops_the_partition_whatever_the_policy(policy: Any, concurrency: int, how: str) -> None:
    options = {"on_error": policy, "concurrency": concurrency}
    newer, topic = counter(2, **options)
    with ActorTestDriver(newer, partitions=1) as driver:
        driver.send(topic, key="a", value=5)
        older, topic = counter(1, how, **options)
        driver.restart(older)
        with pytest.raises(NewerProgramError) as caught:
            driver.send(topic, key="a", value=2)
        text = str(caught.value)
        assert "in[0] offset 1 key 'a'" in text
        assert "a value of version 2, this program knows up to 1" in text
        assert "whatever on_error says" in text
        newer, topic = counter(2, **options)
        driver.restart(newer)
        driver.settle()
        assert driver.items("counter") == {"a": New(7)}, "the message is handled, once, by the newer program"


def store_app(  # noqa: C901  a branch for each way to a value
    version: int | None, how: str = "get", **options: Any
) -> tuple[App, Any, Any]:
    app, kind = app_of(), New if version == 2 else Old
    topic = app.topic("in", key_type=str, value_type=int)
    upgrades = {1: lambda old: {"total": old["count"]}} if version == 2 else None
    held = app.store("held", value_type=kind, version=version, upgrades=upgrades, **options)

    @app.actor(topic, stores=[held], name="counter", on_error="skip")
    async def count(ctx: Any, message: int) -> None:
        if version == 2:
            held.set(ctx.key, New(message))
        elif how == "get":
            held.get(ctx.key)
        elif how == "set":
            held.set(ctx.key, Old(message))
        elif how == "delete":
            held.delete(ctx.key)
        elif how == "put_if_absent":
            held.put_if_absent(ctx.key, Old(message))
        elif how == "compare_and_set":
            held.compare_and_set(ctx.key, Old(1), Old(message))
        elif how == "items":
            list(held.items())
        elif how == "swallowed":
            try:
                held.get(ctx.key)
            except ValueError:
                held.set("b", Old(message))

    return app, topic, held


@pytest.mark.parametrize(
    ("version", "how"),
    [(1, how) for how in ("get", "set", "delete", "put_if_absent", "compare_and_set", "items", "swallowed")]
    + [(None, how) for how in ("get", "put_if_absent", "compare_and_set", "items", "swallowed")],
)
def test_a_newer_value_of_a_functions_store_stops_it_too(version: int | None, how: str) -> None:
    newer, topic, _ = store_app(2)
    with ActorTestDriver(newer, partitions=1) as driver:
        driver.send(topic, key="a", value=5)
        older, topic, _ = store_app(version, how)
        driver.restart(older)
        with pytest.raises(NewerProgramError, match="store held: a value of version 2"):
            driver.send(topic, key="a", value=2)
        newer, topic, held = store_app(2)
        driver.restart(newer)
        assert driver.items(held) == {"a": New(2)}


def test_an_expired_newer_value_is_not_removed_behind_a_hook_that_cannot_read_it() -> None:
    newer, topic, _ = store_app(2, ttl=timedelta(seconds=60), on_expire=lambda ctx, value: None)
    with ActorTestDriver(newer, partitions=1) as driver:
        driver.send(topic, key="a", value=5)
        older, _, _ = store_app(1, "get", ttl=timedelta(seconds=60), on_expire=lambda ctx, value: None)
        driver.restart(older)
        with pytest.raises(NewerProgramError, match=r"key 'a'.*store held: a value of version 2"):
            driver.advance(120)


def teller(*types: Any, by_header: bool = False, declared: Any = None, **options: Any) -> tuple[App, Any]:
    app = app_of()
    topic = app.topic("in", key_type=str, value_type=declared)

    class Tell(Actor[Old]):
        @receive
        async def add(self, message: Add) -> None:
            self.state.count += message.amount

        if by_header:

            @receive
            async def number(self, message: int) -> None: ...

    class TellMore(Tell):
        @receive
        async def take(self, message: Take) -> None:
            self.state.count -= message.amount

    app.actor(topic, name="teller", **options)(TellMore if Take in types else Tell)
    return app, topic


@pytest.mark.parametrize("policy", ["stop", "skip"])
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("by_header", [False, True])
def test_a_message_of_an_unknown_type_stops_the_partition(policy: str, concurrency: int, by_header: bool) -> None:
    options: Any = {"on_error": policy, "concurrency": concurrency, "by_header": by_header}
    older, topic = teller(Add, **options)
    with ActorTestDriver(older, partitions=1) as driver:
        driver.tell("teller", "a", Add(5))
        newer, topic = teller(Add, Take, **options)
        headers = [("fa-type", b"Take")] if by_header else []
        with pytest.raises(NewerProgramError) as caught:
            driver.send(topic, key="a", value=b'{"type":"take","amount":2}', headers=headers)
        assert "take" in str(caught.value).lower()
        driver.restart(newer)
        driver.settle()
        assert driver.items("teller") == {"a": Old(3)}


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("by_header", [False, True])
def test_a_message_of_an_unknown_type_is_parked_where_the_actor_parks(
    concurrency: int, by_header: bool, caplog: pytest.LogCaptureFixture
) -> None:
    options: Any = {
        "on_error": OnError(then="park", retries=3),
        "concurrency": concurrency,
        "by_header": by_header,
    }
    older, topic = teller(Add, **options)
    with ActorTestDriver(older, partitions=1) as driver:
        driver.tell("teller", "a", Add(5))
        headers = [("fa-type", b"Take")] if by_header else []
        driver.send(topic, key="a", value=b'{"type":"take","amount":2}', headers=headers)
        driver.tell("teller", "b", Add(7))
        driver.tell("teller", "a", Add(1))
        (parked, waiting) = driver.parked("teller")
        assert (parked.attempts, waiting.attempts) == (1, 0), "it isn't tried again: the program stays the same"
        assert "deploy the program that knows the type" in caplog.text
        driver.retry_parked("teller", "a")
        assert driver.parked("teller")[0].attempts == 2, "an older program that is told to retry it keeps it"
        assert driver.items("teller") == {"a": Old(5), "b": Old(7)}
        newer, topic = teller(Add, Take, **options)
        driver.restart(newer)
        driver.retry_parked("teller", "a")
        assert driver.items("teller") == {"a": Old(4), "b": Old(7)}
        assert driver.parked("teller") == []


@pytest.mark.parametrize("raw", [b"nonsense", b'{"amount":1}', b'{"type":"add","amount":"x"}', b'{"type":null}', b"[]"])
def test_a_message_that_is_no_message_goes_the_way_of_the_policy(raw: bytes) -> None:
    app, topic = teller(Add, Take, on_error="skip")
    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(topic, key="a", value=raw)
        driver.tell("teller", "a", Add(5))
        assert driver.items("teller") == {"a": Old(5)}


def test_a_function_actors_union_says_the_same() -> None:
    app = app_of()
    topic = app.topic("in", key_type=str, value_type=Add)

    @app.actor(topic, on_error="skip")
    async def plain(ctx: Any, message: Add) -> None: ...

    untyped = app.topic("in", key_type=str)
    with ActorTestDriver(app, partitions=1) as driver, pytest.raises(NewerProgramError, match=r"'take'.*add"):
        driver.send(untyped, key="a", value=b'{"type":"take","amount":2}')


class Tick(msgspec.Struct, tag="tick"):
    pass


def sleeper(is_newer: bool, calls: list[str], **options: Any) -> tuple[App, Any]:
    """An actor whose newer program sets a timer and records an effect that the older one doesn't know."""
    app = app_of()
    topic = app.topic("in", key_type=str)

    @app.effect(attempts=2)
    async def known(call: Any) -> None: ...

    @app.effect(attempts=2)
    async def unknown(call: Any) -> None:
        calls.append(call.idempotency_key)

    class Sleeper(Actor[Old]):
        @receive
        async def add(self, message: Add) -> None:
            if is_newer and message.amount == 1:
                self.ctx.schedule(Tick(), after=timedelta(minutes=1), name="t")
            elif is_newer:
                self.ctx.effect(unknown)
            self.state.count += 1

    class Newer(Sleeper):
        @receive
        async def tick(self, message: Tick) -> None:
            self.state.count += 100

    effects = [known, unknown] if is_newer else [known]
    app.actor(topic, name="sleeper", timers=True, effects=effects, **options)(Newer if is_newer else Sleeper)
    return app, topic


@pytest.mark.parametrize("policy", ["stop", "skip", "park"])
def test_a_timer_whose_message_only_the_newer_program_knows_waits_for_it(policy: str) -> None:
    newer, _ = sleeper(True, [], on_error=policy)
    with ActorTestDriver(newer, partitions=1) as driver:
        driver.tell("sleeper", "a", Add(1))
        older, _ = sleeper(False, [], on_error=policy)
        driver.restart(older)
        if policy == "park":
            driver.advance(90)
            assert driver.items("sleeper") == {"a": Old(1)}
        else:
            with pytest.raises(NewerProgramError, match=r"unknown type 'tick'"):
                driver.advance(90)
        driver.restart(sleeper(True, [], on_error=policy)[0])
        driver.settle()
        if policy == "park":
            driver.retry_parked("sleeper", "a")
        assert driver.items("sleeper") == {"a": Old(101)}


def test_an_effect_that_only_the_newer_program_knows_is_called_when_that_is_back() -> None:
    calls: list[str] = []
    fails = [True]

    async def fake(call: Any) -> None:
        if fails:
            raise OSError("not yet")
        calls.append(call.idempotency_key)

    newer, _ = sleeper(True, calls)
    unknown = newer.actors["sleeper"].effect_functions["unknown"]
    with ActorTestDriver(newer, partitions=1, effects={unknown: fake}) as driver:
        driver.tell("sleeper", "a", Add(2))
        driver.restart(sleeper(False, calls)[0])
        driver.advance(600)
        fails.clear()
        driver.restart(sleeper(True, calls)[0])
        driver.advance(600)
        (call,) = calls
        assert call.startswith("in-0-0-")


@pytest.mark.parametrize("extra", ["timers", "parked"])
def test_an_entry_of_a_newer_release_is_neither_acted_on_nor_removed(extra: str) -> None:
    app, topic = sleeper(True, [], on_error="park")
    app.topic("bank-control")
    raw = b'{"v":2,"clock":"lunar"}'
    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(topic, key="a", value=b"nonsense")
        driver.tell("sleeper", "b", Add(1))
        store = app.stores[f"sleeper-{extra}"]
        place = make_place(b"p", b"a", 0) if extra == "parked" else b"n" + b"\0\0\0\1b" + b"t"
        for files in driver._disk.files():
            if files.store == store.name:
                assert place in files.data
                files.data[place] = files.data[place][:25] + raw
        driver.restart(app)
        if extra == "parked":
            told = b'{"actor":"sleeper","what":"message","command":"retry"}'
            driver.post(topic, key="a", value=None, headers=[("fa-control", told)])
        with pytest.raises(NewerVersionError, match="can't read, run the one that wrote it"):
            driver.advance(90)
        assert driver.items(store)[place] == raw


async def test_a_query_says_that_a_newer_program_wrote_the_value() -> None:
    async with served() as there:

        def refuse(raw: bytes) -> Any:
            raise NewerVersionError("store words: a value of version 2")

        there.app.stores["words"].decode_value = refuse
        connection = await there.connect()
        for _ in range(2):
            # The second one is answered while it is read.
            connection.send(get(KEY))
            status, _, body = await asyncio.wait_for(connection.answer(), 30)
            assert status == 503
            assert b"newer-version" in body
            assert b"a value of version 2" in body
        await connection.close()


def swallowing(version: int, policy: Any) -> tuple[App, Any, Any]:
    """An older program that goes on without the value, or fails, or sets a timer that fails."""
    app, kind = app_of(), New if version == 2 else Old
    topic = app.topic("in", key_type=str, value_type=int)
    upgrades = {1: lambda old: {"total": old["count"]}} if version == 2 else None
    held = app.store("held", key_type=str, value_type=kind, version=version, upgrades=upgrades)

    @app.actor(topic, stores=[held], name="counter", on_error=policy, timers=True)
    async def count(ctx: Any, message: int) -> None:
        if version == 2:
            held.set(ctx.key, New((held.get(ctx.key) or New()).total + max(0, message)))
            return
        await asyncio.sleep(0.01)
        if message < 0 and (message == -1 or ctx.timer is not None):
            raise RuntimeError("an ordinary failure")
        with contextlib.suppress(ValueError):
            held.get(ctx.key)
        if message == -2:
            ctx.schedule(-1, after=timedelta(0))

    return app, topic, held


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("then", [-1, -2, None], ids=["fails", "timer fails", "no key"])
def test_a_later_failure_does_not_commit_what_a_handler_made_of_a_swallowed_error(policy: Any, then: int) -> None:
    app, topic, _ = swallowing(2, policy)
    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(topic, key="a", value=5)
        app, topic, _ = swallowing(1, policy)
        driver.restart(app)
        driver.post(topic, key="a", value=7)
        driver.post(topic, key="b" if then else None, value=then)
        with pytest.raises(NewerProgramError, match=r"in\[0\] offset 1 key 'a'"):
            driver.advance(10)
        app, topic, held = swallowing(2, "skip")
        driver.restart(app)
        driver.settle()
        assert driver.get(held, "a") == New(12)
