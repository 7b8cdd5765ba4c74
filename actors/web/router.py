"""Messages and changes as a FastAPI router, for a program that has routes of its own: see `App.router`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from actors._faust.app import App
from actors._faust.settings.secrets import Level
from actors.errors import NotReadyError
from actors.web.access.callers import unauthorized
from actors.web.access.limits import MAX_BODY_BYTES, MAX_BODY_S
from actors.web.events.broadcast import Broadcast
from actors.web.events.followers import EventStream
from actors.web.events.routes import HEADERS, LAST_EVENT_ID, PARAMETERS, Broadcasts, followed_stores
from actors.web.messages.kinds import Addressee
from actors.web.messages.openapi import inlined, send_operation
from actors.web.messages.routes import MAX_OFFSET, SEND_PARAMETERS, STATUS_PARAMETERS, check_writable, sent_once
from actors.web.messages.sending import Messages, Sending
from actors.web.problems import HttpAnswer, Problem, bad_request, not_ready
from actors.web.queries.coding import KeyCoding, Parameters, last_key
from actors.web.queries.service import service_of

Endpoint = Callable[[Request], Awaitable[Response]]
_DIRECT: Any = SimpleNamespace(headers={})
"""A request that no other worker passed on."""


class Routes:
    """The routes of an app. With `check_tokens` they ask for the app's tokens, as a worker's web server does."""

    def __init__(self, app: App, *, check_tokens: bool) -> None:
        self._app = app
        self._messages = Messages(app)
        self._broadcasts = Broadcasts(app)
        self._check_tokens = check_tokens

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Any) -> AsyncIterator[None]:
        """Close what was opened at the end of the program that has the router."""
        try:
            yield
        finally:
            await self._broadcasts.close()

    def add_to(self, router: APIRouter) -> None:
        """Add all routes."""
        for actor, definition in sorted(self._app.actors.items()):
            for name, kind in sorted(Addressee.of(definition).kinds.items()):
                schemas: dict[str, Any] = {}
                operation = send_operation(actor, kind, schemas)
                options = {"openapi_extra": inlined(operation, schemas), "summary": operation["summary"]}
                sender = self._guarded(functools.partial(self._send, actor), Level.WRITE)
                router.add_api_route(f"/actors/{actor}/{{key:path}}/{name}", sender, methods=["POST"], **options)
        status = self._guarded(self._status, Level.READ)
        router.add_api_route("/actors/{actor}/_sent/{message}/{id}/{key:path}", status, include_in_schema=False)
        for store in followed_stores(self._app):
            stream = self._guarded(functools.partial(self._stream, store), Level.READ)
            router.add_api_route(f"/stores/{store}/events", stream, summary=f"Follow store {store}")
            router.add_api_route(f"/stores/{store}/{{key:path}}/events", stream, include_in_schema=False)

    def _guarded(self, endpoint: Endpoint, level: Level) -> Endpoint:
        async def guarded(request: Request) -> Response:
            try:
                if self._check_tokens:
                    self._check(request, level)
                return await endpoint(request)
            except NotReadyError as error:
                return _response(not_ready(str(error)).answer())
            except Problem as problem:
                return _response(problem.answer())

        return guarded

    def _check(self, request: Request, level: Level) -> None:
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        token = self._app.secrets.tokens.find(secret.strip()) if scheme.lower() == "bearer" else None
        if level == Level.WRITE:
            check_writable(self._app)
        if token is None:
            raise unauthorized("send one of the app's tokens as 'Authorization: Bearer TOKEN'")
        if token.level < level:
            raise Problem(403, "forbidden", "This isn't allowed to everybody", f"{token.name} may read only")

    async def _send(self, actor: str, request: Request) -> Response:
        encoding = Parameters(request.url.query, SEND_PARAMETERS).encoding()
        sending = Sending(_raw_path(request), sent_once(request.headers.getlist), encoding)
        base, named, *_ = sending.parts
        _check_slashes(base.endswith("/actors") and named == actor)
        return _response(await self._messages.send(sending, await _json_body(request)))

    async def _status(self, request: Request) -> Response:
        parameters = Parameters(request.url.query, STATUS_PARAMETERS)
        offset = parameters.number("offset", 0, MAX_OFFSET) or 0
        base, actor, _, message, id, key = _raw_path(request).rsplit("/", 5)
        _check_slashes(base.endswith("/actors") and unquote(actor) == request.path_params["actor"])
        service = service_of(self._app)
        spec, router = service.actor(actor), service.router
        raw_key = KeyCoding.of_actor(self._app, actor).key_of_url(last_key(key, 0), parameters.encoding())

        async def here(partitions: list[int]) -> HttpAnswer:
            (task,) = await router.reader.hold(spec, partitions)
            return await self._messages.answer_in(task, actor, message, id=id, key=raw_key, offset=offset)

        async def there(address: str, _: list[int]) -> HttpAnswer:
            path = f"/actors/{actor}/_sent/{message}/{id}/{key}?{request.url.query}"
            reply = await router.workers.relay("GET", path, address, None, lambda _: None)
            body: Any = reply.body
            return HttpAnswer(reply.status, body, dict(reply.headers))

        partition = spec.partitioner.home(raw_key, spec.partition_count)
        (answer,) = await router.scatter(_DIRECT, spec, (partition,), here=here, there=there)
        return _response(answer)

    async def _stream(self, store: str, request: Request) -> Response:
        parameters = Parameters(request.url.query, PARAMETERS)
        keys = _raw_path(request).rpartition(f"/stores/{store}/")[2].split("/")[:-1]
        _check_slashes(len(keys) < 2)
        position = request.headers.get(LAST_EVENT_ID) or parameters.text("from")
        broadcast, follower = await self._broadcasts.follow(
            store, keys[0] if keys else None, encoding=parameters.encoding(), position=position
        )

        return _Stream(broadcast, follower)


class _Stream(StreamingResponse):
    """A stream whose follower leaves when the client does, also before the first event."""

    def __init__(self, broadcast: Broadcast, follower: EventStream) -> None:
        super().__init__(follower.chunks(), headers=HEADERS)
        self._leave = functools.partial(broadcast.leave, follower)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


def router_of(app: App, *, check_tokens: bool, **options: Any) -> APIRouter:
    """Return a router with the routes of all actors and stores that are declared."""
    routes = Routes(app, check_tokens=check_tokens)
    router = APIRouter(lifespan=routes.lifespan, **options)
    routes.add_to(router)
    return router


def _check_slashes(are_quoted: bool) -> None:
    """Refuse a path whose key has slashes: its parts would be taken for the name of another actor."""
    if not are_quoted:
        raise bad_request("bad-key", "a slash in a key has to be written as %2F")


def _raw_path(request: Request) -> str:
    """Return the path as the client sent it, since a decoded key may have slashes."""
    raw: bytes = request.scope["raw_path"]
    return raw.partition(b"?")[0].decode("latin-1")


async def _json_body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" or request.headers.get("content-encoding", "identity") != "identity":
        raise Problem(415, "not-json", "The body has to be JSON", "send Content-Type: application/json, not compressed")
    body = b""
    try:
        async with asyncio.timeout(MAX_BODY_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise Problem(413, "large-body", "The body is too large", f"it may have {MAX_BODY_BYTES} bytes")
    except TimeoutError:
        raise Problem(408, "slow-body", "The body took too long", f"it has {MAX_BODY_S:g} s to arrive") from None
    return body


def _response(answer: HttpAnswer) -> Response:
    return Response(answer.body, answer.status, dict(answer.headers))
