"""References: a handler at a key, bound to the message, the app or the test driver that is there."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from actors import Actor, App, AskTimeoutError, ConfigurationError, Context, UsageError, query, receive
from actors.client import StateClient
from actors.testing import ActorTestDriver


class Add(msgspec.Struct, tag="add"):
    count: int


class Look(msgspec.Struct, tag="look"):
    pass


class Pass(msgspec.Struct, tag="pass"):
    to: str
    count: int


class Later(msgspec.Struct, tag="later"):
    to: str


class Total(msgspec.Struct):
    count: int = 0


def a_bank(id: str = "refs", **options: Any):
    app = App(id, broker="kafka://127.0.0.1:9092")

    @app.actor(app.topic("totals", key_type=str), timers=True, concurrency=4, **options)
    class Counter(Actor[Total, str]):
        @receive
        async def add(self, message: Add) -> int:
            self.state.count += message.count
            return self.state.count

        @receive
        def look(self, message: Look) -> Total:
            return self.state

        @receive(Pass)
        async def hand(self, message: Pass) -> int:
            Counter.at(message.to).add.tell(Add(1))
            return await Counter.at(message.to).add(Add(message.count))

        @receive
        async def later(self, message: Later) -> None:
            name = Counter.at(message.to).add.schedule(Add(100), after=timedelta(seconds=10), name="tick")
            assert name == "tick"

        @query(name="more-than")
        def more(self, least: int, *, than: Total | None = None) -> Total | None:
            return Total(self.state.count) if self.state.count > (least if than is None else than.count) else None

    return app, Counter


def test_a_call_asks_tell_sends_and_a_query_reads():
    app, counter = a_bank()
    with ActorTestDriver(app) as driver:
        ada = counter.at("ada")
        assert driver.run(ada.add(Add(2))) == 2
        driver.run(ada.add.tell(Add(3)))
        assert driver.run(ada.look(Look())) == Total(5)
        assert driver.query(ada.more, 4) == Total(5)
        assert driver.query(ada.more, least=1, than=Total(5)) is None


def test_in_a_handler_a_reference_is_a_part_of_its_message():
    app, counter = a_bank()
    with ActorTestDriver(app) as driver:
        assert driver.run(counter.at("ada").hand(Pass("bob", 5))) == 5
        # What is told is sent with the commit, after the answer of what was asked.
        assert driver.get(counter, "bob") == Total(6)


def test_a_handler_without_a_result_is_asked_until_its_commit():
    app, counter = a_bank()
    with ActorTestDriver(app) as driver:
        assert driver.run(counter.at("ada").later(Later("ada"))) is None
        driver.advance(11)
        assert driver.get(counter, "ada") == Total(100)


def test_a_timer_is_of_the_key_that_is_handled():
    app, counter = a_bank(on_error="skip")
    with ActorTestDriver(app) as driver:
        with pytest.raises(Exception, match=r"Counter.at\('bob'\).add.schedule\(\): a timer is a part of its key's"):
            driver.run(counter.at("ada").later(Later("bob")))
        with pytest.raises(UsageError, match="no message of that key"):
            counter.at("ada").add.schedule(Add(1), after=timedelta(seconds=1))


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_message_of_another_method_is_refused(is_asked: bool):
    app, counter = a_bank()
    add: Any = counter.at("ada").add
    with ActorTestDriver(app) as driver, pytest.raises(UsageError, match=r"Counter.at.'ada'..add: .* take Look"):
        driver.run(add(Look()) if is_asked else add.tell(Look()))


def test_a_handler_without_a_key_says_that_one_is_missing():
    app, counter = a_bank()
    with ActorTestDriver(app) as driver:
        for call in (counter.add, counter.add.tell, counter.look, counter.hand.schedule):
            with pytest.raises(UsageError, match=r"without a key: say which one, as Counter\.at\(KEY\)\."):
                call(Add(1))
        with pytest.raises(UsageError, match=r"name the actor, its query and the key, as query\(Account\.at"):
            driver.query(counter.more, 4)
        assert driver.query(counter, counter.more, "ada", least=-1) == Total(0)
        # With an object it is the method, as always.
        assert counter.look(SimpleNamespace(state=5), Look()) == 5


def test_a_class_is_no_message():
    app, counter = a_bank()
    with ActorTestDriver(app) as driver:
        with pytest.raises(UsageError, match=r"Counter\.at\('ada'\)\.add: Add is a class: send an object of it, Add\("):
            driver.run(counter.at("ada").add(Add))
        with pytest.raises(UsageError, match="Add is a class"):
            counter.at("ada").add.tell(Add)


async def test_a_client_of_the_state_refuses_a_query_without_a_key():
    _, counter = a_bank()
    async with StateClient("http://127.0.0.1:1") as state:
        with pytest.raises(UsageError, match=r"or a reference, as Account\.at\(KEY\)"):
            await state.ask(counter.more, 4)


def test_only_handlers_and_queries_have_references():
    _, counter = a_bank()
    for name in ("state", "keep", "nothing"):
        with pytest.raises(AttributeError, match=f"Counter.at..ada...{name}: only methods with @receive or @query"):
            getattr(counter.at("ada"), name)


def test_a_function_actor_has_references_of_its_own():
    app, answered = App("refs", broker="kafka://127.0.0.1:9092"), []

    @app.actor(app.topic("orders", key_type=str, value_type=int))
    def take(ctx: Context, count: int) -> str:
        return f"{count} of {ctx.key}"

    @app.actor(app.topic("asks", key_type=str, value_type=int), concurrency=2, answer_ttl=timedelta(hours=1))
    async def ask(ctx: Context, count: int) -> None:
        answered.append(await take.at("bob")(count))

    with ActorTestDriver(app) as driver:
        assert driver.run(take.at("ada")(3)) == "3 of ada"
        assert driver.run(ask.at("ada")(4)) is None
    assert answered == ["4 of bob"]


def test_an_actor_that_answers_nothing_is_not_asked_without_a_place_for_answers():
    app = App("refs", broker="kafka://127.0.0.1:9092")

    @app.actor(app.topic("orders", key_type=str, value_type=int))
    async def take(ctx: Context, count: int) -> None: ...

    @app.actor(app.topic("others", key_type=str, value_type=int))
    async def other(ctx: Context, count: int) -> int:
        return count

    with ActorTestDriver(app) as driver, pytest.raises(UsageError, match=r"take gives no answer to int: .*answer_ttl="):
        driver.run(take.at("ada")(1))


async def test_an_actor_of_no_app_is_named():
    class Alone(Actor[None]):
        @receive
        async def add(self, message: Add) -> int:
            return 1

    with pytest.raises(UsageError, match="Alone is no actor of an app: declare it"):
        await Alone.at("ada").add(Add(1))


def test_an_actor_of_another_app_is_refused_where_it_is_used():
    app, other = App("one", broker="kafka://127.0.0.1:9092"), a_bank("two")[1]

    @app.actor(app.topic("orders", key_type=str, value_type=int), on_error="skip")
    async def take(ctx: Context, count: int) -> int:
        other.at("ada").add.tell(Add(1))
        return 1

    with ActorTestDriver(app) as driver:
        with pytest.raises(Exception, match="'Counter' is no actor of this app, which has: take"):
            driver.run(take.at("ada")(1))
        with pytest.raises(UsageError, match="'Counter' is no actor of this app"):
            driver.run(other.at("ada").add(Add(1)))


async def test_one_of_several_apps_is_not_guessed():
    app, counter = a_bank("one")
    other = App("two", broker="kafka://127.0.0.1:9092")
    other.actor(other.topic("totals", key_type=str))(counter)
    with pytest.raises(UsageError, match="Counter is an actor of the apps one and two: use ask"):
        await counter.at("ada").add(Add(1))
    with ActorTestDriver(app) as driver:
        assert driver.run(counter.at("ada").add(Add(1))) == 1


def test_the_time_to_wait_is_the_references():
    app = App("refs", broker="kafka://127.0.0.1:9092")

    @app.actor(app.topic("orders", key_type=str, value_type=int))
    async def take(ctx: Context, count: int) -> int:
        ctx.answer_later()
        return count

    with ActorTestDriver(app) as driver:
        with pytest.raises(AskTimeoutError, match="within 2 s"):
            driver.run(take.at("ada", timeout=timedelta(seconds=2))(1))
        assert driver.now_s < 5


def test_keys_that_differ_between_class_and_topic_are_refused():
    app = App("refs", broker="kafka://127.0.0.1:9092")

    class Counter(Actor[Total, int]):
        @receive
        async def add(self, message: Add) -> int:
            return 1

    with pytest.raises(ConfigurationError, match=r"actor Counter: keys are int in Counter.* key_type=str of topic tot"):
        app.actor(app.topic("totals", key_type=str))(Counter)


async def test_a_client_of_the_state_sends_a_query_by_its_reference(monkeypatch):
    _, counter = a_bank()
    requests, answers = [], [{"count": 5}, None, {"count": "many"}]

    async def answer(self: StateClient, method: str, path: str, **options: Any) -> Any:
        requests.append((method, path, options["body"]))
        return True, {"value": answers.pop(0)}

    monkeypatch.setattr(StateClient, "_ask", answer)
    client = StateClient("http://127.0.0.1:1")
    assert await client.ask(counter.at("ada").more, 4, than=Total(1)) == Total(5)
    assert await client.ask(counter.at("ada").more, 4) is None
    assert requests == [
        ("POST", "/actors/Counter/_ask/more-than/%22ada%22?encoding=json", {"least": 4, "than": {"count": 1}}),
        ("POST", "/actors/Counter/_ask/more-than/%22ada%22?encoding=json", {"least": 4}),
    ]
    with pytest.raises(msgspec.ValidationError, match="Expected `int`"):
        await client.ask(counter.at("ada").more, 4)
    await client.close()
