"""Functions that are called at the times of a cron expression: `@app.cron`.

Each is an actor with a topic of its own, which workers make with one partition. A timer of the key `{name}/next` is due
at the next time. It sends the run of that time to the key `{name}` and sets the following timer, in one commit: the
chain of times doesn't depend on what becomes of a run. The run is an ordinary record, which the function handles.

The worker that has taken the partition over sends the message that sets the first timer, or another one after the
expression was changed. If the timer is set, the message changes nothing, so it may come often.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from actors._core.logs import error_text
from actors.declare.calendar import Missed, Run
from actors.declare.declared import as_coroutine, wrapped
from actors.declare.definition import check_name
from actors.declare.names import cron_topic
from actors.errors import ConfigurationError
from actors.runtime.handlers.callables import check_callable, name_of
from actors.runtime.handlers.methods import add_timer
from actors.runtime.message.context import Context

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


def declare(app: Any, name: str | None, times: Sequence[Any], options: Mapping[str, Any], function: Run) -> Run:
    """Declare a function as a cron; see `App.cron`. `times` are its expression, time zone and what was missed.

    Raises:
        ConfigurationError: as `App.cron`.
    """
    called = name or name_of(function)
    check_name("cron", called)
    cron = Cron.of(called, *times)
    line = f"async def {name_of(function)}(ctx: Context, at: datetime) -> None"
    check_callable(function, f"cron {called}", takes=2, line=line)
    topic = app.topic(cron_topic(app.app_id, called), key_type=str, value_type=Tick, value_serializer="json")
    run = as_coroutine(function)
    handler = cron_handler(cron, called, topic, lambda ctx, at: wrapped(run, app.wraps)(ctx, at))
    app.actor(topic, name=called, timers=True, **options)(handler, named_by=function)
    add_timer(function)
    app.made_topics[topic.get_topic_name()] = 1
    app.first_messages[called] = (next_key(called), Tick())
    return function
