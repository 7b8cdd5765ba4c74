"""`App`: a `faust.App` that has actors and stores beside agents and tables."""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from actors._core.aggregates import Aggregate
from actors._core.task.policy import Misplaced, OnError, Then
from actors._faust.faust_app import FaustApp
from actors._faust.setup import Setup, inbox_of
from actors._faust.tracing import trace_headers
from actors._faust.views import View, view_of
from actors._kafka.requests import KafkaRequests
from actors.declare.arguments import check_arguments, check_bare, check_span, single_topic
from actors.declare.calendar import Crons
from actors.declare.declared import (
    Declaration,
    Wraps,
    as_coroutine,
    check_expiry,
    check_options,
    check_value_type,
    least_idle,
    takes_tombstones,
)
from actors.declare.definition import ActorDefinition, Asking, check_disjoint, check_name, name_store
from actors.declare.host import changelog_topic
from actors.declare.names import check_app_id, dead_letter_topic
from actors.declare.options import milliseconds
from actors.declare.publishing import claim_target
from actors.declare.streams.joins import Joins
from actors.declare.streams.repartition import By, Repartition, forwarder, refuse_own_input
from actors.declare.streams.rows import RowStores
from actors.declare.streams.tables import Tables, inputs_of, owned
from actors.declare.streams.windows import Late, WindowStores, timed
from actors.declare.values.codecs import Format, declared_type, resolve
from actors.declare.values.decoder import Decoder
from actors.declare.values.schemas import key_codec
from actors.declare.values.stored import binder, own_store, share_keys, state_store, store_keys, stored_values, use_keys
from actors.declare.values.versions import Upgrades
from actors.errors import ConfigurationError, UsageError
from actors.ports import ActorReply, ActorRequest
from actors.runtime.handlers.actor import handler_of
from actors.runtime.handlers.callables import name_of
from actors.runtime.handlers.dedupe import Identify, by_header, deduplicated
from actors.runtime.handlers.effect import Effect, Repeat
from actors.runtime.handlers.methods import Methods, add_timer, caller, has_timers
from actors.runtime.message.context import DEFAULT_ASK_TIMEOUT, Context, is_handling
from actors.runtime.message.publishing import PublishedStore
from actors.runtime.message.store import Placement, Store
from actors.runtime.message.unresolved import resolved
from actors.runtime.requests.references import Answer, Declare, P, claim
from actors.runtime.requests.replies import ReplyTypes
from actors.runtime.requests.requests import EncodedRequest, carry, deadline_header
from actors.runtime.rows.stores import RowStore
from actors.runtime.spec import HandlingOptions, shared
from actors.runtime.threads import in_threads
from actors.runtime.windows.late import windowed
from actors.runtime.windows.store import WindowStore

F = TypeVar("F", bound=Callable[..., Any])
ANSWER_TTL = timedelta(days=1)


class App(Crons, Wraps, Joins, Tables, WindowStores, RowStores, FaustApp):
    """A Faust app with actors.

    Takes Faust's settings and those of `ActorOptions`.

    Examples:
        >>> app = App("shop", broker="kafka://127.0.0.1:9092")
        >>> app.topic("orders", key_type=str, value_type=dict).get_topic_name()
        'orders'
    """

    def __init__(self, id: str, **options: Any) -> None:
        check_app_id(id)
        self.made_topics: dict[str, int] = {}
        """Topics, by name with their partitions, that a worker makes when they are missing."""
        self.first_messages: dict[str, tuple[Any, Any]] = {}
        self.wraps: list[Callable[[Context], Any]] = []
        self.repartitions: dict[str, Repartition] = {}
        self._asks: KafkaRequests | None = None
        super().__init__(id, **options)

    @check_arguments
    def store(
        self,
        name: str,
        *,
        key_type: Any = str,
        value_type: Any = None,
        key_serializer: str | None = None,
        value_serializer: str | None = None,
        format: Format | None = None,
        ttl: timedelta | None = None,
        expires: bool = False,
        on_expire: Callable[[Context, Any], Any] | None = None,
        placement: Placement = "key",
        version: int | None = None,
        upgrades: Upgrades | None = None,
        aggregate: Aggregate[Any] | None = None,
        publish: Any = None,
        renamed_from: str | None = None,
    ) -> Store[Any, Any]:
        """Declare per-key state, kept in RocksDB and in the compacted topic `{app id}--{name}-changelog`.

        Args:
            name: letters, digits, `.`, `_` and `-`; unique among the app's stores.
            key_type: what keys are; normally the input's `key_type`, so that the bytes are the same.
            value_type: `faust.Record`, `msgspec.Struct`, dataclass, `bytes`, `str`; None means any JSON.
            key_serializer: a codec of Faust's; follows from the type when left out.
            value_serializer: likewise.
            format: how values become bytes, in the place of `value_serializer`: one of `actors.formats`, or your own.
            ttl: how long a value is there after its write. Expired keys read as absent at once, and are removed later.
            expires: writes may say a `ttl` of their own, also without one for all.
            on_expire: called as `(ctx, value)` when an expired key is removed, once for each; may write and send. It is
                called some time after the key expired, and again later if it raises.
            placement: "key" keeps each key in its partition of the actor's input, "task" lets a handler use any key.
            version: of `value_type`, from 1 on, for one that changes in ways that older values don't fit.
            upgrades: by earlier version, a function that turns a value of it, plain JSON data, into one of the next.
            aggregate: one of `actors.aggregates`, for `add`; values are its results.
            publish: a topic of `app.topic(...)` for readers: it gets what each commit changes, as it declares keys and
                values, in the same transaction.
            renamed_from: the name that the store had before: its changelog, and so its state, are those of that name.

        Raises:
            ConfigurationError: the name can't be used.
        """
        name_store(self, name, renamed_from)
        check_expiry(name, on_expire, ttl, expires)
        keys, self.key_types[name] = store_keys(self, key_type, key_serializer), key_type
        options: dict[str, Any] = {"version": version, "upgrades": upgrades, "aggregate": aggregate}
        options["bind"] = binder(self, changelog_topic(self, name), format)
        value_type = declared_type(f"store {name}", value_type, format)
        values = stored_values(f"store {name}", value_type, value_serializer, **options)
        self.value_codecs[name], self.value_types[name] = values.codec, values.type
        value = values.codec
        make: Callable[..., Store[Any, Any]] = Store
        if publish is not None:
            claim_target(name, publish, placement)
            make = functools.partial(PublishedStore, publish=publish, codecs=lambda: (keys(), value))
        self.stores[name] = make(
            name,
            encode_key=lambda key: keys().encode(key),
            decode_key=lambda raw: keys().decode(raw),
            encode_value=value.encode,
            decode_value=value.decode,
            ttl_ms=None if ttl is None else milliseconds(ttl),
            expires=expires,
            on_expire=on_expire,
            placement=placement,
            refuse_newer=values.refuse_newer,
            aggregate=aggregate,
        )
        return use_keys(self.stores[name], keys)

    @check_arguments
    def actor(
        self,
        topic: Any,
        *more_topics: Any,
        stores: Sequence[Store[Any, Any] | WindowStore[Any, Any] | RowStore] = (),
        name: str | None = None,
        dedupe_by: str | Identify | None = None,
        dedupe_ttl: timedelta | None = None,
        timers: bool = False,
        effects: Sequence[Effect] = (),
        on_error: OnError | Then = "stop",
        concurrency: int = 1,
        threads: bool = False,
        answer_ttl: timedelta | None = None,
        publish: Any = None,
        misplaced: Misplaced = "stop",
        tombstones: bool = False,
        max_task_idle: timedelta = timedelta(0),
        close_when_idle: timedelta | None = None,
        by: By | Mapping[Any, By] | None = None,
        late: Late = "drop",
        order: Literal["time"] | None = None,
    ) -> Declare:
        """Make a function or an `Actor` class the actor of a topic, or of several.

        A function is called with `(ctx, value)`; of a class, the method that takes the message's type. Its state has a
        store with the actor's name. `declared.at(key)` is a typed reference.

        Args:
            topic: a topic of `app.topic(...)`, the input of no other actor.
            more_topics: further inputs, with the same keys and partitions: see "Several inputs" in the reference.
            stores: the stores and tables that this actor owns; a table's topic is one of its inputs.
            name: the actor's name in logs, commands and the leader registry; the function's by default.
            dedupe_by: the name of a header, or a function of `(ctx, value)`, that tells repeats of a message, or None.
            dedupe_ttl: how long an id is remembered; for ever when left out.
            timers: whether handlers use `ctx.schedule`.
            effects: the functions of `@app.effect()` for `ctx.effect`.
            on_error: what becomes of a message whose handler raises, or that doesn't decode.
            concurrency: how many messages of a partition, each of another key, are handled at once.
            threads: call plain (not async) handlers in threads.
            answer_ttl: how long answers are kept, a day by default; set it to be asked if no handler returns a value.
            publish: of a class actor, a topic of `app.topic(...)` that gets its states; see `store`.
            misplaced: what becomes of a record in another partition than its key's: "stop" halts in front of it.
            tombstones: whether a null value is a message, None; it is one in any case where the types allow None.
            max_task_idle: how long records wait for an input that is at its end; one that isn't is always waited for.
            close_when_idle: how far behind the clock stream time goes on while the inputs are at their ends.
            late: of messages too late for all windows: "drop", "warn", "stop" or "handle"; a topic gets them.
            order: "time" handles records in the order of their times, when stream time has passed them.
            by: what gives the key by which a topic is read in place of its records': see "Other keys" in the reference.

        Raises:
            ConfigurationError: name, topic or a store is taken, or isn't this app's; options contradict each other.
        """
        # Each option is an argument and a field of `Declaration` of the same name: it isn't named a third time here.
        arguments = locals()
        declared = {part.name: arguments[part.name] for part in fields(Declaration) if part.name in arguments}
        declared |= {
            "stores": owned(stores),
            "windows": timed(stores),
            "dedupe_by": by_header(dedupe_by) if isinstance(dedupe_by, str) else dedupe_by,
            "effects": tuple(effects),
            "on_error": OnError(then=on_error) if isinstance(on_error, str) else on_error,
        }
        options = Declaration(**declared)
        check_bare(topic)
        return cast(Declare, functools.partial(self._decorated, name, [topic, *more_topics], options))

    def view(self, source: Any, *, folder: Path | str | None = None, in_memory: bool = False) -> View[Any, Any]:
        """Declare a view: all of a compacted topic or a store, held in every process and followed.

        A worker opens the views that were declared before it starts, ahead of its actors, and closes them at its end;
        handlers may read them. In any other program use it as `async with app.view(...) as view:`.

        Args:
            source: a topic of `app.topic(...)`, a store, or a class actor for its states.
            folder: where it is kept, for a quick start. By default a worker keeps it in its data folder, any other
                program in memory.
            in_memory: keep it in memory in a worker too.

        Raises:
            UsageError: the source is none of these.
        """
        view: View[Any, Any]
        if isinstance(source, Store) or hasattr(source, "get_topic_name"):
            if not isinstance(source, Store):
                single_topic("app.view(): the source", source)
            view = view_of(self, source, folder=folder, in_memory=in_memory)
        else:
            name = self.definition_of(source).name
            if name not in self.stores:
                raise UsageError(f"app.view(): actor {name} has no state of its own: name one of its stores")
            view = view_of(self, self.stores[name], folder=folder, in_memory=in_memory)
        self.views.append(view)
        return view

    @check_arguments
    def sink(
        self,
        topic: Any,
        *,
        to: Any = None,
        name: str | None = None,
        batch: int = 1000,
        within: timedelta = timedelta(seconds=1),
        on_error: OnError | Then = "stop",
        tombstones: bool = False,
    ) -> Callable[[F], F]:
        """Make a function one that workers call with the records of a topic, in batches, to write them elsewhere.

        Without `to=` it is called with a `Batch`, and the batch's offsets are committed when it has returned: at least
        once. With `to=`, it is called with each `Record` and returns the row to write, or None.

        Args:
            topic: a topic of `app.topic(...)`.
            to: a target of `actors.sinks`.
            name: names the consumer group, `{app id}--sink-{name}`; the function's by default.
            batch: how many records a batch has at most.
            within: how long the first record of a batch waits for others.
            on_error: what becomes of a record that the target refuses, "stop" or "skip"; with a dead letter as
                `OnError(then="skip", dead_letters=True)`. Any other failure is tried again for as long as it takes.
            tombstones: with `to=`, whether the function is called for records without a value too; there is no row for
                these otherwise.

        Raises:
            ConfigurationError: the name is taken, an argument can't be meant, or `extensions` leaves out `sinks`.
        """
        sinks = self.extensions.get("sinks")
        if sinks is None:
            raise ConfigurationError("app.sink(): the app's `extensions` leave out `sinks`: name it there")
        options = {"batch": batch, "within": within, "on_error": on_error, "tombstones": tombstones}
        return cast("Callable[[F], F]", sinks.sink(topic, to=to, name=name, **options))

    @check_arguments
    def effect(
        self,
        *,
        name: str | None = None,
        attempts: int | None = None,
        first_wait: timedelta = timedelta(seconds=1),
        longest_wait: timedelta = timedelta(minutes=5),
        timeout: timedelta = timedelta(seconds=30),
        repeat: Repeat = "until_done",
        on_give_up: str | Callable[..., Any] | None = None,
        on_unknown: str | Callable[..., Any] | None = None,
        limit: int | None = None,
        rate: str | None = None,
        per: Callable[..., Any] | None = None,
    ) -> Callable[[Callable[P, Answer]], Effect[P, Answer]]:
        """Make a function one that handlers may call through `ctx.effect`: it acts outside of Kafka.

        It is called as `function(call, *args, **kwargs)`, `call` being an `EffectCall`; a plain function runs in a
        thread.

        Args:
            name: how it is called in the outbox, so don't change it while calls wait there; the function's by default.
            attempts: how often it is called until it is given up, 10 times by default; 0 for ever.
            first_wait: before the second attempt; doubled for each further one.
            longest_wait: no wait is longer.
            timeout: of one attempt.
            repeat: "never" for a call that is made once at most. Its start is committed before it; if it is unknown
                then how the call ended, it isn't made again.
            on_give_up: the method of the class actor, by name, that gets the `GivenUp` of a call that was given up; of
                a function actor the function, marked with its `timer`. Without it the call is parked.
            on_unknown: likewise for the `Unknown` of a call with `repeat="never"`.
            limit: how many calls run at a time, over all workers.
            rate: how many begin within a second, minute, hour or day, over all workers, as "100/m".
            per: a function of the effect's arguments, as a tenant: `limit` and `rate` are for the calls of each result.

        Raises:
            ConfigurationError: an argument can't be meant.
        """
        tried = attempts if attempts is not None else 1 if repeat == "never" else 10
        told = [to if to is None or isinstance(to, str) else name_of(to) for to in (on_give_up, on_unknown)]

        def decorate(function: Callable[P, Answer]) -> Effect[P, Answer]:
            called = name or name_of(function)
            spans = {"first_wait": first_wait, "longest_wait": longest_wait, "timeout": timeout}
            for option, span in spans.items():
                check_span(f"effect {called}", option, span)
            try:
                permits = None
                if (limit, rate, per) != (None, None, None):
                    # Beside the engine, which knows it by name only.
                    limits: Any = import_module("actors.limits")
                    permits = limits.Limit.of(self, called, limit=limit, rate=rate, per=per)
                more: dict[str, Any] = {**spans, "on_give_up": told[0], "on_unknown": told[1], "permits": permits}
                return Effect(function, called, tried, repeat=repeat, **more)
            except ValueError as error:
                raise ConfigurationError(f"effect {called}: {error}") from error

        return decorate

    def on(self, actor: Any, topic: Any) -> Callable[[Asking], Asking]:
        """Make a function the handler of one of a function actor's inputs; the actor's own handles all others.

        It is called with `(ctx, value)`, and all options of the actor hold for it. A class actor needs none: its
        methods take messages by their types.

        Args:
            actor: the actor's function, or its name.
            topic: one of its inputs behind the first.

        Raises:
            ConfigurationError: the function can't be called that way, or the topic is none of these.
            UsageError: the app has no such actor.
        """
        return self.definition_of(actor).on(topic)

    def query(self, actor: Any, *, name: str | None = None) -> Callable[[Asking], Asking]:
        """Make a function a query of a function actor; of a class actor, mark a method with `@query`.

        It is called as `(ctx, **arguments)` for `GET /actors/{actor}/_ask/{name}/{key}?argument=…`, sees the committed
        state of `ctx.key` through the actor's stores, may not write or send, and isn't async.

        Args:
            actor: the actor's function, or its name.
            name: what it is called in the URL; the function's by default.

        Raises:
            ConfigurationError: the function can't be called that way, or the name is taken.
            UsageError: the app has no such actor.
        """
        return self.definition_of(actor).query(name)

    async def tell(self, actor: Any, key: Any, message: Any) -> None:
        """Send `message` to the actor of `key` from outside of handlers; returns when the broker has it.

        A script has to `await app.producer.stop()` at its end; a worker does so by itself.

        Args:
            actor: an actor's class, its function, or its name.
            key: which one of them.
            message: of a type that the actor takes.

        Raises:
            UsageError: the app has no such actor, or an actor is handling a message: use `ctx.tell`.
        """
        definition = self.definition_of(actor)
        codec = definition.messages()
        raw_key = await resolved(lambda: key_codec(self, definition.topic.schema).encode(key))
        headers = [*inbox_of(definition).headers_of(message), *trace_headers(self)]
        raw = await resolved(lambda: codec.encode(message))
        await (await definition.topic.send(key=raw_key, value=raw, headers=dict(headers)))

    async def ask(self, actor: Any, key: Any, message: Any, *, timeout: timedelta = DEFAULT_ASK_TIMEOUT) -> Any:
        """Send `message` to the actor of `key` from outside of handlers, and wait for what its handler returns.

        The answer comes after the actor's commit. A script that asks has to `await app.close_asks()` at its end; a
        worker does so by itself.

        Args:
            actor: an actor's class, its function, or its name; its handler's return annotation is the answer's type.
            key: which one of them.
            message: of a type that the actor takes.
            timeout: how long to wait.

        Raises:
            AskTimeoutError: no answer came in time; whether the actor handles the message is unknown.
            AskClosedError: `close_asks` was called meanwhile.
            AskRejectedError: its handler raised `Rejected`.
            AskFailedError: its handler failed, and the message was skipped or parked.
            UsageError: the app has no such actor, or it answers nothing; an actor is handling a message: use `ctx.ask`.
        """
        if is_handling():
            raise UsageError("app.ask() inside an actor's handler: use ctx.ask(actor, key, message)")
        inbox, clock = inbox_of(self.definition_of(actor)), self.actor_clock
        asked: EncodedRequest = await resolved(lambda: EncodedRequest.of(inbox, key, message))
        question_id, headers = uuid.uuid4().hex, [*asked.headers, deadline_header(clock, timeout), *trace_headers(self)]

        async def once(left_s: float) -> ActorReply:
            async with asyncio.timeout(left_s):
                partition = inbox.home(asked.key, await self.asks.partitions_of(inbox.name))
            return await self.asks.ask(
                ActorRequest(question_id, inbox.name, partition, asked.key, asked.value, headers), left_s
            )

        return asked.open(await carry(once, clock, timeout, asked.what))

    async def close_asks(self) -> None:
        """Disconnect the client of `ask`. May be called twice; the next `ask` connects again.

        For programs that aren't workers: a worker does it when it stops, and its actors need the connection until then.
        """
        if self._actor_service is not None and self._actor_service.tasks:
            return
        asks, self._asks = self._asks, None
        if asks is not None:
            await asks.close()

    def router(self, *, check_tokens: bool = True, **options: Any) -> Any:
        """Return a FastAPI router: messages to the actors that are declared, and changes of their stores.

        Args:
            check_tokens: ask for `write_tokens` and `query_tokens`; false where the program itself asks who it is.
            options: of `fastapi.APIRouter`, such as `dependencies`.

        Raises:
            ConfigurationError: the app has no extension `web`, or FastAPI isn't installed.
        """
        web: Any = self.extensions.get("web")
        if web is None:
            raise ConfigurationError("app.router() is of the extension web, which extensions=… leaves out")
        return web.router(check_tokens=check_tokens, **options)

    def definition_of(self, actor: Any) -> ActorDefinition:
        """Return the actor of a class, a function or a name.

        Raises:
            UsageError: the app has none, or several of that class or function.
        """
        definitions = self.actors.values()
        meant = [definition for definition in definitions if actor in (definition.name, definition.declared)]
        if len(meant) == 1:
            return meant[0]
        if meant:
            names = " and ".join(definition.name for definition in meant)
            raise UsageError(f"{actor.__name__} is declared as the actors {names}: give the name of one")
        known = ", ".join(sorted(self.actors)) or "none"
        raise UsageError(f"{getattr(actor, '__name__', actor)!r} is no actor of this app, which has: {known}")

    def decoder(self, store: str) -> Decoder:
        """Return a decoder of the keys and values in a store's changelog, for use outside of handlers.

        Raises:
            UsageError: the app has no such store.
        """
        if store not in self.stores:
            known = ", ".join(sorted(self.stores)) or "none"
            raise UsageError(f"{store!r} is no store of this app, which has: {known}")
        return Decoder(store, changelog_topic(self, store), self.stores[store])

    @property
    def asks(self) -> KafkaRequests:
        """The client of this process's questions; it connects with the first one."""
        if self._asks is None:
            service = self._actor_service
            setup = Setup(self) if service is None or service.setup is None else service.setup
            self._asks = setup.make_asks()
        return self._asks

    def _decorated(
        self, name: str | None, topics: list[Any], options: Declaration, declared: Any, *, named_by: Any = None
    ) -> Any:
        self._add_actor(name or name_of(declared), topics, declared, options, named_by=named_by)
        claim(declared, self)
        add_timer(declared)
        return declared

    def _extras(self, name: str, declared: Any, options: Declaration, *, is_answering: bool) -> dict[str, Any]:
        """Declare the stores of an actor's options."""
        wanted = {
            "ids": (options.dedupe_by is not None, options.dedupe_ttl),
            "timers": (options.timers or has_timers(declared), None),
            "effects": (bool(options.effects), None),
            "parked": (options.on_error.parks, None),
            "answers": (is_answering, options.answer_ttl or ANSWER_TTL),
            "waiting": (options.order is not None, None),
        }
        return {
            what: own_store(self, f"{name}-{what}", "sized" if what == "ids" else what, ttl=ttl)
            for what, (is_wanted, ttl) in wanted.items()
            if is_wanted
        }

    def _check_own(self, actor: str, stores: Sequence[Store[Any, Any]]) -> None:
        for store in stores:
            if self.stores.get(store.name) is not store:
                raise ConfigurationError(f"actor {actor}: {store!r} isn't a store of app {self.app_id}")

    def _add_actor(
        self, name: str, topics: list[Any], declared: Any, options: Declaration, *, named_by: Any = None
    ) -> None:
        # Other calls, as of queries, name the actor by the user's function, where `declared` is made of it.
        named_by = declared if named_by is None else named_by
        check_name("actor", name)
        if name in self.actors:
            raise ConfigurationError(f"actor {name}: the app has an actor of that name: give one of them name=…")
        check_options(name, declared, options)
        (topic, *others), feeds = inputs_of(self, name, topics, options, key_type=getattr(declared, "key_type", Any))
        check_value_type(name, topic, declared)
        self._check_own(name, options.stores)
        share_keys(self, topic, options.stores, options.windows)
        own = state_store(self, name, topic, declared, options.publish) if isinstance(declared, type) else None
        threaded = in_threads(options.concurrency, f"actor {name}") if options.threads else None
        answer_types = ReplyTypes.of(name, declared, resolve, is_asked=options.answer_ttl is not None)
        extras = self._extras(name, declared, options, is_answering=answer_types is not None)
        ids = extras.get("ids")
        late = forwarder(self, (topic, *others), options.late)
        if options.on_error.dead_letters:
            letters, option = dead_letter_topic(self.app_id), "OnError(dead_letters=True)"
            refuse_own_input((topic, *others), letters, option, "skipped messages")

        def bare(function: Any) -> Any:
            if isinstance(function, type):
                return handler_of(function, own, threaded=threaded, stops=options.on_error.then == "stop")
            return as_coroutine(function) if threaded is None else threaded(function)

        def wrap(function: Any) -> Any:
            handler = bare(function)
            if ids is not None and options.dedupe_by is not None:
                handler = deduplicated(handler, ids, options.dedupe_by)
            return windowed(handler, late, options.windows)

        kept: dict[str, Any] = {what: extras.get(what) for what in ("timers", "effects", "parked", "answers")}
        own_calls = bare(declared) if isinstance(declared, type) else as_coroutine(caller(threaded))
        definition = ActorDefinition(
            name=name,
            methods=Methods(name, named_by, windowed(own_calls, "handle", options.windows)),
            topics=(topic, *others),
            stores=(*options.stores, *([] if own is None else [own]), *extras.values()),
            handler=wrap(declared),
            declared=named_by,
            **shared(HandlingOptions, options),
            effect_functions={effect.name: effect for effect in options.effects},
            **kept,
            answer_types=answer_types,
            queries=dict(getattr(declared, "queries", {})),
            misplaced=options.misplaced,
            ids=ids,
            tombstones=takes_tombstones(name, declared, options),
            close_when_idle=least_idle(options),
            order=extras.get("waiting"),
            late=late,
            wrap=wrap,
            handlers=feeds,
        )
        for other in self.actors.values():
            check_disjoint(definition, other)
        self.actors[name] = definition
