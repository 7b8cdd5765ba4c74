"""The routes of messages, beside those of queries under `/actors`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aiohttp import web

from actors._faust.app import App
from actors.web.access import Level, needs
from actors.web.access.guard import RESERVATION
from actors.web.access.limits import JSON_GROWTH
from actors.web.messages.openapi import description
from actors.web.messages.sending import Messages, Sending
from actors.web.problems import Problem, bad_request, response_of
from actors.web.queries.coding import Parameters, json_body, key_in_path
from actors.web.queries.server import QueryRoutes
from actors.web.queries.service import service_of

SEND_PARAMETERS = frozenset({"encoding"})
STATUS_PARAMETERS = frozenset({"encoding", "offset"})
MAX_OFFSET = 2**63 - 1
SINGLE = ("Idempotency-Key", "Prefer")


class MessageRoutes:
    """Takes messages; one per web server."""

    def __init__(self, app: App, queries: QueryRoutes) -> None:
        self._app = app
        self._queries = queries
        self._messages = Messages(app)

    @needs(Level.WRITE)
    async def send(self, request: web.Request) -> web.StreamResponse:
        """Send a message to an actor."""
        check_writable(self._app)
        encoding = Parameters(request, SEND_PARAMETERS).encoding()
        body = await json_body(request)
        request[RESERVATION].take(JSON_GROWTH * len(body))
        sending = Sending(request.rel_url.raw_path, sent_once(lambda name: request.headers.getall(name, [])), encoding)
        return response_of(await self._messages.send(sending, body))

    async def status(self, request: web.Request) -> web.StreamResponse:
        """Return the answer to a message that was sent."""
        actor, name, id = (request.match_info[part] for part in ("actor", "message", "id"))
        spec = service_of(self._app).actor(actor)
        parameters = Parameters(request, STATUS_PARAMETERS)
        offset = parameters.number("offset", 0, MAX_OFFSET) or 0
        key = self._queries.keys_of(spec).key_of_url(key_in_path(request, 6), parameters.encoding())
        partition = spec.partitioner.home(key, spec.partition_count)
        router = service_of(self._app).router

        async def here(_: list[int]) -> web.StreamResponse:
            (task,) = await router.reader.hold(spec, (partition,))
            return response_of(await self._messages.answer_in(task, actor, name, id=id, key=key, offset=offset))

        return await self._queries.at_the_owner(router, request, spec, partition, here, None)


def add_messages(app: App, queries: QueryRoutes, part: web.Application) -> None:
    """Add the routes of messages to the part that has the queries."""
    routes = MessageRoutes(app, queries)
    part.router.add_post(r"/{actor}/{key:[^/]*}/{message}", routes.send)
    part.router.add_get(r"/{actor}/_sent/{message}/{id}/{key:[\s\S]*}", routes.status)
    queries.descriptions.append(description)


def check_writable(app: App) -> None:
    """Refuse messages unless a setting says who may send them."""
    if not app.actor_options.write_tokens:
        detail = "no setting says who may send messages to actors: set write_tokens (or WRITE_TOKENS)"
        raise Problem(403, "writing-is-off", "Messages aren't taken by HTTP", detail)


def sent_once(values_of: Callable[[str], Sequence[str]]) -> dict[str, str]:
    """Return the headers of a message by lower-case name; `Problem` for one that is there twice."""
    headers = {name: values_of(name) for name in SINGLE}
    for name, values in headers.items():
        if len(values) > 1:
            raise bad_request("bad-header", f"the header {name} is there twice")
    return {name.lower(): values[0] for name, values in headers.items() if values}
