"""`/health/live` and `/health/ready`: what an orchestrator asks. Open to whoever reaches the port: they tell counts.

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
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from actors._core.lifecycle import State

if TYPE_CHECKING:
    from actors._faust.app import App

PREFIX = "/health"
_SERVED = frozenset((State.RUNNING, State.COMMITTING, State.HALTED, State.REFUSED))
_HEADERS = {"Cache-Control": "no-store", "Content-Type": "application/json"}


def health_pages(app: App) -> web.Application:
    """Give the part of the web server that an orchestrator asks."""

    async def live(_: web.Request) -> web.Response:
        return _reply(what_is_dead(app))

    async def ready(_: web.Request) -> web.Response:
        return _reply(what_is_missing(app))

    part = web.Application()
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


def _reply(missing: list[str]) -> web.Response:
    body = msgspec.json.encode({"status": "unavailable" if missing else "ok", "missing": missing})
    return web.Response(body=body, status=503 if missing else 200, headers=_HEADERS)
