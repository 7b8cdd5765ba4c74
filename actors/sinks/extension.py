"""The sinks of an app: declares them, and runs them in a worker."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from actors._core.task.policy import OnError, Then
from actors._faust.extensions import StartingWorker, WorkerExtension
from actors.declare.arguments import check_span, single_topic
from actors.declare.definition import check_name
from actors.declare.names import own_prefix
from actors.errors import ConfigurationError
from actors.runtime.handlers.callables import is_generator, name_of
from actors.sinks.batch import Function, Target
from actors.sinks.partition import Sink
from actors.sinks.runner import SinkRunner

F = TypeVar("F", bound=Callable[..., Any])


class Sinks(WorkerExtension):
    """Writes topics to what isn't Kafka; nothing where the app declares no sink."""

    def __init__(self, app: Any, settings: dict[str, Any]) -> None:
        super().__init__(app, settings)
        self.declared: dict[str, Sink] = {}
        self.running: list[SinkRunner] = []

    @property
    def reads(self) -> Mapping[str, str]:
        """By consumer group, the topics of the sinks."""
        return {sink.group: str(sink.topic.get_topic_name()) for sink in self.declared.values()}

    @property
    def stopped(self) -> Sequence[Mapping[str, str | int | None]]:
        """The partitions whose last batch failed, with the offset where each waits."""
        return [row for runner in self.running for row in runner.stopped]

    def sink(
        self,
        topic: Any,
        *,
        to: Target | None,
        name: str | None,
        batch: int,
        within: timedelta,
        on_error: OnError | Then,
        tombstones: bool,
    ) -> Callable[[F], F]:
        """Declare a sink; see `actors.App.sink`.

        Raises:
            ConfigurationError: the name is taken, or an argument can't be meant.
        """
        source = single_topic("app.sink(): the topic", topic)

        def decorate(function: F) -> F:
            sink = name or name_of(function)
            check_name("sink", sink)
            owner = f"sink {sink} of {source}"
            if sink in self.declared:
                raise ConfigurationError(f"{owner}: there is a sink of this name: give this one another name=")
            if tombstones and to is None:
                raise ConfigurationError(f"{owner}: tombstones= goes with to=: a batch has all records in any case")
            check_span(owner, "within", within, may_be_zero=True)
            if not isinstance(batch, int) or batch < 1:
                raise ConfigurationError(f"{owner}: batch={batch!r} has to be a number of records, 1 or more")
            if to is not None and (inspect.iscoroutinefunction(function) or is_generator(function)):
                raise ConfigurationError(
                    f"{owner}: with to= the function returns the row of a record: write a plain `def` without `yield`"
                )
            if to is not None and not isinstance(to, Target):
                raise ConfigurationError(f"{owner}: to={to!r} has to be a target, as Postgres(...)")
            target = Function(function) if to is None else to
            target.prepare(sink)
            self.declared[sink] = Sink(
                name=sink,
                # No app's id has two dashes in a row, so that no other app has a group of this name.
                group=f"{own_prefix(self.app.app_id)}sink-{sink}",
                topic=topic,
                target=target,
                row=None if to is None else function,
                size=batch,
                within_s=within.total_seconds(),
                policy=_policy(owner, on_error),
                tombstones=tombstones,
            )
            return function

        return decorate

    async def start(self, worker: StartingWorker) -> None:
        """Begin to write, before the worker joins its own group."""
        for sink in self.declared.values():
            runner = SinkRunner(sink, worker)
            self.running.append(runner)
            await runner.start()

    async def stop(self) -> None:
        """Stop what is being written: what isn't finished is written again by the next owner."""
        running, self.running = self.running, []
        await asyncio.gather(*(runner.stop() for runner in running))


def _policy(owner: str, on_error: OnError | Then) -> OnError:
    policy = OnError(then=on_error) if isinstance(on_error, str) else on_error
    if policy.parks:
        raise ConfigurationError(
            f"{owner}: a sink can't park a record, it has no store: write "
            'on_error=OnError(then="skip", dead_letters=True), and what is refused goes to the dead letters'
        )
    if policy.retries:
        raise ConfigurationError(
            f"{owner}: OnError(retries={policy.retries}): a sink tries a failed batch again for as long as it "
            "takes, and a refused record never: leave it out"
        )
    return policy
