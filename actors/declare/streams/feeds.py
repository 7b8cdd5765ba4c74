"""The feeds of each actor's event time: see `actors._core.task.feed_times`.

An actor has feeds if something goes by its event time: its windows, joins or timers by stream time, or those of an
actor downstream. Joins by a foreign key are circles, left to right to left, whose topics carry no time.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeAlias

from actors._core.task.feed_times import UNKNOWN_MS
from actors.declare.definition import ActorDefinition
from actors.errors import ConfigurationError, UsageError
from actors.runtime.clock import SECONDS_BEFORE_MS, Timestamps
from actors.runtime.message.context import Context
from actors.runtime.message.failures import wrong_timestamp
from actors.runtime.message.internal_messages import InternalRecord
from actors.runtime.spec import ActorSpec, Feeds
from actors.runtime.windows.closes import is_by_clock


def writers_of(app: Any) -> dict[str, tuple[str, ...]]:
    """Return by topic the names of its declared writers.

    Raises:
        ConfigurationError: a writer is no actor of the app.
    """
    names = {}
    for topic, writers in app.topic_writers.items():
        try:
            names[topic] = tuple(app.definition_of(writer).name for writer in writers)
        except UsageError as error:
            raise ConfigurationError(f"topic {topic}: writers=: {error}") from error
    return names


def feeds_of(
    actors: Mapping[str, ActorDefinition], writers: Mapping[str, Iterable[str]], *, idle_after_s: float
) -> dict[str, Feeds]:
    """Return by actor the feeds of those whose event time follows more than their own records.

    Args:
        actors: the actors by name.
        writers: by topic the actors that are declared as its writers.
        idle_after_s: how long a source has to be at its end before it follows the others.

    Raises:
        ConfigurationError: an actor is downstream of itself.
    """
    upstream = _upstream(actors, writers)
    _refuse_circles(upstream)
    timed = _timed(actors, upstream)
    downstream = {writer for name in timed for names in upstream[name].values() for writer in names}
    behind = _behind(actors, upstream)
    found = {}
    for name in timed:
        definition = actors[name]
        inputs = {
            topic: tuple(actors[writer].topic_name for writer in names) for topic, names in upstream[name].items()
        }
        has_readers = name in downstream
        is_many = len(definition.topic_names) > 1 or definition.order is not None
        if inputs or has_readers or is_many or name in behind:
            connected = _connected(name, actors, upstream, timed) if inputs or has_readers else ()
            found[name] = Feeds(inputs, frozenset(connected), has_readers, idle_after_s, behind.get(name))
    return found


_Upstream: TypeAlias = dict[str, dict[str, tuple[str, ...]]]
"""By actor and input, the actors that write there."""


def _upstream(actors: Mapping[str, ActorDefinition], writers: Mapping[str, Iterable[str]]) -> _Upstream:
    readers = {topic: definition.name for definition in actors.values() for topic in definition.topic_names}
    upstream: _Upstream = {}
    for name, definition in actors.items():
        made = {topic: readers[source] for topic, source in definition.sources.items() if source in readers}
        upstream[name] = {
            topic: tuple(writers[topic]) if topic in writers else (made[topic],)
            for topic in definition.topic_names
            if topic in writers or topic in made
        }
    for name, inputs in upstream.items():
        for topic in [
            topic for topic, names in inputs.items() if topic not in writers and _is_circle(name, names, upstream)
        ]:
            del inputs[topic]
    return upstream


def _is_circle(name: str, writers: Iterable[str], upstream: _Upstream) -> bool:
    """Return whether an actor is one of these writers, or upstream of one."""
    seen, waiting = set[str](), set(writers)
    while waiting:
        writer = waiting.pop()
        seen.add(writer)
        waiting |= {further for names in upstream[writer].values() for further in names} - seen
    return name in seen


def _refuse_circles(upstream: _Upstream) -> None:
    for name, inputs in upstream.items():
        if _is_circle(name, {writer for names in inputs.values() for writer in names}, upstream):
            raise ConfigurationError(
                f"actor {name} is downstream of itself, by topics that are declared with writers=…: its event time "
                "would wait for itself. Leave writers= out for one of these topics: its readers go by the times of its "
                "records then"
            )


def _timed(actors: Mapping[str, ActorDefinition], upstream: _Upstream) -> set[str]:
    """Return the actors in which something goes by event time, and all actors upstream of these."""
    timed: set[str] = set()
    waiting = {
        name
        for name, definition in actors.items()
        if definition.timers is not None
        or definition.order is not None
        or (definition.windows and not is_by_clock(definition.windows))
    }
    while waiting:
        name = waiting.pop()
        timed.add(name)
        waiting |= {writer for names in upstream[name].values() for writer in names} - timed
    return timed


def _behind(actors: Mapping[str, ActorDefinition], upstream: _Upstream) -> dict[str, int]:
    """Return by actor how many milliseconds behind the clock its sources follow it: the least of all downstream."""
    behind = {
        name: definition.close_when_idle // timedelta(milliseconds=1)
        for name, definition in actors.items()
        if definition.close_when_idle is not None
    }
    waiting = set(behind)
    while waiting:
        name = waiting.pop()
        for writer in {writer for names in upstream[name].values() for writer in names}:
            if behind[name] < behind.get(writer, math.inf):
                behind[writer] = behind[name]
                waiting.add(writer)
    return behind


def _connected(
    name: str,
    actors: Mapping[str, ActorDefinition],
    upstream: _Upstream,
    timed: set[str],
) -> set[str]:
    """Return the topics of all sources that an actor is connected with, upstream and downstream, its own included."""
    neighbours: dict[str, set[str]] = {one: set() for one in timed}
    for one in timed:
        for names in upstream[one].values():
            for writer in names:
                neighbours[one].add(writer)
                neighbours[writer].add(one)
    group, waiting = set[str](), {name}
    while waiting:
        one = waiting.pop()
        group.add(one)
        waiting |= neighbours[one] - group
    return {topic for one in group for topic in actors[one].topic_names if topic not in upstream[one]}


def checked(spec: ActorSpec) -> ActorSpec:
    """Return an actor that refuses records whose time can't be passed on: windows and timers downstream go by it.

    An actor with windows, or with `order="time"`, checks for itself.
    """
    if spec.feeds is None or not spec.feeds.has_readers or spec.windows or spec.order is not None:
        return spec
    return spec.with_handlers(_checking)


def _checking(handler: Callable[[Context, Any], Awaitable[None]]) -> Callable[[Context, Any], Awaitable[None]]:
    def handle(ctx: Context, value: Any) -> Awaitable[None]:
        # Hot: most records have a usable time.
        timestamps = None if ctx._state is None else ctx._state.tools.timestamps
        if timestamps is not None and not SECONDS_BEFORE_MS <= ctx._record.timestamp <= timestamps.believed_ms:
            _check(ctx, timestamps)
        return handler(ctx, value)

    return handle


def _check(ctx: Context, timestamps: Timestamps) -> None:
    record, source = ctx._record, ctx._source
    if isinstance(record, InternalRecord) and not record.is_input:
        return
    if record.timestamp < 0:
        reason = f"its timestamp is {record.timestamp}, and actors that read what comes of it go by it"
        raise wrong_timestamp(source, record, reason)
    timestamps.check(source, record, reached_ms=UNKNOWN_MS, harm="move the event time of all actors downstream")
