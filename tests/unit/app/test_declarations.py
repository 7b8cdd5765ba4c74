"""Declarations that can't work are refused where they stand, with the line to write instead."""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

import faust
import msgspec
import pytest

from actors import Actor, App, ConfigurationError, Context, HandlerFailedError, OnError, query, receive
from actors._faust.settings.sources import split_options
from actors.declare.options import ActorOptions
from actors.testing import ActorTestDriver


class Order(msgspec.Struct):
    number: int = 0


@dataclass
class Data:
    number: int


class Model(faust.Record):
    number: int


def app_of(**options: Any) -> App:
    return App("declared", broker="kafka://127.0.0.1:1", **options)


async def async_generator(ctx: Context, order: Order):
    yield order


def plain_generator(ctx: Context, order: Order):
    yield order


async def one_argument(order: Order) -> None: ...


async def three_arguments(ctx: Context, order: Order, extra: int) -> None: ...


async def needs_a_keyword(ctx: Context, order: Order, *, extra: int) -> None: ...


class Called:
    async def __call__(self, ctx: Context, order: Order):
        yield order


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (async_generator, "has a `yield`, so calling it runs nothing of it. Write `async def async_generator(ctx: "),
        (plain_generator, "has a `yield`"),
        (functools.partial(async_generator), "has a `yield`"),
        (Called(), "has a `yield`"),
        (one_argument, "2 arguments: too many positional arguments. Write `async def one_argument(ctx: Context, mes"),
        (three_arguments, "missing a required argument: 'extra'. Write `async def three_arguments(ctx: Context, m"),
        (needs_a_keyword, "argument: 'extra'"),
        (42, "can't be called"),
    ],
)
def test_a_handler_that_cannot_be_called_or_would_run_nothing_is_refused(handler: Any, said: str) -> None:
    app = app_of()
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        app.actor(app.topic("in", value_type=Order), name="orders")(handler)
    assert not app.actors


def test_a_wrapped_handler_may_take_more_than_it_is_called_with() -> None:
    app, got = app_of(), []
    topic = app.topic("in", key_type=str, value_type=Order)

    def with_extra(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def call(ctx: Context, order: Order) -> None:
            await function(ctx, order, 5)

        return call

    @app.actor(topic)
    @with_extra
    async def place(ctx: Context, order: Order, extra: int) -> None:
        got.append(extra)

    with ActorTestDriver(app) as driver:
        driver.send(topic, key="a", value=Order())
    assert got == [5]


def test_a_generator_behind_a_plain_function_stops_the_partition() -> None:
    app = app_of()
    topic = app.topic("in", key_type=str, value_type=Order)
    app.actor(topic, name="hidden")(lambda ctx, order: async_generator(ctx, order))
    with ActorTestDriver(app) as driver, pytest.raises(Exception, match="returned a generator, of which nothing has"):
        driver.send(topic, key="a", value=Order())


@pytest.mark.parametrize("how", ["async", "plain", "none", "two"])
def test_methods_of_a_class_are_looked_at_too(how: str) -> None:
    async def async_method(self: Any, message: Order):
        yield 1

    def plain_method(self: Any, message: Order):
        yield 1

    async def none(self: Any) -> None: ...

    async def two(self: Any, message: Order, more: int) -> None: ...

    method: Any = {"async": async_method, "plain": plain_method, "none": none, "two": two}[how]
    said = "`async def .*\\(self, message: Order\\) -> None:`"
    with pytest.raises(ConfigurationError, match=said):
        type("Bad", (Actor,), {"on": receive(Order)(method)})


def test_hooks_effects_queries_and_ids_are_looked_at_too() -> None:
    app = app_of()
    with pytest.raises(ConfigurationError, match=r"store s: on_expire has a `yield`"):
        app.store("s", ttl=timedelta(1), on_expire=async_generator)
    with pytest.raises(ConfigurationError, match=r"store s: on_expire can't be called with 2 arguments"):
        app.store("s", ttl=timedelta(1), on_expire=one_argument)
    with pytest.raises(ConfigurationError, match=r"actor orders: dedupe_by can't be called"):
        app.actor(app.topic("in"), name="orders", dedupe_by=lambda message: "x")(three := lambda ctx, value: None)
    with pytest.raises(ConfigurationError, match=r"effect async_generator: it has a `yield`"):
        app.effect()(async_generator)
    with pytest.raises(ConfigurationError, match=r"write `async def post\(call: EffectCall\) -> None:`"):
        app.effect(name="post")(lambda: None)
    app.actor(app.topic("in"), name="orders")(three)
    with pytest.raises(ConfigurationError, match=r"query plain_generator of actor orders: it has a `yield`"):
        app.query("orders")(plain_generator)
    with pytest.raises(ConfigurationError, match=r"it takes no argument\. Write `def "):
        app.query("orders", name="q")(lambda: 1)
    with pytest.raises(ConfigurationError, match=r"it takes no argument"):

        class Bad(Actor[Order]):
            @query
            def nothing() -> int:  # type: ignore[misc]
                return 1

    with pytest.raises(ConfigurationError, match=r"Bad2.on_expire has a `yield`"):

        class Bad2(Actor[Order]):
            async def on_expire(self):
                yield 1


def test_a_decorator_without_brackets_says_how_it_is_written() -> None:
    app = app_of()
    with pytest.raises(ConfigurationError, match=r"so that one_argument would never be called: write `@app.actor\("):
        app.actor(one_argument)
    with pytest.raises(ConfigurationError, match=r"so that Called would never be called"):
        app.actor(Called)
    with pytest.raises(
        ConfigurationError, match=r"missing a required argument: 'topic'\. Write `@app.actor\(app.topic"
    ):
        app.actor()  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match=r"Write `@app.effect\(\)` above the function"):
        app.effect(one_argument)  # type: ignore[call-arg]


def test_unknown_settings_and_arguments_name_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match=r"no setting 'broker_comit_interval', did you mean broker_commit_int"):
        app_of(broker_comit_interval=1.0)
    with pytest.raises(ConfigurationError, match=r"no setting 'qeueu_records', did you mean queue_records\?"):
        app_of(qeueu_records=1)
    with pytest.raises(ConfigurationError, match=r"no setting 'xyzzy'; there is no setting 'zzz'$"):
        app_of(zzz=1, xyzzy=2)
    app = app_of(table_standby_replicas=1, monitor=None, web_port=1, queries=False)
    with pytest.raises(
        ConfigurationError, match=r"app.actor\(…\): there is no argument 'on_eror', did you mean on_error"
    ):
        app.actor(app.topic("in"), on_eror="skip")  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match=r"no argument 'valuetype', did you mean value_type\?"):
        app.store("x", valuetype=int)  # type: ignore[call-arg]
    with pytest.raises(
        ConfigurationError, match=r"app.effect\(…\): there is no argument 'attempt', did you mean attem"
    ):
        app.effect(attempt=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match=r"app.topic\(…\): there is no argument 'valuetype', did you mean val"):
        app.topic("x", valuetype=int)


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda app: app_of(revoke_timeout=3), r"revoke_timeout=3 has to be a timedelta: write revoke_timeout=timede"),
        (lambda app: app_of(commit_deadline=timedelta(-1)), r"commit_deadline=-1 day, 0:00:00 has to be more than 0"),
        (lambda app: app.store("x", ttl=60), r"store x: ttl=60 has to be a timedelta: write ttl=timedelta\(seconds=60"),
        (lambda app: app.store("x", ttl=timedelta(0)), "ttl=0:00:00 has to be more than 0"),
        (lambda app: app.store("x", ttl="1h"), r"ttl='1h' has to be a timedelta, as timedelta\(seconds=60\)"),
        (lambda app: actor(app, dedupe_by="id", dedupe_ttl=60), r"actor a: dedupe_ttl=60 has to be a timedelta"),
        (lambda app: actor(app, answer_ttl=60.5), r"actor a: answer_ttl=60.5 has to be a timedelta"),
        (lambda app: app.effect(timeout=5)(one_argument), "effect one_argument: timeout=5 has to be a timedelta"),
        (lambda app: OnError(retries=1, first_wait=1), r"first_wait=1.* timedelta"),  # type: ignore[arg-type]
        (lambda app: lives(app), r"store a: ttl=60 has to be a timedelta"),
    ],
)
def test_a_duration_has_to_be_a_timedelta(declare: Callable[[App], Any], said: str) -> None:
    with pytest.raises((ConfigurationError, ValueError), match=said):
        declare(app_of())


def actor(app: App, **options: Any) -> None:
    app.actor(app.topic("in"), name="a", **options)(lambda ctx, value: None)


def lives(app: App) -> None:
    class Short(Actor[Order]):
        state_ttl = 60  # type: ignore[assignment]

        @receive
        async def on(self, message: Order) -> None: ...

    app.actor(app.topic("in"), name="a")(Short)


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        (lambda app: app.topic("one", "two"), "its input has to be one topic, not one, two: write app.topic("),
        (lambda app: app.topic(pattern="o.*"), "its input can't be a pattern ('o.*')"),
        (lambda app: app.topic(), "its input has to be one topic, not none"),
        (lambda app: app.channel(), "its input has to be a topic of app.topic(...), not <"),
        (lambda app: "orders", "its input has to be a topic of app.topic(...), not 'orders'"),
    ],
)
def test_an_input_is_one_topic(topic: Callable[[App], Any], said: str) -> None:
    app = app_of()
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        app.actor(topic(app), name="a")(lambda ctx, value: None)
    with pytest.raises(ConfigurationError, match=re.escape(said.replace("its input", "store x: publish="))):
        app.store("x", publish=topic(app))


@pytest.mark.parametrize("type_", [Order, Data, Model])
def test_a_message_that_is_annotated_needs_a_value_type(type_: Any) -> None:
    async def place(ctx: Context, order: Any) -> None: ...

    place.__annotations__["order"] = type_
    app = app_of()
    said = f"it would be a dict: write app.topic('in', key_type=str, value_type={type_.__name__})"
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        app.actor(app.topic("in"))(place)
    app.actor(app.topic("in", value_type=type_))(place)


def test_a_write_with_a_ttl_that_is_no_timedelta_says_what_to_write() -> None:
    app = app_of()
    topic, store = app.topic("in", key_type=str, value_type=int), app.store("s", expires=True)

    @app.actor(topic, stores=[store])
    async def keep(ctx: Context, value: int) -> None:
        store.set(ctx.key, value, ttl=60)  # type: ignore[arg-type]

    with ActorTestDriver(app) as driver, pytest.raises(HandlerFailedError, match=r"write ttl=timedelta\(seconds=60\)"):
        driver.send(topic, key="a", value=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"commit_max_bytes": "1kb"}, "commit_max_bytes='1kb' can't be used: write a whole number"),
        ({"commit_max_bytes": True}, "commit_max_bytes=True can't be used: write a whole number"),
        ({"create_topics": "no"}, "create_topics='no' can't be used: write True or False"),
        ({"web_key": 5}, "web_key=5 can't be used: write a path"),
        ({"changelogs": ["a"]}, "changelogs=['a'] can't be used: write a mapping of texts"),
        ({"worker_secret": 5}, "worker_secret=… can't be used: write a text, a list of texts, or the Path of a file"),
        ({"queue_records": 0}, "queue_records=0 can't be used: it has to be 1 or more"),
        ({"rocksdb_cache_bytes": -1}, "rocksdb_cache_bytes=-1 can't be used: it has to be 0 or more"),
        ({"max_warmup_replicas": 0}, "max_warmup_replicas=0 can't be used: it has to be 1 or more"),
        ({"missing_offset": "sideways"}, "missing_offset='sideways' can't be used: write earliest or latest"),
        ({"log_format": "jsn"}, "log_format='jsn' can't be used: write text or json"),
        ({"clock_skew_margin": timedelta(0)}, "clock_skew_margin=0:00:00 has to be more than 0"),
        ({"processing_guarantee": "twice"}, "processing_guarantee='twice' can't be used: write exactly_once"),
        ({"datadir": 5}, "datadir=5 can't be used: write a text in quotes"),
    ],
    ids=lambda one: one if isinstance(one, str) else next(iter(one)),
)
def test_an_argument_of_another_type_or_size_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        App("shop", broker="kafka://127.0.0.1:1", **options).conf  # noqa: B018  reads the settings


def test_every_setting_of_an_app_has_a_kind_that_its_default_is_of() -> None:
    split_options({one.name: getattr(ActorOptions(), one.name) for one in fields(ActorOptions)}, ())
