"""`/health`, `/health/live` and `/health/ready`: what a monitor and an orchestrator ask.

They are open to all who reach the port: `/health` names actors, topics and offsets, no keys and no values; the others
tell counts.

**`/health`** is for people and monitors. It says `degraded` while partitions stand still, and names them.

**Live** is a worker whose event loop answers and whose dispatcher hasn't ended. Everything else mends itself, or stays
as it is in a new process: a broker that is away, a restore that takes long, a record that can't be handled.

**Ready** is a member of the group whose partitions all run, or stand still for a reason that somebody has to look at. A
partition that is being taken over or restored isn't served by anybody, so its worker isn't ready, and a rolling update
waits for it before it takes the next worker away. A rebalance makes all workers not ready for a moment: a probe should
fail several times before it counts. A worker that stands still in front of a record is ready: to take it out of service
would mend nothing, and hold up the release that does. So is one that has nothing to do because there are more
workers than partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from actors._core.lifecycle import State

if TYPE_CHECKING:
    from actors._faust.app import App

PREFIX = "/health"
_STOPPED = frozenset((State.HALTED, State.REFUSED))
_SERVED = _STOPPED | {State.RUNNING, State.COMMITTING}
_HEADERS = {"Cache-Control": "no-store", "Content-Type": "application/json"}


def health_pages(app: App) -> web.Application:
    """Give the part of the web server that an orchestrator asks."""

    async def health(_: web.Request) -> web.Response:
        missing, stopped = what_is_missing(app), stopped_partitions(app)
        status = "unavailable" if missing else "degraded" if stopped else "ok"
        return _reply({"status": status, "missing": missing, "stopped": stopped}, is_there=not missing)

    async def live(_: web.Request) -> web.Response:
        return _reply_missing(what_is_dead(app))

    async def ready(_: web.Request) -> web.Response:
        return _reply_missing(what_is_missing(app))

    part = web.Application()
    part.router.add_get("", health)
    part.router.add_get("/live", live)
    part.router.add_get("/ready", ready)
    return part


def what_is_dead(app: App) -> list[str]:
    """Give why the worker won't recover by itself, nothing if it may."""
    return ["the dispatcher ended"] if app.actor_service.is_broken else []


def what_is_missing(app: App) -> list[str]:
    """Give why the worker doesn't do all of its work at the moment, nothing if it does."""
    service = app.actor_service
    if service.is_broken or service.should_stop:
        return ["the worker is ending"]
    worker = service.worker
    if worker is None:
        return ["the worker is starting"]
    if not worker.is_assigned:
        return ["the group hasn't given out its partitions"]
    states = Counter(task.state for task in worker.tasks if task.state not in _SERVED)
    return [f"{count} of {len(worker.tasks)} partitions: {state.value}" for state, count in states.items()]


def stopped_partitions(app: App) -> list[dict[str, str | int | None]]:
    """Give the partitions that stand still until somebody acts, without what their messages hold."""
    return [
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


def _reply_missing(missing: list[str]) -> web.Response:
    return _reply({"status": "unavailable" if missing else "ok", "missing": missing}, is_there=not missing)


def _reply(content: Mapping[str, object], *, is_there: bool) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), status=200 if is_there else 503, headers=_HEADERS)
