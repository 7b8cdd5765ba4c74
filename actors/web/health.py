"""`/health`, `/health/live`, `/health/startup` and `/health/ready`: what a monitor and an orchestrator ask.

They are open to all who reach the port: `/health` names actors, topics, partitions and offsets, no keys, no values and
no addresses; the others name counts.

**`/health`** is for people and monitors. It says `degraded` while partitions stand still, and names them. It also
names those that an operator has paused, which changes nothing of the rest.

**Live** is a worker whose event loop answers and whose dispatcher hasn't ended. Everything else recovers by itself, or
stays as it is in a new process: a broker that is away, a restore that takes long, a record that can't be handled.

**Startup** is over when the group has assigned partitions, or none, for the first time. All checks have passed then.

**Ready** is a member of the group whose coordinator and whose inputs' leaders answer, and whose partitions run. A
partition that is being taken over or restored isn't served by anybody, so its worker isn't ready, and a rolling update
waits for it before it takes the next worker away. A rebalance makes all workers not ready for a moment: a probe should
fail several times before it counts. A machine whose clock is wrong by more than `clock_skew_margin` isn't ready: what
goes by time there may be late. A broker counts as away after the session timeout: until then the group keeps the
worker's partitions for it, and no other worker could do its work.

A worker that stands still in front of some records is ready: to take it out of service would repair nothing. One all of
whose partitions stand still isn't, so that a release that can't handle its input stops at its first worker. A worker
that has nothing to do because there are more workers than partitions is ready, and so is one that keeps copies only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

import msgspec
from aiohttp import web

from actors._core.task.lifecycle import State
from actors._faust.app import App
from actors.runtime.task.task import Task
from actors.runtime.worker import Worker
from stores._core.printable import counted

PREFIX = "/health"
_STOPPED = frozenset((State.HALTED, State.REFUSED))
_SERVED = _STOPPED | {State.RUNNING, State.COMMITTING}
_HEADERS = {"Cache-Control": "no-store", "Content-Type": "application/json"}


def health_pages(app: App) -> web.Application:
    """Return the part of the web server that an orchestrator asks."""

    async def health(_: web.Request) -> web.Response:
        missing, stopped = what_is_missing(app), stopped_partitions(app)
        status = "unavailable" if missing else "degraded" if stopped else "ok"
        probes = {name: not look(app) for name, look in _PROBES.items()}
        paused = paused_partitions(app)
        content = {"status": status, **probes, "missing": missing, "stopped": stopped, "paused": paused}
        return _reply(content, is_there=not missing)

    async def probe(request: web.Request) -> web.Response:
        missing = _PROBES[request.path.rpartition("/")[2]](app)
        return _reply({"status": "unavailable" if missing else "ok", "missing": missing}, is_there=not missing)

    part = web.Application()
    part.router.add_get("", health)
    for name in _PROBES:
        part.router.add_get(f"/{name}", probe)
    return part


def what_is_dead(app: App) -> list[str]:
    """Return why the worker won't recover by itself, nothing if it may."""
    return ["the dispatcher ended"] if app.actor_service.is_broken else []


def what_is_to_start(app: App) -> list[str]:
    """Return what the worker's start waits for, nothing once the group has assigned its partitions."""
    return _until(app, lambda worker: worker.meters.rebalances > 0)


def what_is_missing(app: App) -> list[str]:
    """Return why the worker doesn't do all of its work at the moment, nothing if it does."""
    service = app.actor_service
    if service.is_broken or service.should_stop:
        return ["the worker is ending"]
    missing = _until(app, lambda worker: worker.is_assigned)
    if missing or not app.actors:
        return missing
    states = Counter(task.state for task in service.tasks)
    total = len(service.tasks)
    missing = [*_what_is_wrong_with_the_clock(app), *_what_is_silent(app, service.tasks)]
    missing += [
        f"{count} of {counted(total, 'partition')}: {state.value}"
        for state, count in states.items()
        if state not in _SERVED
    ]
    if total and states.keys() <= _STOPPED:
        missing.append(f"all {total} partitions stand still" if total > 1 else "the only partition stands still")
    return missing


def _until(app: App, has_partitions: Callable[[Worker], bool]) -> list[str]:
    """Return what the worker waits for until it has partitions, or, without actors, until all that it runs is open."""
    service = app.actor_service
    if not app.actors and service.is_open:
        return []
    if service.worker is None:
        return ["the worker is starting"]
    return [] if has_partitions(service.worker) else ["the group hasn't given out its partitions"]


def _what_is_wrong_with_the_clock(app: App) -> list[str]:
    clock, margin_s = app.actor_clock, app.actor_options.clock_skew_margin.total_seconds()
    off_ms = clock.off_ms
    if not off_ms:
        return []
    side, known = "ahead of" if off_ms > 0 else "behind", "the brokers'" if clock.has_heard else "its own past"
    return [
        f"this machine's clock is {abs(off_ms) / 1000:.0f} s {side} {known}, more than clock_skew_margin={margin_s:g} "
        "s: set it right (NTP)"
    ]


def _what_is_silent(app: App, tasks: Collection[Task]) -> list[str]:
    """Return which brokers haven't answered for longer than the session timeout."""
    silence, session_s = app.actor_service.silence, float(app.conf.broker_session_timeout)
    if silence is None:
        return []
    found = []
    if silence.group_s > session_s:
        found.append(f"the group's coordinator hasn't taken a heartbeat for {silence.group_s:.0f} s")
    # A partition without room isn't fetched.
    leaders_s = [
        silence.leader_s(source)
        for task in tasks
        for index, source in enumerate(task.sources)
        if task.inbox.has_room(index)
    ]
    silent_s = [silent_s for silent_s in leaders_s if silent_s > session_s]
    if silent_s:
        count = sum(len(task.sources) for task in tasks)
        found.append(
            f"{len(silent_s)} of {counted(count, 'partition')}: the leader hasn't answered for {max(silent_s):.0f} s"
        )
    return found


def stopped_partitions(app: App) -> list[Mapping[str, str | int | None]]:
    """Return the partitions that stand still, those of extensions too, without what their messages hold."""
    halted: list[Mapping[str, str | int | None]] = [
        {
            "actor": task.spec.name,
            "topic": task.spec.topic,
            "partition": task.partition,
            "offset": getattr(task.halted_by, "offset", None),
            "error": type(task.halted_by).__name__,
        }
        for task in app.actor_service.tasks
        if task.halted_by is not None and task.state in _STOPPED
    ]
    return [*halted, *(row for extension in app.extensions.values() for row in extension.stopped)]


def paused_partitions(app: App) -> list[dict[str, str | int]]:
    """Return the partitions that an operator has paused: nothing is wrong with them."""
    return [
        {"actor": task.spec.name, "topic": task.spec.topic, "partition": task.partition, "since_ms": task.paused.at_ms}
        for task in app.actor_service.tasks
        if task.paused is not None
    ]


_PROBES: Mapping[str, Callable[[App], list[str]]] = {
    "live": what_is_dead,
    "startup": what_is_to_start,
    "ready": what_is_missing,
}


def _reply(content: Mapping[str, object], *, is_there: bool) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), status=200 if is_there else 503, headers=_HEADERS)
