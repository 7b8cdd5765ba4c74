"""How a browser shows a token: a page that takes one, and a cookie that stands for it from then on.

The cookie is signed with the token and says nothing else than until when: nothing is kept here, any worker with the
same tokens takes it, and it ends with its token. A page can't read it, and other sites can't have it sent.
"""

from __future__ import annotations

import asyncio
import html
import math
import time
from collections.abc import Callable
from urllib.parse import parse_qsl, unquote

from aiohttp import hdrs, web
from yarl import URL

from actors._faust.access.callers import COOKIE
from actors._faust.access.levels import Level, needs
from actors._faust.access.limits import MAX_BODY_S, Rates
from actors._faust.access.origin import check_origin
from actors._faust.access.tokens import SESSION_S, Tokens
from actors._faust.queries.problems import NO_STORE, Problem, bad_request

TRIES_PER_S = 1.0
TRIES = 10
HEADERS = {
    **NO_STORE,
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "same-origin",
}
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Log in</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 22rem; margin: 15vh auto 0; padding: 0 1rem; }}
input, button {{ font: inherit; padding: .5rem; width: 100%; box-sizing: border-box; margin-top: .5rem; }}
</style>
<main><h1>Log in</h1>{said}
<form method="post" action="{action}">
<label>Token<input type="password" name="token" autocomplete="current-password" required autofocus></label>
<input type="hidden" name="next" value="{next}">
<button>Log in</button>
</form></main></html>
"""
MAX_FORM_BYTES = 4096


class Login:
    """The login of one part.

    Args:
        prefix: the part's.
        tokens: the tokens that are taken.
        refused: is told of each login that fails.
    """

    def __init__(self, prefix: str, tokens: Tokens, refused: Callable[[web.Request, Problem], None]) -> None:
        self._prefix = prefix
        self._tokens = tokens
        self._refused = refused
        self._rates = Rates(TRIES_PER_S, TRIES)

    def add_routes(self, part: web.Application) -> None:
        """Add the pages."""
        part.router.add_get("/login", self.page)
        part.router.add_post("/login", self.log_in)
        part.router.add_post("/logout", self.log_out)

    def helps(self, request: web.Request) -> bool:
        """Tell whether it is a person's browser that asks, and could log in."""
        asks = request.method in ("GET", "HEAD") and "text/html" in request.headers.get(hdrs.ACCEPT, "")
        return asks and len(self._tokens) > 0

    def redirect(self, request: web.Request) -> web.HTTPSeeOther:
        """Send a browser to the login, and back afterwards."""
        where = URL.build(path=f"{self._prefix}/login", query={"next": request.rel_url.raw_path_qs})
        return web.HTTPSeeOther(where, headers=NO_STORE)

    @needs(Level.OPEN)
    async def page(self, request: web.Request) -> web.StreamResponse:
        """Show the form."""
        return self._form(self._checked(request.query.get("next")), "")

    @needs(Level.OPEN)
    async def log_in(self, request: web.Request) -> web.StreamResponse:
        """Take a token, and give the cookie."""
        try:
            self._admit(request)
            given = await self._fields(request)
        except Problem as problem:
            self._refused(request, problem)
            raise
        token = self._tokens.find(given.get("token", "").strip())
        where = self._checked(given.get("next"))
        if token is None:
            self._refused(request, Problem(401, "unauthorized", "", "a login with a wrong token"))
            return self._form(where, "<p role=alert>This token isn't one that the worker takes.</p>", status=401)
        answer = web.Response(status=303, headers={**NO_STORE, hdrs.LOCATION: where})
        answer.set_cookie(
            COOKIE,
            token.session(time.time()),
            max_age=SESSION_S,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=request.secure,
        )
        return answer

    @needs(Level.OPEN)
    async def log_out(self, request: web.Request) -> web.StreamResponse:
        """Take the cookie away; it would be good until it ends, if somebody else had it."""
        check_origin(request, None)
        answer = web.Response(status=303, headers={**NO_STORE, hdrs.LOCATION: f"{self._prefix}/login"})
        answer.del_cookie(COOKIE, path="/", httponly=True, samesite="Strict", secure=request.secure)
        return answer

    def _admit(self, request: web.Request) -> None:
        check_origin(request, None)
        wait_s = self._rates.take(request.remote or "")
        if wait_s:
            raise Problem(
                429,
                "too-many-requests",
                "Too many logins",
                "wait before the next try",
                retry_after_ms=math.ceil(wait_s * 1000),
            )
        if (request.content_length or 0) > MAX_FORM_BYTES:
            raise Problem(413, "large-body", "The body is too large", f"a login may have {MAX_FORM_BYTES} bytes")

    async def _fields(self, request: web.Request) -> dict[str, str]:
        """Give the form's fields."""
        try:
            async with asyncio.timeout(MAX_BODY_S):
                raw = await request.content.read(MAX_FORM_BYTES + 1)
                while len(raw) <= MAX_FORM_BYTES and not request.content.at_eof():
                    raw += await request.content.read(MAX_FORM_BYTES + 1 - len(raw))
        except TimeoutError:
            raise Problem(408, "slow-body", "The body took too long", f"it has {MAX_BODY_S:g} s to arrive") from None
        if len(raw) > MAX_FORM_BYTES:
            raise Problem(413, "large-body", "The body is too large", f"a login may have {MAX_FORM_BYTES} bytes")
        try:
            return dict(parse_qsl(raw.decode(errors="replace"), max_num_fields=10))
        except ValueError:
            raise bad_request("bad-body", "a login has a token, and where to go afterwards") from None

    def _form(self, where: str, said: str, *, status: int = 200) -> web.Response:
        text = PAGE.format(said=said, action=html.escape(f"{self._prefix}/login"), next=html.escape(where))
        return web.Response(text=text, status=status, content_type="text/html", headers=HEADERS)

    def _checked(self, where: str | None) -> str:
        """Give where to go after the login: into the part, never to another site."""
        if where is None or not where.isprintable() or "\\" in where or not where.isascii():
            return self._prefix
        # Browsers take %2e for a dot.
        path = unquote(where.partition("?")[0])
        inside = path == self._prefix or path.startswith(self._prefix + "/")
        return where if inside and ".." not in path else self._prefix
