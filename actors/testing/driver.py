"""`ActorTestDriver`: an app's actors without a broker, in virtual time.

The actors run on the product's own worker, commits and restores, with a broker, disk and clock in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, Self, TypeVar
from uuid import uuid4

from actors._core.group.members import TaskId
from actors._core.windows.kinds import Window
from actors._faust.app import App
from actors._faust.setup import Setup, inbox_of
from actors._faust.views import copy_stores
from actors.declare.values.codecs import topic_codecs
from actors.errors import ActorsError, UsageError
from actors.ports import ActorReply, ActorRequest, Headers, Identity, TopicPartition, Writer
from actors.runtime.committer import Committer
from actors.runtime.handlers.effect import Effect
from actors.runtime.message.context import DEFAULT_ASK_TIMEOUT
from actors.runtime.message.outputs import checked_headers
from actors.runtime.message.store import Store
from actors.runtime.replicas.views import ViewParts
from actors.runtime.requests.requests import EncodedRequest, carry, deadline_header
from actors.runtime.spec import ActorSpec, TaskServices
from actors.runtime.state.restore import Restorer
from actors.runtime.windows.store import WindowStore
from actors.runtime.worker import LateSource, Worker
from actors.testing.driving import Disk, LoneSource, PatientSettings, SimTopics, make_topics
from actors.testing.fakes.cluster import MemoryKafka
from actors.testing.fakes.direct import DirectNetwork
from actors.testing.fakes.ports import (
    FakeClock,
    FakeGroupView,
    FakeLogs,
    FakeOrderedWriter,
    FakeOwners,
    FakeWriter,
    encode_owner,
)
from actors.testing.fakes.processes import Process, ProcessLoop
from actors.testing.fakes.requests import FakeRequests
from actors.testing.fakes.views import FakeTopicLogs
from actors.testing.looking import (
    ParkedHere,
    Place,
    Sent,
    advance_windows,
    answer_query,
    commands_to_all,
    committed_windows,
    dead_letter,
    parked_messages,
)
from stores._core.record import METADATA_BYTES, is_expired

T = TypeVar("T")

_LOOK_S = 0.01
_PATIENCE_S = 3600.0
_STOP_S = 5.0
_MAX_RECORDS = 1 << 30


class ActorTestDriver:
    """Runs the actors of an app; use it in a `with` block.

    Every call returns when all that it led to is committed. A message that can't be handled raises what a worker would
    log: `HandlerFailedError`, with the handler's exception as its cause, or `UndecodableRecordError`.

    Args:
        app: the app; its topics exist, each with `partitions` partitions.
        partitions: of each topic; more than one, so that a handler that reaches for a key of another partition fails
            here as it would on a broker.
        effects: by effect, the function that is called in its place, with the same arguments. A call of an effect that
            has none raises `UsageError`: a test must not act on the outside world by accident. An effect's own
            function is called with `effects={post: post}`.

    Works in a plain test as well as in one that runs on an event loop: the actors have a loop of their own.

    Examples:
        >>> from actors import App
        >>> with ActorTestDriver(App("shop", broker="kafka://127.0.0.1:9092")) as driver:
        ...     driver.advance(60)
    """

    def __init__(
        self, app: App, *, partitions: int = 3, effects: Mapping[Effect, Callable[..., Any]] | None = None
    ) -> None:
        self._app = app
        self._effects = {
            effect.name: function.function if isinstance(function, Effect) else function
            for effect, function in (effects or {}).items()
        }
        self._partitions = partitions
        self._setup = Setup(app)
        self._loop = ProcessLoop()
        self._clock = FakeClock(self._loop)
        self._disk = Disk()
        self._network = DirectNetwork()
        self._cluster = MemoryKafka(self._setup.group)
        self._worker: Worker | None = None
        self._process: Process | None = None
        self._dead: list[Process] = []
        self._failures: list[BaseException] = []
        self._lives = 0
        self._read: dict[TopicPartition, int] = {}

    def __enter__(self) -> Self:
        try:
            self._run(self._begin())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End it. May be called twice."""
        if self._loop.is_closed():
            return
        self._kill()
        for view in self._app.views:
            view.forget()
        self._loop.end()
        for process in self._dead:
            process.reap()

    # --- messages --------------------------------------------------------------------------------------------------

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
            topic: a topic of `app.topic(...)`.
            key: encoded as the topic says.
            value: likewise; None sends a tombstone.
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
        if not raw:
            key_codec, value_codec = topic_codecs(topic)
            key = None if key is None else key_codec.encode(key)
            value = None if value is None else value_codec.encode(value)
        elif not isinstance(key, bytes | None) or not isinstance(value, bytes | None):
            raise UsageError(f"driver.send(raw=True): key and value are bytes or None, not {key!r} and {value!r}")
        self._produce(str(topic.get_topic_name()), key, value, headers, partition, timestamp_ms)

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
    ) -> None:
        """Send a message to an actor, given by class, function or name, and wait for all that it leads to."""
        definition = self._app.definition_of(actor)
        value, type_headers = definition.messages().with_headers(message)
        raw_key = topic_codecs(definition.topic)[0].encode(key)
        pairs = [*checked_headers(headers, ()), *type_headers]
        self._produce(definition.topic_name, raw_key, value, pairs, None, timestamp_ms)
        self.settle()

    def ask(self, actor: Any, key: Any, message: Any, *, timeout: timedelta = DEFAULT_ASK_TIMEOUT) -> Any:
        """Ask an actor as `App.ask` does, wait for all that it leads to, and give the answer.

        Raises:
            AskError: see `App.ask`.
        """
        asks, clock, inbox = self._make_asks(), self._clock, inbox_of(self._app.definition_of(actor))
        if asks is None:
            raise UsageError("driver.ask(): no actor of this app answers: annotate what a handler returns")
        asked, partition_count, question_id = EncodedRequest.of(inbox, key, message), self._partitions, uuid4().hex

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

    def outputs(self, topic: Any) -> list[Sent]:
        """Return the committed records of a topic that no earlier call gave, by partition and offset."""
        name = str(topic.get_topic_name())
        key_codec, value_codec = topic_codecs(topic)
        found = []
        for number in range(self._partitions):
            source = TopicPartition(name, number)
            records, end = self._cluster.fetch(source, self._read.get(source, 0), _MAX_RECORDS)
            self._read[source] = end
            found += [Sent.of(record, key_codec.decode, value_codec.decode) for record in records]
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

    # --- state -----------------------------------------------------------------------------------------------------

    def get(self, store: Any, key: Any) -> Any:
        """Return the committed value of a key, None when it is absent or expired. `store` may be a class actor."""
        raw_key = (found := self._store(store)).encode_key(key)
        for files in self._disk.files():
            held = files.data.get(raw_key) if files.store == found.name else None
            if held is not None and not is_expired(held, self._clock.wall_ms()):
                return found.decode_value(held[METADATA_BYTES:])
        return None

    def changelog(self, store: Any) -> list[Sent]:
        """Return all committed records of a store's changelog that compaction left, by partition and offset."""
        found = self._store(store)
        topic = self._setup.changelog_topic(found.name)
        return [
            Sent.of(record, found.decode_key, found.decode_value)
            for number in range(self._partitions)
            for record in self._cluster.fetch(TopicPartition(topic, number), 0, _MAX_RECORDS)[0]
        ]

    def items(self, store: Any) -> dict[Any, Any]:
        """Return all committed keys and values of a store, or of a class actor's states."""
        found = self._store(store)
        now_ms = self._clock.wall_ms()
        return {
            found.decode_key(key): found.decode_value(raw[METADATA_BYTES:])
            for files in self._disk.files()
            if files.store == found.name
            for key, raw in files.data.items()
            if not is_expired(raw, now_ms)
        }

    def windows(self, store: WindowStore[Any, Any], key: Any) -> dict[Window, Any]:
        """Return the committed windows of a key of a window store, in order of their starts, with their values."""
        return committed_windows(store, key, [files.data for files in self._disk.files() if files.store == store.name])

    def query(self, actor: Any, query: Any, key: Any, /, **arguments: Any) -> Any:
        """Call a query of an actor on the committed state of a key, and give what it returns.

        Args:
            actor: an actor's class, its function, or its name.
            query: a method marked `@query`, a function of `@app.query`, or the query's name.
            key: as the actor's handlers see it.
            arguments: of the query, as JSON would have them.

        Raises:
            UsageError: the actor has no such query.
            ReadOnlyQueryError: the query tried to do more than read.
        """
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
        """Return the parked messages of an actor, or of one of its keys, in the order in which they wait.

        Messages that wait behind a parked one of their key have no `error`.
        """
        definition = self._app.definition_of(actor)
        if definition.parked is None:
            raise UsageError(f'actor {definition.name} parks no messages: declare it with on_error="park"')
        return [one for one in parked_messages(definition, self.items(definition.parked)) if key in (None, one.key)]

    def retry_parked(self, actor: Any, key: Any) -> None:
        """Hand the parked messages and effects of a key to the handler again, as `faust parked retry` does."""
        self._control(actor, key, "retry")

    def drop_parked(self, actor: Any, key: Any) -> None:
        """Drop all parked messages and the parked effect of a key, as `faust parked drop --all` does."""
        self._control(actor, key, "drop")

    # --- the world -------------------------------------------------------------------------------------------------

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
            raise UsageError(f"driver.advance_stream_time(): actor {definition.name} has no window store")
        tasks = () if self._worker is None else self._worker.tasks
        advance_windows((task for task in tasks if task.spec.name == definition.name), to_ms)
        self.advance(_LOOK_S)

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
        """Restart the worker, with another version of the app if one is given: what is new in it begins empty."""
        self._kill()
        if app is not None:
            self._app, self._setup = app, Setup(app)
        self._run(self._begin())

    # --- inside ----------------------------------------------------------------------------------------------------

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(coroutine)

    async def _begin(self) -> None:
        make_topics(self._cluster, self._setup, self._partitions)
        await self._restart()

    async def _restart(self, *, settle: bool = True) -> None:
        topics: Any = SimTopics(self._cluster)
        found = await self._setup.check_topics(topics)
        self._outputs = await self._setup.outputs(topics)
        changelogs = await topics.existing(self._setup.compacted(found))
        self._specs = [self._replaced(spec) for spec in await self._setup.specs(found, changelogs, topics)]
        self._failures.clear()
        self._start()
        if settle:
            await self._settle()

    def _replaced(self, spec: ActorSpec) -> ActorSpec:
        functions = {
            name: replace(effect, function=self._effects.get(name) or self._refusal(spec.name, name))
            for name, effect in spec.effect_functions.items()
        }
        # What a test posts is all there is: a source at its end is idle.
        feeds = None if spec.feeds is None else replace(spec.feeds, idle_after_s=0.0)
        return replace(spec, effect_functions=functions, feeds=feeds)

    def _refusal(self, actor: str, effect: str) -> Callable[..., Any]:
        """Return a function that makes the test fail, for an effect that the test doesn't fake."""

        async def refuse(*_: Any, **__: Any) -> None:
            error = UsageError(
                f"actor {actor} calls effect {effect}, and the test has no function for it: "
                f"ActorTestDriver(app, effects={{{effect}: function}}), or {{{effect}: {effect}}} to call it itself"
            )
            self._failures.append(error)
            raise error

        return refuse

    def _start(self) -> None:
        self._lives += 1
        self._process = Process(self._loop, f"worker-{self._lives}")
        self._process.spawn(self._main(), name="main").add_done_callback(self._ended)

    def _kill(self) -> None:
        process, self._process, self._worker = self._process, None, None
        if process is not None:
            process.kill()
            self._dead.append(process)
        for view in self._app.views:
            view.forget()

    def _ended(self, main: asyncio.Task[None]) -> None:
        error = None if main.cancelled() else main.exception()
        if error is not None:
            self._failures.append(error)

    async def _main(self) -> None:
        await self._open_views()
        stores, late = self._disk.cache(), LateSource()
        logs = FakeLogs(self._cluster, self._network)
        owners_topic = self._setup.owners_topic
        committer = Committer(self._writer(), self._app.actor_options.commit_max_bytes)
        self._worker = worker = Worker(
            self._specs,
            source=late,
            services=TaskServices(
                group=FakeGroupView(self._cluster, self._network),
                logs=logs,
                owners=FakeOwners(owners_topic, logs),
                restorer=Restorer(logs, self._clock, clock_skew_margin_ms=0),
                stores=stores,
                sink=late,
                clock=self._clock,
                resolve_output=self._outputs,
                encode_owner=lambda record: encode_owner(owners_topic, record),
                asks=self._make_asks(),
            ),
            task_settings=self._setup.task_settings(),
            settings=PatientSettings(_STOP_S, is_settled=self._is_settled),
            member=committer.member,
            task_log=committer.new_log,
            on_failure=self._failures.append,
        )
        late.source = source = LoneSource(
            self._cluster,
            [topic for spec in self._specs for topic in spec.topics],
            network=self._network,
            reads_committed=self._setup.exactly_once,
            room=worker.room,
            lost=worker.lost,
        )
        worker.assigned(Identity("driver", self._lives), source.partitions)
        await worker.run()

    async def _open_views(self) -> None:
        for view in self._app.views:
            logs = FakeTopicLogs(self._cluster, self._network)
            await view.open(ViewParts(logs, copy_stores(view.topic, None), self._clock, clock_skew_margin_ms=0))

    def _writer(self) -> Writer:
        name = f"{self._app.conf.id}:worker"
        if self._setup.exactly_once:
            return FakeWriter(self._cluster, self._network, transactional_id=name)
        return FakeOrderedWriter(self._cluster, self._network, name=name)

    async def _settle(self) -> None:
        """Wait until every record is handled and committed, and event time has come as far as it can.

        Raises:
            ActorsError: one can't be handled.
        """
        await self._handled()
        while self._worker is not None and await self._worker.looks.moved():
            await asyncio.sleep(_LOOK_S)
            await self._handled()
        for view in self._app.views:
            await view.caught_up()
            await view.callbacks_done()

    async def _handled(self) -> None:
        deadline_s = self._loop.time() + _PATIENCE_S
        while not self._is_settled():
            self._raise_failure()
            if self._loop.time() > deadline_s:
                raise ActorsError(f"nothing came of it in {_PATIENCE_S:.0f} virtual seconds: does a handler wait?")
            await asyncio.sleep(_LOOK_S)
        self._raise_failure()

    def _is_settled(self) -> bool:
        worker = self._worker
        if worker is None or len(worker.tasks) < len(self._specs) * self._partitions:
            return False
        return all(task.is_settled(self._end_of) for task in worker.tasks)

    async def _unless_failed(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the coroutine's result, or raise the error that stops a task or the worker meanwhile."""
        task = asyncio.create_task(coroutine)
        try:
            while not task.done():
                self._raise_failure()
                await asyncio.wait([task], timeout=_LOOK_S)
        finally:
            task.cancel()
        return task.result()

    def _make_asks(self) -> FakeRequests | None:
        if not self._setup.answers:
            return None
        return FakeRequests(self._cluster, self._network, topic=self._setup.reply_topic)

    def _end_of(self, source: TopicPartition) -> int:
        """Return the offset behind a partition's last record, which may have markers behind it."""
        history = self._cluster.log(source).history
        return next((record.offset + 1 for record in reversed(history) if record.is_committed), 0)

    def _raise_failure(self) -> None:
        if self._failures:
            raise self._failures[0]
        for task in self._worker.tasks if self._worker is not None else ():
            if task.halted_by is not None:
                raise task.halted_by

    def _control(self, actor: Any, key: Any, command: Literal["retry", "drop"]) -> None:
        definition = self._app.definition_of(actor)
        raw_key, source = self._place_of(definition, key)
        (commands,) = (spec.commands for spec in self._specs if spec.name == definition.name)
        for told in commands_to_all(definition, command, self._end_of(source)):
            self._produce(source.topic, raw_key, told, commands.headers(source.partition, raw_key, told), None, None)
        self.settle()

    def _place_of(self, definition: Any, key: Any) -> tuple[bytes, TopicPartition]:
        raw_key, topic = topic_codecs(definition.topic)[0].encode(key), definition.topic_name
        return raw_key, TopicPartition(topic, self._app.partitioner_for(topic).home(raw_key, self._partitions))

    def _produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | Mapping[str, bytes],
        partition: int | None,
        timestamp_ms: int | None,
    ) -> None:
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
        if partition is None:
            partition = 0 if key is None else self._app.partitioner_for(topic).home(key, self._partitions)

        async def produce() -> None:
            self._cluster.produce(TopicPartition(topic, partition), [(key, value, pairs, timestamp_ms)])

        self._run(produce())

    def _store(self, store: Any) -> Store[Any, Any]:
        if isinstance(store, Store):
            return store
        name = self._app.definition_of(store).name
        if name not in self._app.stores:
            raise UsageError(f"actor {name} has no state of its own: name one of its stores")
        return self._app.stores[name]
