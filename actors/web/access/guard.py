"""The guard: it decides about each request before a handler runs.

sizes → caller and level → origin → room → body → handler → answer
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Iterator
from typing import Any

from aiohttp import hdrs, web
from aiohttp.log import server_logger
from prometheus_client import Counter

from actors._core.logs import escaping
from actors._core.outside import EXITS
from actors._faust.settings.secrets import Level
from actors.errors import NotOwnerError
from actors.runtime.cancellation import is_closed, running_task
from actors.web.access.callers import BROWSER_CHALLENGE, Callers, check_body, check_origin, is_link
from actors.web.access.door import Connections
from actors.web.access.levels import NEEDED, SAFE_METHODS, Caller
from actors.web.access.limits import (
    LARGE_BYTES,
    MAX_BODY_BYTES,
    MAX_BODY_S,
    MAX_HEADER_BYTES,
    MAX_PATH_BYTES,
    MAX_SEND_S,
    UNREADABLE,
    Reservation,
    Room,
)
from actors.web.access.settings import is_guarded
from actors.web.access.signature import APP
from actors.web.problems import Handler, Problem, answer_to

logger = escaping(logging.getLogger(__name__))

REFUSED = Counter("faust_actors_refused_requests", "Requests that the web server refused.", ("app", "reason"))
RESERVATION: web.RequestKey[Reservation] = web.RequestKey("actors_reservation", Reservation)
CALLER: web.RequestKey[Caller] = web.RequestKey("actors_caller", Caller)


class Guard:
    """Decides which requests reach their handlers; one per app.

    Args:
        app: the app with its settings.

    Attributes:
        callers: identifies callers.
        connections: the open connections of the web server.
        room: what requests hold.
    """

    def __init__(self, app: Any) -> None:
        self.connections = Connections()
        self.callers = Callers(app)
        self._app_id = str(app.conf.id)
        self.room = Room()

    def middleware(self, level: Level, *, is_for_browsers: bool) -> Any:
        """Return the middleware of a part: it admits requests, and turns errors into problems.

        Args:
            level: what the part's pages need.
            is_for_browsers: whether a browser asks its user for a token, and whether other sites may link to the part.
        """

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            running = running_task()
            try:
                with contextlib.ExitStack() as taken:
                    await self._enter(request, level, is_for_browsers, taken)
                    response = await handler(request)
                    if RESERVATION in request and isinstance(response, web.Response):
                        request[RESERVATION].settle(response.content_length or 0)
                    return await sent(request, response)
            except (asyncio.CancelledError, *EXITS):
                raise
            except BaseException as error:
                if is_closed(error, running):
                    raise
                return answer_to(error, request)

        return guard

    async def rest(self, request: web.Request, handler: Handler, *, is_open: bool) -> web.StreamResponse:
        """Answer a request to what others mounted: handlers get what passes unchanged, and their errors stay theirs.

        Compressed bodies are refused in any case, since nothing decompresses them.
        """
        try:
            check_encoding(request)
            if not is_open:
                self.admit(request, Level.READ)
        except Problem as problem:
            self._refused(request, problem)
            return problem.response_to(request)
        with self._busy(request):
            return await handler(request)

    async def _enter(
        self, request: web.Request, level: Level, is_for_browsers: bool, taken: contextlib.ExitStack
    ) -> None:
        # One of another app may have been at this address before.
        if request.headers.get(APP, self._app_id) != self._app_id:
            raise NotOwnerError(f"this is a worker of app {self._app_id}")
        try:
            _check_sizes(request)
            check_encoding(request)
            needed = self.admit(request, level)
            if needed > Level.OPEN:
                if request.method in SAFE_METHODS and not (is_for_browsers and is_link(request)):
                    check_origin(request, request[CALLER])
                await self._seat(request, needed, taken)
        except Problem as problem:
            if is_for_browsers and problem.status == 401 and self.callers.has_login:
                problem.headers = {str(hdrs.WWW_AUTHENTICATE): BROWSER_CHALLENGE}
            self._refused(request, problem)
            raise

    @contextlib.contextmanager
    def _busy(self, request: web.Request) -> Iterator[None]:
        """Keep a request's connection open while the block runs, however many others come."""
        address = None if request.transport is None else request.transport.get_extra_info("peername")
        self.connections.busy.add(address)
        try:
            yield
        finally:
            self.connections.busy.discard(address)

    async def _seat(self, request: web.Request, needed: Level, taken: contextlib.ExitStack) -> None:
        """Find room for the request, and read its body.

        Raises:
            Problem: the body is too large or too slow, or the client's share of the room is taken.
        """
        caller = request[CALLER]
        is_admin = needed == Level.ADMIN or (caller.is_known and caller.level == Level.ADMIN)
        reservation = taken.enter_context(
            self.room.enter(
                client_of(request, caller),
                is_reader=not (caller.is_worker or is_admin),
                has_body_to_come=request.can_read_body and not request.content.is_eof(),
            )
        )
        if request.can_read_body:
            await _read_body(request)
        await check_body(request)
        request[RESERVATION] = reservation
        if request.body_exists:
            reservation.take(len(await request.read()))
        taken.enter_context(self._busy(request))

    def admit(self, request: web.Request, level: Level) -> Level:
        """Return the level that a request needs, and identify its caller.

        Raises:
            Problem: the caller's level is too low.
        """
        match = request.match_info
        # A path that doesn't exist changes nothing: it needs the level of reads.
        needed = level if match.http_exception is not None else level_of(match.handler, request.method, level)
        if needed == Level.OPEN:
            return needed
        caller = request[CALLER] = self.callers.of(request)
        if caller.level < needed:
            raise self.callers.refusal(request, caller, needed)
        if request.method not in SAFE_METHODS:
            check_origin(request, caller)
        return needed

    def _refused(self, request: web.Request, problem: Problem) -> None:
        caller = request.get(CALLER)
        who = address_of(request) + (f" ({caller.name[:200]})" if caller is not None else "")
        REFUSED.labels(self._app_id, problem.kind).inc()
        # Never the query: it may hold a token.
        path = request.rel_url.raw_path[:200]
        logger.warning(
            "refused %s %s, asked by %s: %s %s", request.method[:20], path, who, problem.status, problem.kind
        )


def level_of(handler: Any, method: str, default: Level) -> Level:
    """Return what a handler needs: as it says, else the part's for methods that only read, else `ADMIN`."""
    if isinstance(handler, type):
        # aiohttp's class based views
        handler = getattr(handler, method.lower(), handler)
    marked = getattr(handler, NEEDED, None)
    if isinstance(marked, Level):
        return marked
    return default if method in SAFE_METHODS else Level.ADMIN


def check_encoding(request: web.Request) -> None:
    """Refuse a compressed body: decompressed it could have any size.

    Raises:
        Problem: 415.
    """
    given = request.headers.get(hdrs.CONTENT_ENCODING)
    if given is not None and given.strip().lower() not in ("", "identity"):
        detail, headers = f"Content-Encoding is {given!r}: send it as it is", {str(hdrs.ACCEPT_ENCODING): "identity"}
        raise Problem(415, "compressed-body", "The body is compressed", detail, headers=headers)


async def _read_body(request: web.Request) -> None:
    """Read the body before the handler runs: handlers don't wait for slow clients."""
    try:
        async with asyncio.timeout(MAX_BODY_S):
            content = await request.read()
    except TimeoutError:
        detail = f"it has {MAX_BODY_S:g} s to arrive"
        raise Problem(408, "slow-body", "The body took too long", detail) from None
    except web.HTTPRequestEntityTooLarge:
        raise _too_large() from None
    except (ConnectionError, web.RequestPayloadError):
        # The answer reaches nobody if the connection is gone.
        raise Problem(400, "cut-body", "The body ended early", "send as many bytes as Content-Length says") from None
    if len(content) > MAX_BODY_BYTES:
        raise _too_large()


async def sent(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Send a large answer while its request holds its place, so that unread answers don't pile up."""
    if isinstance(response, web.Response) and (response.content_length or 0) > LARGE_BYTES:
        try:
            # A client that has hung up is aiohttp's to notice.
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(MAX_SEND_S):
                    await response.prepare(request)
                    await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
    return response


def _check_sizes(request: web.Request) -> None:
    if len(request.raw_path) > MAX_PATH_BYTES:
        detail = f"path and query may have {MAX_PATH_BYTES} bytes: send what is long in a body, to _many or _ask"
        raise Problem(414, "long-path", "The path is too long", detail)
    headers = request.raw_headers
    if sum(map(len, itertools.chain.from_iterable(headers))) + 4 * len(headers) > MAX_HEADER_BYTES:
        raise Problem(431, "large-headers", "The headers are too large", f"all may have {MAX_HEADER_BYTES} bytes")
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise _too_large()


def _too_large() -> Problem:
    return Problem(
        413, "large-body", "The body is too large", f"it may have {MAX_BODY_BYTES} bytes: ask for fewer keys at once"
    )


def client_of(request: web.Request, caller: Caller) -> str:
    """Return the name under which a client's requests are counted."""
    return caller.name if caller.is_known else f"address {address_of(request)}"


def address_of(request: web.Request) -> str:
    """Return the client's address."""
    return request.remote or "a socket of this machine"


GUARD: web.AppKey[Guard] = web.AppKey("actors_guard", Guard)
PARTS: web.AppKey[dict[str, web.Application]] = web.AppKey("actors_parts", dict)
"""Applications that are mounted with `protect`, by prefix."""


def guard_of(app: Any, web_app: web.Application) -> Guard:
    """Return the guard of a web server, the same for all of its parts."""
    if GUARD not in web_app:
        web_app[GUARD] = Guard(app)
        server_logger.addFilter(UNREADABLE)
        web_app[PARTS] = {}
        app.extensions["web"].files.watch(web_app)
    return web_app[GUARD]


def protect(
    app: Any,
    web_app: web.Application,
    prefix: str,
    part: web.Application,
    *,
    level: Level = Level.READ,
    login: bool = False,
    watch: Any = None,
) -> None:
    """Mount a part of the web server behind the guard; a prefix that is mounted already stays as it is.

    Errors, a `Problem` or any other, become `application/problem+json`; redirects stay what they are. A body, 1 MiB at
    most, is here before the handler runs: `request.read()`, `json()` and a form's `post()` don't wait; multipart forms
    don't work.

    Args:
        app: the app.
        web_app: Faust's web server, as `on_webserver_init` gets it: `web.web_app`.
        prefix: of all its paths, such as `/dashboard`.
        part: routes, without the prefix. Its own middlewares run behind the guard.
        level: what GET and HEAD need. Other methods need `ADMIN`, unless the handler is marked with `needs`.
        login: have browsers ask their users for a token (HTTP Basic), and let other sites' links lead here.
        watch: a middleware that sees every request, and its answer also where it is refused.
    """
    guard = guard_of(app, web_app)
    if prefix in web_app[PARTS]:
        return
    web_app[PARTS][prefix] = part
    part.middlewares.insert(0, guard.middleware(level, is_for_browsers=login))
    if watch is not None:
        part.middlewares.insert(0, watch)
    web_app.add_subapp(prefix, part)


def caller_of(request: web.Request) -> Caller:
    """Return the caller of a request that has passed the guard."""
    caller: Caller | None = request.get(CALLER)
    return caller or Caller("nobody known", Level.OPEN)


def protect_rest(app: Any, web_app: web.Application) -> None:
    """Guard everything that isn't mounted with `protect`, if a setting says who may.

    GET and HEAD need `READ`, other methods `ADMIN`, also for paths that don't exist. Pages in `open_pages` are open.

    Args:
        app: the app.
        web_app: Faust's web server, not started.
    """
    guard, parts, open_pages = guard_of(app, web_app), web_app[PARTS], frozenset(app.actor_options.open_pages)
    asks = is_guarded(app)

    @web.middleware
    async def rest(request: web.Request, handler: Handler) -> web.StreamResponse:
        match = request.match_info
        if any(part in match.apps for part in parts.values()):
            return await handler(request)
        is_open = not asks or _is_preflight(match.handler) or _page(match) in open_pages
        return await guard.rest(request, handler, is_open=is_open)

    # Before the app's own middlewares.
    web_app.middlewares.insert(0, rest)


def _page(match: web.UrlMappingMatchInfo) -> str | None:
    """Return the path of a page as it was declared."""
    resource = match.route.resource
    return None if resource is None else resource.canonical


def _is_preflight(handler: Any) -> bool:
    """Return whether a browser only asks for `web_cors_options`, which it does without a token."""
    return getattr(handler, "__module__", "") == "aiohttp_cors.preflight_handler"
