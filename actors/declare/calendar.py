"""Functions that are called at the times of a cron expression: `@app.cron`.

Each is an actor with a topic of its own, which workers make with one partition. A timer of the key `{name}/next` is due
at the next time. It sends the run of that time to the key `{name}` and sets the following timer, in one commit: the
chain of times doesn't depend on what becomes of a run. The run is an ordinary record, which the function handles.

The worker that has taken the partition over sends the message that sets the first timer, or another one after the
expression was changed. If the timer is set, the message changes nothing, so it may come often.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar, get_args
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from actors._core.logs import error_text, escaping
from actors._core.task.policy import OnError, Then
from actors.declare.arguments import check_arguments
from actors.declare.declared import as_coroutine, wrapped
from actors.declare.definition import check_name
from actors.declare.names import own_prefix
from actors.errors import ConfigurationError
from actors.runtime.handlers.callables import check_callable, name_of
from actors.runtime.handlers.effect import Effect
from actors.runtime.handlers.methods import register_in
from actors.runtime.message.context import Context
from actors.runtime.task.task import Task

logger = escaping(logging.getLogger(__name__))

Missed = Literal["once", "each", "skip"]
Run = TypeVar("Run", bound=Callable[[Context, datetime], Any])
LOOK_S = 1.0
"""How often a worker looks whether it has taken a partition over."""
ON_TIME = timedelta(minutes=1)
"""How late a run may begin that isn't missed: expressions count in minutes."""
LONGEST_EXPRESSION = 200
_FIELDS = 5
_LOOKS_BACK = (timedelta(hours=2), timedelta(days=3), timedelta(days=90))


class Tick(msgspec.Struct, frozen=True):
    """A message to a cron: the run of a time, or None: look when the next one is."""

    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """The times of an expression in a time zone. Times are given and returned in UTC."""

    expression: str
    zone: ZoneInfo
    missed: Missed = "once"

    @classmethod
    def of(cls, name: str, expression: Any, tz: Any, missed: Any) -> Cron:
        """Check the arguments of `App.cron`.

        Raises:
            ConfigurationError: one can't be meant, or there is no time that the expression fits.
        """
        if missed not in get_args(Missed):
            raise ConfigurationError(f"cron {name}: missed={missed!r}: it is one of {', '.join(get_args(Missed))}")
        try:
            zone = ZoneInfo(tz)
        except (ValueError, TypeError, OSError, LookupError) as error:
            raise ConfigurationError(
                f'cron {name}: tz={tz!r}: it is the name of a time zone, as "Europe/Berlin"; a machine without a '
                f"database of time zones needs the package tzdata ({error_text(error)})"
            ) from error
        example = 'as "30 2 * * *" (minute, hour, day of the month, month, day of the week)'
        if not isinstance(expression, str) or len(expression.split()) != _FIELDS:
            raise ConfigurationError(f"cron {name}: {expression!r}: it is an expression of five fields, {example}")
        expression = " ".join(expression.split())
        if len(expression) > LONGEST_EXPRESSION:
            raise ConfigurationError(f"cron {name}: {expression[:40]}… has more than {LONGEST_EXPRESSION} characters")
        try:
            cron = cls(expression=expression, zone=zone, missed=missed)
            cron.after(datetime.now(UTC))
        except CronSimError as error:
            raise ConfigurationError(
                f"cron {name}: {expression!r} is no cron expression, or there is no such date: {error}. Write one "
                f"{example}"
            ) from error
        except StopIteration as error:
            raise ConfigurationError(
                f"cron {name}: no date of the next 50 years fits {expression!r}, so that it would never run"
            ) from error
        return cron

    @property
    def timer(self) -> str:
        """The name of the timer of its next time: a timer of another expression isn't its own."""
        return f"{self.expression} {self.zone.key}"

    def after(self, moment: datetime) -> datetime:
        """Return the next time behind a moment.

        Raises:
            StopIteration: there is none within 50 years.
        """
        return next(self._times(moment))

    def latest(self, due: datetime, until: datetime) -> datetime:
        """Return the last time that isn't behind `until`, `due` or a later one."""
        for span in _LOOKS_BACK:
            if until - span <= due:
                break
            # Few steps in place of all since `due`, where a minute's expression was missed for months.
            latest = self._last(until - span, until)
            if latest is not None:
                return latest
        return self._last(due, until) or due

    def begin(self, due: datetime, now: datetime) -> tuple[datetime | None, datetime]:
        """Return the time to run, None if there is none, and the next time; `due` is the time that has come."""
        if self.missed == "each":
            return due, self.after(due)
        latest = self.latest(due, now)
        is_missed = self.missed == "skip" and now - latest > ON_TIME
        return None if is_missed else latest, self.after(max(now, latest))

    def _last(self, behind: datetime, until: datetime) -> datetime | None:
        last = None
        for moment in self._times(behind):
            if moment > until:
                break
            last = moment
        return last

    def _times(self, behind: datetime) -> Iterator[datetime]:
        # In an hour that comes twice, the library begins with the first of the two.
        for moment in CronSim(self.expression, behind.astimezone(self.zone)):
            time = moment.astimezone(UTC)
            if time > behind:
                yield time


class Crons:
    """The crons of an `App`."""

    @check_arguments
    def cron(
        self: Any,
        expression: str,
        *,
        tz: str = "UTC",
        missed: Missed = "once",
        name: str | None = None,
        stores: Sequence[Any] = (),
        effects: Sequence[Effect] = (),
        on_error: OnError | Then = "stop",
    ) -> Callable[[Run], Run]:
        """Call a function at the times of a cron expression: once over all workers, however often these die.

        It is called as `(ctx, at)`, where `at` is the time, in the time zone `tz`, and `ctx.key` the name. It is an
        actor of its own, with the topic `{app id}--{name}-cron`, which workers make.

        Args:
            expression: minute, hour, day of the month, month and day of the week, as "30 2 * * *" or "0 9 * * MON-FRI".
            tz: the name of a time zone. A time that the clocks skip is run right after the gap; one that comes twice is
                run the first time. Expressions whose minute or hour begins with a star go on in steps of real time.
            missed: of times that passed while no worker could run them: "once" runs the last one, "each" runs all in
                order, "skip" none of those that are more than a minute ago.
            name: as of `actor`; the function's by default.
            stores: as of `actor`; the function's key is its name.
            effects: likewise.
            on_error: likewise. Later times go on in any case, except behind a run that stops or is parked.

        Raises:
            ConfigurationError: no date fits the expression, or an argument can't be meant.
        """

        def decorate(function: Run) -> Run:
            called = name or name_of(function)
            check_name("cron", called)
            cron = Cron.of(called, expression, tz, missed)
            line = f"async def {name_of(function)}(ctx: Context, at: datetime) -> None"
            check_callable(function, f"cron {called}", takes=2, line=line)
            topic = self.topic(cron_topic(self.app_id, called), key_type=str, value_type=Tick, value_serializer="json")
            run = as_coroutine(function)
            handler = cron_handler(cron, called, topic, lambda ctx, at: wrapped(run, self.wraps)(ctx, at))
            options: dict[str, Any] = {"stores": stores, "effects": effects, "on_error": on_error}
            self.actor(topic, name=called, timers=True, **options)(handler)
            register_in(function)
            # It is what other calls name the actor by, and what has the functions of its effects.
            methods = replace(self.actors[called].methods, declared=function)
            self.actors[called] = replace(self.actors[called], declared=function, methods=methods)
            self.crons[called], self.made_topics[topic.get_topic_name()] = cron, 1
            return function

        return decorate


def cron_topic(app_id: str, name: str) -> str:
    """Return the topic of a cron."""
    return f"{own_prefix(app_id)}{name}-cron"


def next_key(name: str) -> str:
    """Return the key that has the timer of the next time; no cron has such a name."""
    return f"{name}/next"


def cron_handler(
    cron: Cron, name: str, topic: Any, function: Callable[[Context, datetime], Awaitable[Any]]
) -> Callable[[Context, Tick], Awaitable[None]]:
    """Return the handler of a cron's actor."""

    async def handle(ctx: Context, tick: Tick) -> None:
        if tick.at is not None:
            await function(ctx, tick.at.astimezone(cron.zone))
        elif ctx.timer is None and ctx.scheduled(cron.timer) is None:
            ctx.schedule(Tick(), at=cron.after(_moment(ctx.now_ms)), name=cron.timer)
        elif ctx.timer == cron.timer:
            run, following = cron.begin(_moment(ctx.timestamp_ms), _moment(ctx.now_ms))
            if run is not None:
                # With the time of now: one that lies far back could outlive the topic's retention at once.
                ctx.send(topic, key=name, value=Tick(run), timestamp_ms=ctx.now_ms)
            ctx.schedule(Tick(), at=following, name=cron.timer)

    return handle


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


async def follow_crons(
    crons: Collection[str],
    tasks: Callable[[], Collection[Task]],
    tell: Callable[[str, str, Tick], Awaitable[None]],
) -> None:
    """Have each cron look at its timer when this worker has taken its partition over; never returns."""
    epochs: dict[str, int] = {}
    while True:
        for task in list(tasks()):
            name = task.spec.name
            if name in crons and task.partition == 0 and task.epoch and epochs.get(name) != task.epoch:
                try:
                    await tell(name, next_key(name), Tick())
                except Exception as error:
                    text = "cron %s: the message that sets its first timer can't be sent, and is sent again: %s"
                    logger.warning(text, name, error_text(error))
                else:
                    epochs[name] = task.epoch
        await asyncio.sleep(LOOK_S)
