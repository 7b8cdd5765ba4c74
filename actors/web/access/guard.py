"""The one door: every request to a part that is mounted with `protect` passes it before its handler runs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from aiohttp import hdrs, web
from aiohttp.log import server_logger

from actors.web.access.callers import BROWSER_CHALLENGE, Callers, check_body
from actors.web.access.door import Connections
from actors.web.access.levels import SAFE_METHODS, Caller, Level, level_of
from actors.web.access.limits import (
    LARGE_BYTES,
    MAX_BODY_BYTES,
    MAX_BODY_S,
    MAX_HEADER_BYTES,
    MAX_PATH_BYTES,
    MAX_SEND_S,
    UNREADABLE,
    Rates,
    RefusalLog,
)
from actors.web.access.origin import check_origin, is_link
from actors.web.access.places import Places
from actors.web.access.secret import worker_keys
from actors.web.access.settings import is_guarded, is_local, own_address
from actors.web.access.signature import PURPOSE
from actors.web.problems import Handler, Problem, problems

CALLER: web.RequestKey[Caller] = web.RequestKey("actors_caller", Caller)


class Room(NamedTuple):
    """The places of one kind of client.

    Attributes:
        bodies: for requests whose body is on its way.
        requests: for those that are all here, until their answer is sent.
    """

    bodies: Places
    requests: Places


class Guard:
    """Decides about every request; one per app.

    Args:
        app: the app with its settings.

    Attributes:
        connections: those of the web server.
    """

    def __init__(self, app: Any) -> None:
        conf, options = app.conf, app.actor_options
        self.tokens = app.access_files.tokens
        self.connections = Connections()
        self.callers = Callers(
            self.tokens,
            keys=lambda: worker_keys(app, PURPOSE),
            address=own_address(app),
            admins=options.admin_certificates,
            is_guarded=is_guarded(app),
            is_unprotected=bool(options.queries_unprotected),
            is_local=is_local(conf),
            wall_ms=app.actor_clock.wall_ms,
        )
        self._rates = Rates(options.queries_per_second, 2 * options.queries_per_second)
        self._log = RefusalLog()
        self._readers = Room(Places("bodies on their way", 128, 48), Places("requests", 256, 128))
        self._workers = Room(Places("bodies on their way", 32, 32), Places("requests", 128, 128))
        self._admins = Room(Places("bodies on their way", 16, 16), Places("requests", 32, 32))

    def middleware(self, level: Level, *, is_for_browsers: bool) -> Any:
        """Give the middleware of a part.

        Args:
            level: what its pages need.
            is_for_browsers: whether a browser is to ask its user for a token, and may come by another site's link.
        """

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            with contextlib.ExitStack() as taken:
                try:
                    _check_sizes(request)
                    check_encoding(request)
                    needed = self.admit(request, level)
                    if needed > Level.OPEN:
                        if request.method in SAFE_METHODS and not (is_for_browsers and is_link(request)):
                            self._check_origin(request)
                        await self._seat(request, needed, taken)
                except Problem as problem:
                    if is_for_browsers and problem.status == 401 and self.callers.has_login:
                        problem.headers = {str(hdrs.WWW_AUTHENTICATE): BROWSER_CHALLENGE}
                    self.refused(request, problem)
                    raise
                return await sent(request, await handler(request))

        return guard

    @contextlib.contextmanager
    def busy(self, request: web.Request) -> Iterator[None]:
        """Keep a request's connection open while the block runs, however many others come."""
        address = None if request.transport is None else request.transport.get_extra_info("peername")
        self.connections.busy.add(address)
        try:
            yield
        finally:
            self.connections.busy.discard(address)

    async def _seat(self, request: web.Request, needed: Level, taken: contextlib.ExitStack) -> None:
        """Have the body here, and give the request its place.

        Raises:
            Problem: the body is too large or too slow, or all places are taken.
        """
        caller = request[CALLER]
        is_admin = needed == Level.ADMIN or (caller.is_known and caller.level == Level.ADMIN)
        room = self._workers if caller.is_worker else self._admins if is_admin else self._readers
        client = client_of(request, caller)
        if request.can_read_body:
            with contextlib.nullcontext() if request.content.is_eof() else room.bodies.place(client):
                await _read_body(request)
        await check_body(request)
        taken.enter_context(room.requests.place(client))
        taken.enter_context(self.busy(request))

    # --- what is looked at behind the sizes, in this order ---------------------------------------------------------

    def admit(self, request: web.Request, level: Level) -> Level:
        """Give the level that a request needs and has.

        Raises:
            Problem: it has less, or is one too many.
        """
        match = request.match_info
        # Where nothing is found there is nothing to change either.
        needed = level if match.http_exception is not None else level_of(match.handler, request.method, level)
        if needed == Level.OPEN:
            return needed
        try:
            caller = self.callers.of(request)
        except Problem:
            self._count(f"address {address_of(request)}")
            raise
        request[CALLER] = caller
        if not caller.is_worker and (caller.is_known or caller.level < Level.ADMIN):
            self._count(client_of(request, caller))
        if caller.level < needed:
            raise self.callers.refusal(request, caller, needed)
        if request.method not in SAFE_METHODS:
            self._check_origin(request)
        return needed

    def _check_origin(self, request: web.Request) -> None:
        caller = request[CALLER]
        if caller.sends_itself:
            check_origin(request, caller)

    def _count(self, client: str) -> None:
        wait_s = self._rates.take(client)
        if wait_s:
            raise Problem(
                429,
                "too-many-requests",
                "Too many questions within a second",
                f"{client} asks more often than queries_per_second allows: ask for many keys at once, or later",
                retry_after_ms=math.ceil(wait_s * 1000),
            )

    def refused(self, request: web.Request, problem: Problem) -> None:
        """Write down that a request was refused."""
        caller = request.get(CALLER)
        who = address_of(request) + (f" ({caller.name[:200]})" if caller is not None else "")
        # Never the query: somebody may have put a token there.
        what = f"{request.method[:20]} {request.rel_url.raw_path[:200]}"
        self._log.write(who, what, f"{problem.status} {problem.kind}")


def check_encoding(request: web.Request) -> None:
    """Refuse a compressed body: unpacked it could be of any size.

    Raises:
        Problem: 415.
    """
    given = request.headers.get(hdrs.CONTENT_ENCODING, "")
    if given.strip().lower() not in ("", "identity"):
        raise Problem(
            415,
            "compressed-body",
            "The body is compressed",
            f"Content-Encoding is {given!r}: send it as it is",
            headers={str(hdrs.ACCEPT_ENCODING): "identity"},
        )


async def _read_body(request: web.Request) -> None:
    """Have the body here before a handler runs: handlers don't wait for slow clients."""
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
    """Send a large answer while its request has its place: a client that doesn't read must not pile answers up."""
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
        raise Problem(
            414,
            "long-path",
            "The path is too long",
            f"path and query may have {MAX_PATH_BYTES} bytes: send what is long in a body, to _many or _ask",
        )
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
    """Give whose requests are counted together."""
    return caller.name if caller.is_known else f"address {address_of(request)}"


def address_of(request: web.Request) -> str:
    """Give where a request comes from."""
    return request.remote or "a socket of this machine"


GUARD: web.AppKey[Guard] = web.AppKey("actors_guard", Guard)
PARTS: web.AppKey[dict[str, web.Application]] = web.AppKey("actors_parts", dict)
"""What is mounted with `protect`, by its prefix."""


def guard_of(app: Any, web_app: web.Application) -> Guard:
    """Give the guard of a web server, the same for all of its parts."""
    if GUARD not in web_app:
        web_app[GUARD] = Guard(app)
        server_logger.addFilter(UNREADABLE)
        web_app[PARTS] = {}
        app.access_files.watch(web_app)
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
    part.middlewares.insert(0, problems)
    if watch is not None:
        part.middlewares.insert(0, watch)
    web_app.add_subapp(prefix, part)


def caller_of(request: web.Request) -> Caller:
    """Tell who sent a request that has passed the guard."""
    caller: Caller | None = request.get(CALLER)
    return caller or Caller("nobody known", Level.OPEN)
