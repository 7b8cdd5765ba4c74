"""The worker that the test driver runs: its broker, disk and clock in memory, its life, and what it failed with."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from threading import RLock
from typing import Any, Self, TypeVar

from actors._faust.app import App
from actors._faust.setup import Setup
from actors._faust.views import copy_stores
from actors._kafka.admin.owners import KafkaOwners, encode_owner
from actors.errors import ActorsError, UsageError
from actors.ports import Identity, TopicPartition
from actors.runtime.committer import Committer
from actors.runtime.handlers.effect import Effect
from actors.runtime.replicas.view_replica import ViewParts
from actors.runtime.spec import ActorSpec, TaskServices
from actors.runtime.state.restore import Restorer
from actors.runtime.worker import LateSource, Worker
from actors.testing.driving import (
    Disk,
    LoneSource,
    ProgramClient,
    SimTopics,
    make_topics,
    record_stores,
)
from actors.testing.fakes.cluster import MemoryKafka
from actors.testing.fakes.direct import DirectNetwork
from actors.testing.fakes.ports import FakeClock, FakeGroupView, FakeLogs, FakeWriter
from actors.testing.fakes.processes import Process, ProcessLoop
from actors.testing.fakes.registry import FakeRegistry
from actors.testing.fakes.requests import FakeRequests
from actors.testing.fakes.views import FakeTopicLogs
from stores._core.printable import moment_ms

T = TypeVar("T")

LOOK_S = 0.01
IDLE_S, BUSY_S = 3600.0, 0.05
_PATIENCE_S = 3600.0
_STOP_S = 5.0


class Machine:
    """One worker of an app, with a broker, disk and clock in memory, on an event loop of its own; see the driver."""

    def __init__(
        self, app: App, *, partitions: int, effects: Mapping[Effect, Callable[..., Any]] | None, now: datetime | None
    ) -> None:
        epoch_ms = _epoch_ms(now)
        self._registry = FakeRegistry()
        self._app = self._with_registry(app)
        self._effects = {
            effect.name: function.function if isinstance(function, Effect) else function
            for effect, function in (effects or {}).items()
        }
        self._partitions = partitions
        self._setup = Setup(app)
        self._loop = ProcessLoop()
        self._lock = RLock()
        self._clock = FakeClock(self._loop, epoch_ms)
        self._disk = Disk()
        self._network = DirectNetwork()
        self._cluster = MemoryKafka(self._setup.group, epoch_ms=epoch_ms)
        self._topics: Any = SimTopics(self._cluster)
        self._client: ProgramClient | None = None
        self._worker: Worker | None = None
        self._process: Process | None = None
        self._dead: list[Process] = []
        self._failures: list[BaseException] = []
        self._lives = 0
        self._late: Counter[tuple[str, str]] = Counter()
        self._order: Random | None = None

    def _with_registry(self, app: App) -> App:
        """Have the app use the registry of the test in the place of one elsewhere."""
        if not isinstance(app.schema_registry, FakeRegistry):
            app.schema_registry = self._registry
        return app

    def __enter__(self) -> Self:
        try:
            self._run(self._begin(self._app, self._setup))
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
        if self._client is not None:
            self._client.withdraw()
        self._loop.end()
        for process in self._dead:
            process.reap()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._loop.is_running():
                coroutine.close()
                raise UsageError("a call of the test driver inside of a handler or effect: call it from the test")
            task = self._loop.create_task(coroutine)
            try:
                result: T = self._loop.run(task)
            except (SystemExit, KeyboardInterrupt) as error:
                self._exited(error)
                if not task.done():
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        self._loop.run(task)
                raise
            return result

    def _exited(self, error: BaseException) -> None:
        """Note that a handler or an effect has ended the process that it ran in."""
        self._kill()
        text = f"the worker has ended: {type(error).__name__}: {error}: start another with driver.restart()"
        self._failures.append(ActorsError(text))

    async def _on_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run what the program under test wants of the cluster, whichever loop the program is on."""
        return await coroutine if asyncio.get_running_loop() is self._loop else self._run(coroutine)

    async def _begin(self, app: App, setup: Setup) -> None:
        """Start a version of the app if a worker would. The former one stays the driver's if it is refused."""
        make_topics(self._cluster, setup, self._partitions)
        inputs = await setup.check_topics(self._topics)
        await record_stores(setup, inputs, self._cluster, self._network, self._clock)
        self._app, self._setup = app, setup
        if self._client is not None:
            self._client.withdraw()
        self._client = ProgramClient(
            setup,
            self._cluster,
            self._network,
            self._clock,
            on_loop=self._on_loop,
            unless_failed=self._unless_failed,
        )
        await self._restart()

    async def _restart(self, *, settle: bool = True) -> None:
        topics, setup = self._topics, self._setup
        inputs = await setup.check_topics(topics)
        self._outputs = await setup.outputs(topics)
        changelogs = await topics.existing(setup.compacted(inputs))
        self._specs = [self._replaced(spec) for spec in await setup.specs(inputs, changelogs, topics)]
        self._failures.clear()
        self._start()
        for name, (key, message) in self._app.first_messages.items():
            await self._app.tell(name, key, message)
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

    def _late_here(self) -> Counter[tuple[str, str]]:
        """Return the running worker's counts of late messages by actor and store."""
        meters = {} if self._worker is None else self._worker.meters.tasks
        counts: Counter[tuple[str, str]] = Counter()
        for task, its_meters in meters.items():
            for store, meter in its_meters.late.items():
                counts[task.actor, store] += meter.count
        return counts

    def _kill(self) -> None:
        self._late += self._late_here()
        process, self._process, self._worker = self._process, None, None
        if process is not None:
            process.kill()
            if self._client is not None:
                self._client.forget()
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
        own_id = f"{self._app.conf.id}:worker"
        writer = FakeWriter(self._cluster, self._network, transactional_id=own_id)
        committer = Committer(writer, self._app.actor_options.commit_max_bytes)
        self._worker = worker = Worker(
            self._specs,
            source=late,
            services=TaskServices(
                group=FakeGroupView(self._cluster, self._network),
                logs=logs,
                owners=KafkaOwners(owners_topic, logs),
                restorer=Restorer(logs, self._clock, clock_skew_margin_ms=0),
                stores=stores,
                sink=late,
                clock=self._clock,
                resolve_output=self._outputs,
                encode_owner=lambda record: encode_owner(owners_topic, record),
                asks=self._make_asks(),
            ),
            task_settings=self._setup.task_settings(own_id),
            revoke_s=_STOP_S,
            member=committer.member,
            task_log=committer.new_log,
            on_failure=self._failures.append,
            # A takeover doesn't end a poll: it is long only once there is nothing left to do.
            poll_s=lambda: IDLE_S if self._is_settled() else BUSY_S,
        )
        late.source = source = LoneSource(
            self._cluster,
            [topic for spec in self._specs for topic in spec.topics],
            network=self._network,
            room=worker.room,
            lost=worker.lost,
            order=lambda: self._order,
        )
        worker.assigned(Identity("driver", self._lives), source.partitions)
        await worker.run()

    async def _open_views(self) -> None:
        for view in self._app.views:
            logs = FakeTopicLogs(self._cluster, self._network)
            await view.open(ViewParts(logs, copy_stores(view.topic, None), self._clock, clock_skew_margin_ms=0))

    async def _settle(self) -> None:
        """Wait until every record is handled and committed, and event time has come as far as it can.

        Raises:
            ActorsError: one can't be handled.
        """
        await self._all_handled()
        while self._worker is not None and await self._worker.looks.moved():
            await self._all_handled()
        for view in self._app.views:
            await view.caught_up()
            await view.callbacks_done()
        self._order = None

    async def _all_handled(self) -> None:
        deadline_s = self._loop.time() + _PATIENCE_S
        while not self._is_settled():
            self._raise_failure()
            if self._loop.time() > deadline_s:
                raise ActorsError(f"nothing came of it in {_PATIENCE_S:.0f} virtual seconds: does a handler wait?")
            await asyncio.sleep(LOOK_S)
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
                await asyncio.wait([task], timeout=LOOK_S)
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


def last_full_hour() -> datetime:
    """Return when the clock begins by default."""
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0)


def _epoch_ms(now: datetime | None) -> int:
    """Return when the clock begins, in Unix milliseconds."""
    begin = last_full_hour() if now is None else now
    if not isinstance(begin, datetime) or begin.tzinfo is None or begin.timestamp() < 0:
        raise UsageError(f"now={now!r}: a time with its zone, since 1970: now=datetime(2031, 1, 1, tzinfo=UTC)")
    return moment_ms(begin)
