"""The one door: every request to a part that is mounted with `protect` passes it before its handler runs."""

from __future__ import annotations

import asyncio
import itertools
import math
from typing import Any, NamedTuple

from aiohttp import web
from aiohttp.log import server_logger

from actors._faust.access.callers import Callers
from actors._faust.access.levels import SAFE_METHODS, Caller, Level, level_of
from actors._faust.access.limits import (
    MAX_BODY_BYTES,
    MAX_BODY_S,
    MAX_HEADER_BYTES,
    MAX_IN_FLIGHT,
    MAX_PATH_BYTES,
    UNREADABLE,
    Rates,
    RefusalLog,
)
from actors._faust.access.login import Login
from actors._faust.access.origin import check_origin
from actors._faust.access.settings import is_guarded, is_local
from actors._faust.queries.problems import Handler, Problem, problems

CALLER: web.RequestKey[Caller] = web.RequestKey("actors_caller", Caller)


class Pass(NamedTuple):
    """That a sender was let in to read, with what a request says beside its line.

    Attributes:
        client: whose requests are counted, None if nobody's are.
        version: of the tokens by which it was decided.
    """

    client: str | None
    version: int


PASS: web.RequestKey[Pass] = web.RequestKey("actors_pass", Pass)


class Guard:
    """Decides about every request; one per app.

    Args:
        app: the app with its settings.
    """

    def __init__(self, app: Any) -> None:
        conf, options = app.conf, app.actor_options
        self.tokens = app.access_files.tokens
        self.callers = Callers(
            self.tokens,
            admins=options.admin_certificates,
            is_guarded=is_guarded(app),
            is_unprotected=bool(options.queries_unprotected),
            is_local=is_local(conf),
        )
        self._rates = Rates(options.queries_per_second, 2 * options.queries_per_second)
        self._log = RefusalLog()
        self._in_flight = 0

    def middleware(self, level: Level, login: Login | None) -> Any:
        """Give the middleware of a part.

        Args:
            level: what its pages need.
            login: where browsers log in, None if they can't.
        """

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                _check_sizes(request)
                needed = self.admit(request, level)
            except Problem as problem:
                self.refused(request, problem)
                if login is not None and problem.status == 401 and login.helps(request):
                    raise login.redirect(request) from None
                raise
            if needed == Level.OPEN:
                return await handler(request)
            if self.is_full:
                busy = Problem(
                    503, "busy", "Too many questions at once", f"{MAX_IN_FLIGHT} are waiting", retry_after_ms=1000
                )
                self.refused(request, busy)
                raise busy
            self.enter()
            try:
                if request.can_read_body:
                    await self._read_body(request)
                return await handler(request)
            finally:
                self.leave()

        return guard

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
        client = None
        if not caller.is_worker and (caller.is_known or caller.level < Level.ADMIN):
            client = caller.name if caller.is_known else f"address {address_of(request)}"
            self._count(client)
        if caller.level < needed:
            raise self.callers.refusal(request, caller, needed)
        if not caller.has_cookie:
            # A login ends with time.
            request[PASS] = Pass(client, self.tokens.version)
        if caller.sends_itself and request.method not in SAFE_METHODS:
            check_origin(request, caller)
        return needed

    @property
    def is_full(self) -> bool:
        """Whether so many wait that the next is refused."""
        return self._in_flight >= MAX_IN_FLIGHT

    def again(self, allowed: Pass) -> bool:
        """Let a sender in again, on the same connection and with the same headers; False where `admit` has to look.

        `is_full` is the caller's to look at.
        """
        if allowed.version != self.tokens.version:
            return False
        return allowed.client is None or not self._rates.take(allowed.client)

    def take_back(self, allowed: Pass) -> None:
        """Undo what `again` has counted: `admit` will count it."""
        if allowed.client is not None:
            self._rates.give_back(allowed.client)

    def enter(self) -> None:
        """Count a question that waits, until `leave`."""
        self._in_flight += 1

    def leave(self) -> None:
        """End what `enter` began."""
        self._in_flight -= 1

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

    async def _read_body(self, request: web.Request) -> None:
        """Have the body here before a handler runs: handlers don't wait for slow clients."""
        try:
            async with asyncio.timeout(MAX_BODY_S):
                content = await request.read()
        except TimeoutError:
            problem = Problem(408, "slow-body", "The body took too long", f"it has {MAX_BODY_S:g} s to arrive")
        except web.HTTPRequestEntityTooLarge:
            problem = _too_large()
        else:
            if len(content) <= MAX_BODY_BYTES:
                return
            problem = _too_large()
        self.refused(request, problem)
        raise problem

    def refused(self, request: web.Request, problem: Problem) -> None:
        """Write down that a request was refused."""
        caller = request.get(CALLER)
        who = address_of(request) + (f" ({caller.name[:200]})" if caller is not None else "")
        # Never the query: somebody may have put a token there.
        what = f"{request.method[:20]} {request.rel_url.raw_path[:200]}"
        self._log.write(who, what, f"{problem.status} {problem.kind}")


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
        login: send browsers that aren't logged in to a page of ours, `{prefix}/login`.
        watch: a middleware that sees every request, and its answer also where it is refused.
    """
    guard = guard_of(app, web_app)
    if prefix in web_app[PARTS]:
        return
    web_app[PARTS][prefix] = part
    page = Login(prefix, guard.tokens, guard.refused) if login else None
    part.middlewares.insert(0, guard.middleware(level, page))
    part.middlewares.insert(0, problems)
    if watch is not None:
        part.middlewares.insert(0, watch)
    if page is not None:
        page.add_routes(part)
    web_app.add_subapp(prefix, part)


def pass_of(request: web.BaseRequest) -> Pass | None:
    """Give what counts for further requests with the same headers on the same connection; None where each is new."""
    return request.get(PASS)


def caller_of(request: web.Request) -> Caller:
    """Tell who sent a request that has passed the guard."""
    caller: Caller | None = request.get(CALLER)
    return caller or Caller("nobody known", Level.OPEN)
