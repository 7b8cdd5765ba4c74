"""`ActorTestDriver`: an app's actors without a broker, in virtual time.

The actors run on the product's own worker, commits and restores, with a broker, disk and clock in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Any, Literal, TypeVar, overload
from uuid import uuid4

from actors._core.group.members import TaskId
from actors._core.windows.kinds import Window
from actors._faust.app import App
from actors._faust.setup import Setup, inbox_of
from actors.declare.definition import messages_of
from actors.declare.values.schemas import topic_codecs
from actors.errors import ActorsError, UsageError
from actors.ports import ActorReply, ActorRequest, Headers, TopicPartition
from actors.runtime.handlers.effect import Effect
from actors.runtime.message.context import DEFAULT_ASK_TIMEOUT
from actors.runtime.message.outputs import checked_headers
from actors.runtime.message.store import Store
from actors.runtime.message.unresolved import resolved_now
from actors.runtime.requests.references import P, QueryReference, current_app
from actors.runtime.requests.requests import EncodedRequest, carry, deadline_header
from actors.runtime.rows.stores import RowStore
from actors.runtime.spec import ActorSpec
from actors.runtime.windows.store import WindowStore
from actors.testing.looking import (
    EMPTY,
    ParkedHere,
    Place,
    Sent,
    advance_windows,
    answer_query,
    close_windows,
    commands_to_all,
    committed_windows,
    dead_letter,
    decoder_of,
    encoded,
    parked_effects,
    parked_kinds,
    parked_messages,
    rows_by_key,
    topic_of,
)
from actors.testing.machine import LOOK_S, Machine
from stores._core.record import METADATA_BYTES, is_expired

T = TypeVar("T")
_MAX_RECORDS = 1 << 30


class ActorTestDriver(Machine):
    """Runs the actors of an app; use it in a `with` block.

    Every call returns when all that it led to is committed. A message that can't be handled raises what a worker would
    log: `HandlerFailedError`, with the handler's exception as its cause, or `UndecodableRecordError`.

    Args:
        app: the app; its topics exist, each with `partitions` partitions. What the program itself does with `app.ask`,
            `app.tell` and `topic.send`, in the routes of a web app for example, reaches its actors here.
        partitions: of each topic; more than one, so that a handler that reaches for a key of another partition fails
            here as it would on a broker.
        effects: by effect, the function that is called in its place, with the same arguments. A call of an effect that
            has none raises `UsageError`: a test must not act on the outside world by accident. An effect's own
            function is called with `effects={post: post}`.
        now: when the clock begins, with a time zone. By default the machine's time, rounded down to the hour, so that
            shorter windows begin alike in every run.

    Works in a plain test as well as in one that runs on an event loop: the actors have a loop of their own.

    Examples:
        >>> from actors import App
        >>> with ActorTestDriver(App("shop", broker="kafka://127.0.0.1:9092")) as driver:
        ...     driver.advance(60)
    """

    def __init__(
        self,
        app: App,
        *,
        partitions: int = 3,
        effects: Mapping[Effect, Callable[..., Any]] | None = None,
        now: datetime | None = None,
    ) -> None:
        super().__init__(app, partitions=partitions, effects=effects, now=now)
        self._read: dict[TopicPartition, int] = {}

    def send(
        self,
        topic: Any,
        *,
        key: Any = None,
        value: Any = None,
        headers: Headers | Mapping[str, bytes] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        raw: bool = False,
    ) -> None:
        """Send a record to a topic of the app, and wait for all that it leads to.

        Args:
            topic: a topic of `app.topic(...)`, or its name.
            key: encoded as the topic says.
            value: likewise; a message where a class actor reads the topic. None sends a tombstone.
            headers: (name, bytes) pairs, or a mapping.
            partition: overrides the key's partition; without a key it is 0 by default.
            timestamp_ms: Unix milliseconds; the virtual time when left out.
            raw: key and value are bytes, and are sent as they are: for records that don't decode.
        """
        self.post(topic, key=key, value=value, headers=headers, partition=partition, timestamp_ms=timestamp_ms, raw=raw)
        self.settle()

    def post(
        self,
        topic: Any,
        *,
        key: Any = None,
        value: Any = None,
        headers: Headers | Mapping[str, bytes] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        raw: bool = False,
    ) -> None:
        """Send a record as `send` does, without waiting.

        What is posted before `settle` may be handled and committed together.
        """
        record = self._encoded(topic, key, value, headers, raw=raw)
        self._produce(*record, partition, timestamp_ms)

    def _encoded(
        self, topic: Any, key: Any, value: Any, headers: Headers | Mapping[str, bytes] = (), *, raw: bool = False
    ) -> tuple[str, bytes | None, bytes | None, Headers]:
        """Return the topic's name, and the record as its topic says."""
        topic, pairs = topic_of(self._app, topic), list(headers.items() if isinstance(headers, Mapping) else headers)
        if not raw:
            key = None if key is None else resolved_now(lambda: topic_codecs(topic)[0].encode(key))
            value, type_headers = resolved_now(lambda: encoded(self._app, topic, value))
            pairs += type_headers
        elif not isinstance(key, bytes | None) or not isinstance(value, bytes | None):
            raise UsageError(f"driver.send(raw=True): key and value are bytes or None, not {key!r} and {value!r}")
        return str(topic.get_topic_name()), key, value, pairs

    def backlog(
        self,
        records: Mapping[Any, Iterable[tuple[Any, Any, int]]],
        *,
        order: int | str = 0,
        settle: bool = True,
    ) -> None:
        """Send records that the worker finds as a backlog, and wait for all that they lead to.

        All are there before the first is handled. The worker then gets one partition after the other, a chunk of up to
        500 records at a time, as a broker hands out what has gathered in an outage. What the records lead to is handed
        out like this, too.

        Args:
            records: by topic, or its name, (key, value, timestamp_ms) of each record, encoded as `send` does.
            order: a seed: another one hands them out in another order.
            settle: false to return at once, for a `crash` in between. The next call that waits ends the backlog.
        """
        encoded = []
        for topic, rows in records.items():
            for row in rows:
                if not (isinstance(row, tuple) and len(row) == 3 and isinstance(row[2], int)):
                    raise UsageError(f"driver.backlog(): {row!r}: a record is (key, value, timestamp_ms)")
                encoded.append((*self._encoded(topic, row[0], row[1]), None, row[2]))

        async def produce() -> None:
            # Nothing is handled in between: nothing here waits.
            for record in encoded:
                await self._append(*record)

        self._order = Random(order)
        self._run(produce())
        if settle:
            self.settle()

    def settle(self) -> None:
        """Wait for all that earlier calls led to."""
        self._run(self._settle())

    def tell(
        self,
        actor: Any,
        key: Any,
        message: Any,
        *,
        timestamp_ms: int | None = None,
        headers: Headers | Mapping[str, bytes] = (),
        settle: bool = True,
    ) -> None:
        """Send a message to an actor, given by class, function or name.

        Waits for all that it leads to, unless `settle` is false.
        """
        definition = self._app.definition_of(actor)
        value, type_headers = resolved_now(lambda: definition.messages().with_headers(message))
        raw_key = resolved_now(lambda: topic_codecs(definition.topic)[0].encode(key))
        pairs = [*checked_headers(headers, ()), *type_headers]
        self._produce(definition.topic_name, raw_key, value, pairs, None, timestamp_ms)
        if settle:
            self.settle()

    def ask(self, actor: Any, key: Any, message: Any, *, timeout: timedelta = DEFAULT_ASK_TIMEOUT) -> Any:
        """Ask an actor as `App.ask` does, wait for all that it leads to, and give the answer.

        Raises:
            AskError: see `App.ask`.
        """
        asks, clock, inbox = self._make_asks(), self._clock, inbox_of(self._app.definition_of(actor))
        if asks is None:
            raise UsageError("driver.ask(): no actor of this app answers: annotate what a handler returns")
        asked = resolved_now(lambda: EncodedRequest.of(inbox, key, message))
        partition_count, question_id = self._partitions, uuid4().hex

        async def ask() -> ActorReply:
            question = ActorRequest(
                question_id,
                inbox.name,
                inbox.home(asked.key, partition_count),
                asked.key,
                asked.value,
                [*asked.headers, deadline_header(clock, timeout)],
            )
            return await carry(lambda left_s: asks.ask(question, left_s), clock, timeout, asked.what)

        answer = asked.open(self._run(self._unless_failed(ask())))
        self.settle()
        return answer

    def run(self, call: Awaitable[T]) -> T:
        """Run the program's own code, as in `driver.run(Account.at("ada").deposit(Deposit(5)))`, and give its result.

        References in it reach the driver's app. Waits for all that it leads to.
        """

        async def called() -> T:
            current_app.set(self._app)
            return await call

        result = self._run(self._unless_failed(called()))
        self.settle()
        return result

    def outputs(self, topic: Any) -> list[Sent]:
        """Return the committed records of a topic that no earlier call gave, by partition and offset.

        `topic` as in `send`.
        """
        topic = topic_of(self._app, topic)
        name, decode_key = str(topic.get_topic_name()), topic_codecs(topic)[0].decode
        messages, found = messages_of(self._app.actors.values(), topic), []
        for number in range(self._partitions):
            source = TopicPartition(name, number)
            records, end = self._cluster.fetch(source, self._read.get(source, 0), _MAX_RECORDS)
            self._read[source] = end
            found += [
                resolved_now(partial(Sent.of, record, decode_key, decoder_of(messages, record.headers)))
                for record in records
            ]
        return found

    def dead_letters(self, actor: Any = None) -> list[Sent]:
        """Return all dead letters, or those of one actor, given by class, function or name; see `OnError`.

        Key and value are decoded as the actor's messages are, and are bytes where that fails. The headers `fa-error`,
        `fa-origin` and `fa-attempts` say what happened.
        """
        name, topic = None if actor is None else self._app.definition_of(actor).name, self._setup.dead_letter_topic
        found = self._cluster.find_topic(topic)
        letters = [
            dead_letter(self._app.actors, record)
            for log in (found.partitions if found is not None else ())
            for record in self._cluster.fetch(log.name, 0, _MAX_RECORDS)[0]
        ]
        return [letter for by, letter in letters if name is None or by == name]

    def get(self, store: Any, key: Any) -> Any:
        """Return the committed value of a key, None when it is absent or expired. `store` may be a class actor.

        Of a map, list or set store it is the key's dict, list or set, empty if the key has no rows.
        """
        if isinstance(store, RowStore):
            return self.items(store).get(key, EMPTY[store.kind]())
        raw_key = (found := self._store(store)).encode_key(key)
        for files in self._disk.files():
            held = files.data.get(raw_key) if files.store == found.name else None
            if held is not None and not is_expired(held, self._clock.wall_ms()):
                return resolved_now(partial(found.decode_value, held[METADATA_BYTES:]))
        return None

    def changelog(self, store: Any) -> list[Sent]:
        """Return all committed records of a store's changelog that compaction left, by partition and offset."""
        found = self._store(store)
        topic = self._setup.changelog_topic(found.name)
        return [
            resolved_now(partial(Sent.of, record, found.decode_key, partial(found.shown, record.key or b"")))
            for number in range(self._partitions)
            for record in self._cluster.fetch(TopicPartition(topic, number), 0, _MAX_RECORDS)[0]
        ]

    def items(self, store: Any) -> dict[Any, Any]:
        """Return all committed keys and values of a store, or of a class actor's states; see `get`."""
        found = self._store(store)
        now_ms = self._clock.wall_ms()
        items = {
            found.decode_key(key): resolved_now(partial(found.shown, key, raw[METADATA_BYTES:]))
            for files in self._disk.files()
            if files.store == found.name
            for key, raw in sorted(files.data.items())
            if not is_expired(raw, now_ms)
        }
        return rows_by_key(store, items) if isinstance(store, RowStore) else items

    def windows(self, store: WindowStore[Any, Any], key: Any) -> dict[Window, Any]:
        """Return the committed windows of a key of a window store, in order of their starts, with their values."""
        return committed_windows(store, key, [files.data for files in self._disk.files() if files.store == store.name])

    def late(self, actor: Any) -> dict[str, int]:
        """Return the counts of an actor's late messages by window store, join or table with a history.

        Those of all workers that the driver has started, as often as they were handled.
        """
        name, counts = self._app.definition_of(actor).name, self._late + self._late_here()
        return {store: counts[name, store] for spec in self._specs if spec.name == name for store in spec.late_stores}

    @overload
    def query(self, actor: QueryReference[P, T], /, *args: P.args, **arguments: P.kwargs) -> T: ...

    @overload
    def query(self, actor: Any, query: Any, key: Any, /, **arguments: Any) -> Any: ...

    def query(self, actor: Any, /, *args: Any, **arguments: Any) -> Any:
        """Call a query of an actor on the committed state of a key, and give what it returns.

        Args:
            actor: an actor's class, its function, or its name; or a reference, as `Account.at("ada").can_pay`.
            args: a method marked `@query`, a function of `@app.query`, or the query's name, and the key; of a
                reference, arguments.
            arguments: of the query, as JSON would have them.

        Raises:
            UsageError: the actor has no such query.
            ReadOnlyQueryError: the query tried to do more than read.
        """
        if isinstance(actor, QueryReference):
            arguments = actor.arguments(args, arguments)
            args, actor = (actor.name, actor.key), actor.actor
        if len(args) != 2:
            raise UsageError("driver.query(): name the actor, its query and the key, as query(Account.at(KEY).…)")
        query, key = args
        definition = self._app.definition_of(actor)
        _, source = self._place_of(definition, key)
        task = None if self._worker is None else self._worker.task_of(TaskId(definition.name, source.partition))
        held = None if task is None else task.committed
        if held is None:
            raise UsageError(f"driver.query(): {source} can't be read now: call driver.settle() first")
        stores = {store: held[store.name] for store in definition.stores}
        return answer_query(
            definition, query, key, arguments, Place(source, self._partitions, stores, self._clock.wall_ms())
        )

    def parked(self, actor: Any, key: Any = None) -> list[ParkedHere]:
        """Return the parked messages and effects of an actor, or of one of its keys, in the order in which they wait.

        Those that wait behind a parked one of their key have no `error`.
        """
        definition = self._app.definition_of(actor)
        kinds, entries = parked_kinds(definition), list[ParkedHere]()
        if definition.parked is not None and "message" in kinds:
            entries += parked_messages(definition, self.items(definition.parked))
        for files in self._disk.files():
            if definition.effects is not None and files.store == definition.effects.name:
                rows = {row: raw[METADATA_BYTES:] for row, raw in files.data.items()}
                entries += parked_effects(definition, files.partition, rows)
        return [entry for entry in entries if key in (None, entry.key)]

    def retry_parked(self, actor: Any, key: Any) -> None:
        """Hand the parked messages and effects of a key to the handler again, as `faust parked retry` does."""
        self._control(actor, key, "retry")

    def drop_parked(self, actor: Any, key: Any) -> None:
        """Drop all parked messages and the parked effect of a key, as `faust parked drop --all` does."""
        self._control(actor, key, "drop")

    @property
    def now_s(self) -> float:
        """The virtual time, in seconds since the driver began."""
        return self._loop.time()

    def advance(self, seconds: float, *, settle: bool = True) -> None:
        """Let time pass, and wait for all that it leads to, unless `settle` is false: handlers may still be at work."""
        self._run(asyncio.sleep(seconds))
        if settle:
            self.settle()

    def advance_stream_time(self, actor: Any, to_ms: int) -> None:
        """Move stream time of all partitions of an actor on, without a record, and wait for what closes.

        Partitions that had no record stay as they are. In production stream time moves with records only.

        Args:
            actor: an actor's class, its function, or its name; it has a window store.
            to_ms: Unix milliseconds. Stream time that is later stays.
        """
        definition = self._app.definition_of(actor)
        if not definition.windows:
            raise UsageError(
                f"driver.advance_stream_time(): actor {definition.name} has no window store: timers by "
                "stream time fire when a later message of the partition was handled"
            )
        tasks = () if self._worker is None else self._worker.tasks
        advance_windows((task for task in tasks if task.spec.name == definition.name), to_ms)
        self.advance(LOOK_S)

    def close_windows(self) -> None:
        """End all windows of all actors and wait for the closes: an actor after the actors that write into its inputs.

        Other actors go in the order of their declaration. Later records of these windows are late.
        """
        waiting = {spec.topic: spec for spec in self._specs if spec.windows}
        self.settle()
        while waiting:
            first = next(
                spec for spec in waiting.values() if self._upstream_of(spec).isdisjoint(waiting.keys() - {spec.topic})
            )
            del waiting[first.topic]
            tasks = () if self._worker is None else self._worker.tasks
            close_windows(task for task in tasks if task.spec.name == first.name)
            self.advance(LOOK_S)

    def crash(self, *, keep_disk: bool = True, settle: bool = True, down_s: float = 0.0) -> None:
        """Kill the worker as `kill -9` does and start another, on the same disk or on an empty one.

        The other one starts after `down_s` seconds of virtual time. The group has removed the dead one by then, and the
        takeover takes some milliseconds. Waits for all that the messages lead to, unless `settle` is false.
        """
        self._kill()
        if not keep_disk:
            self._disk.erase()
        self._run(asyncio.sleep(down_s))
        self._run(self._restart(settle=settle))

    def restart(self, app: App | None = None) -> None:
        """Restart the worker, with another version of the app if one is given: what is new in it begins empty.

        Raises:
            ConfigurationError, LostChangelogError: a worker of that version would refuse to start, such as where
                messages are parked and it declares no parking. No worker runs then; another `restart` starts one.
        """
        self._kill()
        version = self._with_registry(self._app if app is None else app)
        try:
            self._run(self._begin(version, Setup(version)))
        except ActorsError as error:
            if self._process is None:
                self._failures.append(error)
            raise

    def _control(self, actor: Any, key: Any, command: Literal["retry", "drop"]) -> None:
        definition = self._app.definition_of(actor)
        raw_key, source = self._place_of(definition, key)
        (commands,) = (spec.commands for spec in self._specs if spec.name == definition.name)
        for told in commands_to_all(definition, command, self._end_of(source)):
            headers = commands.headers(source.partition, raw_key, told)
            self._produce(source.topic, raw_key, told, headers, None, None)
        self.settle()

    def _upstream_of(self, spec: ActorSpec) -> set[str]:
        """Return the first inputs of all actors upstream of one."""
        specs = {one.topic: one for one in self._specs}
        topics, waiting = set[str](), [spec]
        while waiting:
            feeds = waiting.pop().feeds
            names = {name for writers in feeds.upstream.values() for name in writers} - topics if feeds else set()
            topics |= names
            waiting += [specs[name] for name in names]
        return topics

    def _place_of(self, definition: Any, key: Any) -> tuple[bytes, TopicPartition]:
        raw_key, topic = topic_codecs(definition.topic)[0].encode(key), definition.topic_name
        return raw_key, TopicPartition(topic, self._app.partitioner_for(topic).home(raw_key, self._partitions))

    def _produce(self, *record: Any) -> None:
        self._run(self._append(*record))

    async def _append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> None:
        if self._client is None:
            raise UsageError("use the driver in a block: with ActorTestDriver(app) as driver: …")
        await self._client.produce(topic, key, value, headers, partition, timestamp_ms)

    def _store(self, store: Any) -> Store[Any, Any]:
        if isinstance(store, Store | RowStore):
            return store.rows if isinstance(store, RowStore) else store
        name = self._app.definition_of(store).name
        if name not in self._app.stores:
            raise UsageError(f"actor {name} has no state of its own: name one of its stores")
        return self._app.stores[name]
