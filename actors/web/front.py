"""The port that several workers of one machine share (`worker --processes N`), beside a port of its own for each.

The supervisor holds the listening sockets, so that the port stays open while workers are replaced. A worker accepts
connections there from when it has joined the group until it leaves. Any worker answers: it asks the owners for what it
doesn't own, at their own ports, and all of them for the metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from yarl import URL

from actors.errors import ActorsError
from actors.web.access.door import Connections, Door
from actors.web.problems import Problem
from actors.web.workers import WorkerClient

LABEL = "process"
_UP = "faust_actors_process_up"
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """One of several workers, and the port that they share.

    Attributes:
        index: the worker's number, from 0.
        count: how many workers there are.
        port: the shared port.
        sockets: the file descriptors of the listening sockets.
    """

    index: int
    count: int
    port: int
    sockets: Sequence[int] = ()

    def own_port(self, index: int) -> int:
        """Return the port of one of the workers."""
        return self.port + 1 + index

    def is_asked(self, request: web.Request) -> bool:
        """Return whether a request came to the shared port."""
        name = None if request.transport is None else request.transport.get_extra_info("sockname")
        return name is not None and bool(name[1] == self.port)

    def others(self, address: str) -> dict[str, str]:
        """Return the addresses of the other workers by their numbers, from this one's."""
        own = URL(address)
        return {str(n): str(own.with_port(self.own_port(n))) for n in range(self.count) if n != self.index}


_ATTRIBUTE = "actors_front"


def set_front(app: Any, front: Front) -> None:
    """Make an app's worker one of several, before its web server is made."""
    setattr(app, _ATTRIBUTE, front)


def front_of(app: Any) -> Front | None:
    """Return what this worker shares with others, None if it is the only one."""
    found: Front | None = getattr(app, _ATTRIBUTE, None)
    return found


async def listen(app: Any, front: Front, runner: web.AppRunner, connections: Connections) -> None:
    """Accept connections at the shared port while the worker can answer. Runs until it is cancelled.

    Args:
        app: the app.
        front: the shared port.
        runner: the worker's web server, set up.
        connections: counts the connections.
    """

    def is_open() -> bool:
        return not app.actors or (app.actor_service.worker is not None and not app.actor_service.should_stop)

    while not is_open() or (app.actors and not app.actor_service.worker.is_assigned):  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_S)
    sites = []
    for descriptor in front.sockets:
        door = Door(fileno=descriptor)
        door.connections = connections
        sites.append(web.SockSite(runner, door, ssl_context=app.conf.web_ssl_context))
        await sites[-1].start()
    while is_open():  # noqa: ASYNC110  the worker's states have no event
        await asyncio.sleep(_LOOK_S)
    for site in sites:
        # Closes this process's descriptor; the supervisor's stays open.
        await site.stop()


class Gathered(Collector):
    """The metrics of several workers, each sample with its worker's number."""

    def __init__(self, texts: Mapping[str, bytes | None]) -> None:
        self._texts = texts

    def collect(self) -> Iterable[Metric]:
        """Return all metrics. A worker that didn't answer, or with what isn't metrics, is down."""
        found: dict[str, Metric] = {}
        up = GaugeMetricFamily(_UP, "Whether the process answered with its metrics.", labels=(LABEL,))
        for process, text in self._texts.items():
            families = None if text is None else _families(text)
            up.add_metric((process,), float(families is not None))
            for family in families or ():
                kept = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                kept.samples += [one._replace(labels={LABEL: process, **one.labels}) for one in family.samples]
        return [up, *found.values()]


def _families(text: bytes) -> list[Metric] | None:
    """Return the metrics of a text, None if it isn't one."""
    try:
        return list(text_string_to_metric_families(text.decode(errors="replace")))
    except (ValueError, IndexError, KeyError, AttributeError):
        return None


async def gather(front: Front, workers: WorkerClient, address: str, own: bytes, page: str) -> Gathered:
    """Return the metrics of all workers.

    Args:
        front: the shared port.
        workers: asks the others.
        address: this worker's.
        own: this worker's metrics.
        page: the path of the others' metrics.
    """
    others = front.others(address)

    async def ask(other: str) -> bytes | None:
        with contextlib.suppress(ActorsError, Problem, aiohttp.ClientError, TimeoutError, OSError):
            return await workers.fetch("GET", other, page)
        return None

    texts = await asyncio.gather(*(ask(other) for other in others.values()))
    of_all = {**dict(zip(others, texts, strict=True)), str(front.index): own}
    return Gathered({process: of_all[process] for process in sorted(of_all, key=int)})
