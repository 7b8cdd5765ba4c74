"""Queries of actors: declared, bound to arguments, and unable to write."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import pytest

from actors import Actor, App, ConfigurationError, Context, ReadOnlyQueryError, StoreOutsideHandlerError, query, receive
from actors.ports import TopicPartition
from actors.runtime.handlers.query_methods import Query, QueryTarget
from actors.testing import ActorTestDriver
from stores._core.record import Position, encode_metadata
from stores.memory import MemoryStore

POSITION = Position(1, 1, 0, 1, "id")


class Balance(msgspec.Struct):
    """A state."""

    amount: int = 0


def make() -> tuple[App, Any, Any]:
    app = App("queried", broker="kafka://127.0.0.1:1")
    words = app.store("words", key_type=str, value_type=str)

    @app.actor(app.topic("in", key_type=str, value_type=str), stores=[words])
    async def talk(ctx: Context, word: str) -> None:
        words.set(ctx.key, word)

    @app.actor(app.topic("accounts", key_type=str), name="account", timers=True)
    class Account(Actor[Balance]):
        @receive
        async def deposit(self, message: int) -> None:
            self.state.amount += message

        @query
        def balance(self, factor: int = 1) -> int:
            return self.state.amount * factor

        @query(name="steal")
        def take(self) -> None:
            self.state.amount += 1

        @query
        def leave(self) -> None:
            self.forget()

        @query
        def wake(self) -> None:
            self.ctx.schedule(1)

        @query
        def tell(self) -> None:
            self.ctx.tell("account", "bob", 1)

    return app, talk, Account


def ask(app: App, actor: str, name: str, key: str = "ada", *, now_ms: int = 0, **arguments: Any) -> Any:
    definition = app.actors[actor]
    held = {store: MemoryStore() for store in definition.stores}
    content = {
        "ada": b'{"amount":5}' if actor == "account" else b"hello",
        "late": b'{"amount":7}' if actor == "account" else b"bye",
    }
    for store, memory in held.items():
        if store.name in ("words", "account"):
            writes = [(k.encode(), encode_metadata(1, 0, 100 if k == "late" else 0) + v) for k, v in content.items()]
            memory.apply(writes, POSITION)
    before = {store: list(memory.scan()) for store, memory in held.items()}
    asked = QueryTarget(
        actor=actor,
        source=TopicPartition("in", 0),
        partition_count=1,
        key=key,
        raw_key=key.encode(),
        now_ms=now_ms,
        stores=held,
    )
    cls = definition.declared if isinstance(definition.declared, type) else None
    found = definition.queries[name]
    try:
        return asked.answer(found, found.bind(arguments, is_text=False), cls)
    finally:
        assert before == {store: list(memory.scan()) for store, memory in held.items()}


def test_it_sees_what_is_committed_of_its_key() -> None:
    app, talk, _ = make()
    words = app.stores["words"]

    @app.query(talk)
    def word(ctx: Context, default: str = "nothing") -> str:
        return words.get(ctx.key) or default

    assert ask(app, "talk", "word") == "hello"
    assert ask(app, "talk", "word", "nobody") == "nothing"
    assert ask(app, "talk", "word", "nobody", default="silence") == "silence"
    assert [ask(app, "talk", "word", "late", now_ms=now_ms) for now_ms in (99, 100)] == ["bye", "nothing"]
    assert ask(app, "account", "balance", factor=3) == 15
    assert ask(app, "account", "balance", "nobody") == 0
    with pytest.raises(StoreOutsideHandlerError):
        words.get("ada")


@pytest.mark.parametrize("name", ["steal", "leave", "wake", "tell"])
def test_a_method_that_would_change_something_raises(name: str) -> None:
    app, _, _ = make()
    with pytest.raises(ReadOnlyQueryError):
        ask(app, "account", name)


@pytest.mark.parametrize("how", ["set", "delete", "absent", "send", "foreign", "range", "effect", "ask"])
def test_a_function_that_would_change_something_raises(how: str) -> None:
    app, talk, _ = make()
    words = app.stores["words"]

    @app.query(talk)
    def misbehave(ctx: Context) -> object:
        if how == "ask":
            return ctx.ask("talk", "ada", "x").send(None)
        return {
            "set": lambda: words.set(ctx.key, "x"),
            "delete": lambda: words.delete(ctx.key),
            "absent": lambda: words.put_if_absent(ctx.key, "x"),
            "send": lambda: ctx.send("out", key="k", value="v"),
            "foreign": lambda: words.get("late"),
            "range": lambda: list(words.range()),
            "effect": lambda: ctx.effect(misbehave),
        }[how]()

    with pytest.raises(ReadOnlyQueryError):
        ask(app, "talk", "misbehave", "nobody")


def test_arguments_are_of_their_declared_types() -> None:
    def function(_: Context, number: int, flag: bool = False, *, word: str | None = None) -> None: ...

    found = Query.of("q", function, "q")
    assert found.bind({"number": "5", "flag": "true"}, is_text=True) == {"number": 5, "flag": True, "word": None}
    assert found.bind({"number": 5}, is_text=False) == {"number": 5, "flag": False, "word": None}
    for given, is_text in [
        ({}, True),
        ({"number": "x"}, True),
        ({"number": "5"}, False),
        ({"number": 5, "x": 1}, False),
    ]:
        with pytest.raises(msgspec.ValidationError):
            found.bind(given, is_text=is_text)


def test_what_cant_be_a_query_is_refused_when_it_is_declared() -> None:
    async def waits(_: Context) -> None: ...

    def takes_anything(_: Context, *more: int) -> None: ...

    def takes_a_riddle(_: Context, x: Riddle) -> None: ...  # noqa: F821

    app, talk, account = make()
    for function, reason in [(waits, "plain def"), (takes_anything, "no name"), (takes_a_riddle, "annotations")]:
        with pytest.raises(ConfigurationError, match=reason):
            app.query(talk)(function)
    with pytest.raises(ConfigurationError, match="is a class"):
        app.query(account)(lambda ctx: None)
    app.query(talk, name="twice")(lambda ctx: None)
    with pytest.raises(ConfigurationError, match="already"):
        app.query(talk, name="twice")(lambda ctx: None)
    with pytest.raises(ConfigurationError, match="letters"):
        app.query(talk, name="a/b")(lambda ctx: None)


def test_a_subclass_has_its_bases_queries() -> None:
    class Base(Actor[Balance]):
        @query
        def one(self) -> int:
            return 1

        @query
        def two(self) -> int:
            return 2

    class Derived(Base):
        @query
        def two(self) -> int:
            return 22

    assert sorted(Derived.queries) == ["one", "two"]
    assert Derived.queries["two"].function is Derived.two
    assert Base.queries["two"].function is Base.two


class Wide(msgspec.Struct):
    """A state whose older values lack a field."""

    amount: int = 0
    currency: str = "EUR"
    tags: set[str] = msgspec.field(default_factory=set)


def wide(**options: Any) -> tuple[App, type[Actor[Any]]]:
    app = App("wide", broker="kafka://127.0.0.1:1")

    class Account(Actor[Wide]):
        state_version = 2
        state_upgrades: ClassVar[Any] = {1: lambda old: {"amount": old["cents"]}}

        @receive
        async def on(self, message: int) -> None:
            assert self.state.currency == "EUR"
            self.state.amount += message

        @query
        def show(self) -> list[Any]:
            return [self.state.amount, self.state.currency, sorted(self.state.tags)]

        @query
        def same(self) -> None:
            self.state = Wide(5, tags={"b", "a"})

        @query
        def other(self) -> None:
            self.state.tags.add("c")

    return app, app.actor(app.topic("in", key_type=str, value_type=int), name="account", **options)(Account)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"cents":5}',
        b'\x00v\x00\x02{"amount":5}',
        b'\x00v\x00\x02{"amount": 5, "currency": "EUR", "tags": ["b","a"]}',
        b'\x00v\x00\x02{"tags":["a","b"],"amount":5,"later":1}',
    ],
)
def test_a_query_reads_values_of_earlier_versions_and_in_other_bytes(raw: bytes) -> None:
    app, account = wide()
    found = [app.actors["account"].queries[name] for name in ("show", "other", "same")]
    store, held = app.stores["account"], MemoryStore()
    held.apply([(b"ada", encode_metadata(1, 0) + raw)], POSITION)
    asked = QueryTarget("account", TopicPartition("in", 0), 1, "ada", b"ada", 0, {store: held})
    tags = ["a", "b"] if b"tags" in raw else []
    assert asked.answer(found[0], {}, account) == [5, "EUR", tags]
    with pytest.raises(ReadOnlyQueryError, match="it changes the state"):
        asked.answer(found[1], {}, account)
    if tags:
        # The same value, whatever the order in which the set's members come.
        asked.answer(found[2], {}, account)


def test_a_query_of_a_state_whose_bytes_are_never_the_same_reads_it() -> None:
    app, account = wide()
    store, held = app.stores["account"], MemoryStore()
    encode, spaces = store.encode_value, iter(range(1, 100))
    store.encode_value = lambda value: encode(value) + b" " * next(spaces)
    held.apply([(b"ada", encode_metadata(1, 0) + store.encode_value(Wide(7)))], POSITION)
    asked = QueryTarget("account", TopicPartition("in", 0), 1, "ada", b"ada", 0, {store: held})
    queries = app.actors["account"].queries
    assert asked.answer(queries["show"], {}, account) == [7, "EUR", []]
    with pytest.raises(ReadOnlyQueryError, match="it changes the state"):
        asked.answer(queries["other"], {}, account)


def test_a_handler_that_only_reads_a_state_of_an_earlier_version_writes_nothing() -> None:
    app, account = wide()
    topic = app.actors["account"].topic
    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(topic, key="ada", value=5)
        for files in driver._disk.files():
            if files.store == "account":
                files.data[b"ada"] = files.data[b"ada"][:25] + b'{"cents":5}'
        driver.restart(app)
        driver.send(topic, key="ada", value=0)
        assert len(driver.changelog(account)) == 1
        driver.send(topic, key="ada", value=1)
        assert driver.get(account, "ada") == Wide(6)


@pytest.mark.parametrize("raw", [b'{"cents":5}', b'\x00v\x00\x02{"tags":["b","a"],"amount":5}'])
@pytest.mark.parametrize("is_same", [True, False])
def test_compare_and_set_compares_what_get_gives(raw: bytes, is_same: bool) -> None:
    app = App("compared", broker="kafka://127.0.0.1:1")
    upgrades = {1: lambda old: {"amount": old["cents"]}}
    words = app.store("words", value_type=Wide, version=2, upgrades=upgrades)
    topic, done = app.topic("in", key_type=str, value_type=int), []

    @app.actor(topic, stores=[words])
    async def swap(ctx: Context, amount: int) -> None:
        found = words.get(ctx.key)
        if found is not None:
            expected = Wide(found.amount, tags={"a", "b"} if found.tags else set())
            done.append(words.compare_and_set(ctx.key, expected if is_same else Wide(6), Wide(amount)))
        else:
            words.set(ctx.key, Wide(amount))

    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(topic, key="ada", value=5)
        for files in driver._disk.files():
            files.data[b"ada"] = files.data[b"ada"][:25] + raw
        driver.restart(app)
        driver.send(topic, key="ada", value=8)
        assert done == [is_same]
        assert driver.get(words, "ada").amount == (8 if is_same else 5)
