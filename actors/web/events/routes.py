"""The routes of events under `/stores`, for any web framework and for a worker's web server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from aiohttp import web

from actors._faust.app import App
from actors._faust.setup import connection
from actors._faust.views import margin_ms
from actors._kafka.consume.logs import KafkaLogs
from actors.declare.host import changelog_topic
from actors.errors import ActorsError
from actors.ports import TopicLogs
from actors.runtime.rows.stores import RowStore
from actors.runtime.windows.joins import JoinStore
from actors.runtime.windows.store import WindowStore
from actors.web.access import guard_of, protect
from actors.web.access.door import Connections
from actors.web.access.guard import RESERVATION
from actors.web.access.limits import MAX_SEND_S
from actors.web.events.broadcast import Broadcast
from actors.web.events.followers import EventStream
from actors.web.events.positions import StreamPosition
from actors.web.problems import NO_STORE, Problem, bad_request, not_ready
from actors.web.queries.coding import Parameters, StoreCoding, last_key
from actors.web.queries.rows import RowCoding
from actors.web.queries.service import service_of

PREFIX = "/stores"
PARAMETERS = frozenset({"encoding", "from"})
HEADERS = {**NO_STORE, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
LAST_EVENT_ID = "Last-Event-ID"


class Broadcasts:
    """The broadcasts of an app's stores in this process."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._broadcasts: dict[str, Broadcast] = {}

    async def follow(
        self,
        store: str,
        raw_key: str | None,
        *,
        encoding: str | None = None,
        position: str | None = None,
        take: Callable[[int], None] = lambda _: None,
    ) -> tuple[Broadcast, EventStream]:
        """Begin to follow a store, or a key of it, which is percent-encoded.

        Raises:
            Problem: there is no such store, or it can't be followed.
        """
        broadcast, coding = self._broadcast(store)
        below = coding.store.below
        keys = RowCoding(below, coding) if isinstance(below, RowStore) else coding
        key = None if raw_key is None else keys.key_of_url(last_key(raw_key, 0), encoding)
        at = None if position is None else StreamPosition.parse(position)

        def home(partitions: int) -> int | None:
            if key is None or coding.store.placement == "task":
                return None
            return self._app.partitioner_of_store(store).home(key, partitions)

        try:
            return broadcast, await broadcast.follow(key, home, at, take)
        except ActorsError as error:
            raise not_ready(str(error)) from error

    async def close(self) -> None:
        """End all streams. May be called twice."""
        broadcasts, self._broadcasts = list(self._broadcasts.values()), {}
        await asyncio.gather(*(broadcast.close() for broadcast in broadcasts))

    def _broadcast(self, name: str) -> tuple[Broadcast, StoreCoding]:
        stores = followed_stores(self._app)
        coding = stores.get(name)
        if coding is None:
            names = ", ".join(sorted(stores)) or "none"
            detail = f"store {name!r} isn't one of those that can be followed: {names}"
            raise Problem(404, "unknown-store", "There is no such store", detail)
        if name not in self._broadcasts:
            topic, clock = changelog_topic(self._app, name), self._app.actor_clock
            self._broadcasts[name] = Broadcast(topic, coding, self._connect, clock, margin_ms(self._app))
        return self._broadcasts[name], coding

    async def _connect(self) -> TopicLogs:
        return await KafkaLogs.open(connection(self._app))


def followed_stores(app: App) -> Mapping[str, StoreCoding]:
    """Return the stores that can be followed: those that actors declare, and the states of class actors."""
    return {
        store.name: StoreCoding(store)
        for actor in app.actors.values()
        for store in actor.stores
        if not store.name.startswith(f"{actor.name}-")
        and not any(store.name == other.name and isinstance(other, JoinStore | WindowStore) for other in actor.windows)
    }


class EventRoutes:
    """Streams of changes; one per web server."""

    def __init__(self, app: App, broadcasts: Broadcasts, connections: Connections) -> None:
        self._app = app
        self._broadcasts = broadcasts
        self._connections = connections

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Follow a store, or a key of it."""
        # A worker that starts or stops follows nothing.
        service_of(self._app)
        parameters, reservation = Parameters(request, PARAMETERS), request[RESERVATION]
        key = request.rel_url.raw_path.split("/")[3:-1]
        positions = request.headers.getall(LAST_EVENT_ID, ())
        if len(positions) > 1:
            raise bad_request("bad-header", f"the header {LAST_EVENT_ID} is there twice")
        broadcast, follower = await self._broadcasts.follow(
            request.match_info["store"],
            key[0] if key else None,
            encoding=parameters.encoding(),
            position=positions[0] if positions else parameters.text("from"),
            take=reservation.settle,
        )
        self._connections.streams += 1
        try:
            # A stream holds little, and for long.
            reservation.stream()
            response = web.StreamResponse(headers=HEADERS)
            await response.prepare(request)
            await _write(request, response, follower)
        finally:
            self._connections.streams -= 1
            broadcast.leave(follower)
        return response


async def _write(request: web.Request, response: web.StreamResponse, follower: EventStream) -> None:
    # A client that has hung up is no error.
    with contextlib.suppress(ConnectionError):
        try:
            async for chunk in follower.chunks():
                async with asyncio.timeout(MAX_SEND_S):
                    await response.write(chunk)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()


def mount_events(app: App, web_app: web.Application, broadcasts: Broadcasts) -> None:
    """Add the routes to a web server."""
    routes, part = EventRoutes(app, broadcasts, guard_of(app, web_app).connections), web.Application()
    part.router.add_get("/{store}/events", routes.stream)
    part.router.add_get(r"/{store}/{key:[^/]*}/events", routes.stream)
    protect(app, web_app, PREFIX, part)
