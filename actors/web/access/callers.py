"""Tells who sent a request, and what the sender may: by token, client certificate, or address."""

from __future__ import annotations

import base64
import ipaddress
import ssl
import time
from collections.abc import Callable, Iterable
from functools import lru_cache

from aiohttp import hdrs, web
from yarl import URL

from actors.web.access.levels import Caller, Level
from actors.web.access.signature import HOP, PARTITIONS, SCHEME, SignedRequest, check, digest_of
from actors.web.access.subjects import subjects
from actors.web.access.tokens import Tokens
from actors.web.problems import Problem

FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP")
THIS_MACHINE = Caller("this machine", Level.ADMIN)
CHALLENGE = 'Bearer realm="faust-actors"'
BROWSER_CHALLENGE = 'Basic realm="faust-actors", charset="UTF-8"'
"""Has a browser ask its user for a password."""
BODY: web.RequestKey[str] = web.RequestKey("actors_body", str)
"""The digest that was signed of a request's body."""


class Callers:
    """Tells who sends requests.

    Args:
        tokens: the tokens that are taken.
        keys: gives the keys by which other workers sign what they ask.
        address: where other workers reach this one; "" if they can't.
        admins: subjects of client certificates that may administer.
        is_guarded: whether a token or a certificate is needed; False where there is none to ask for.
        is_unprotected: whether whoever reaches the port may read.
        is_local: whether the port can be reached from this machine only.
        wall_ms: gives the time that signatures are compared with, in Unix milliseconds.
    """

    def __init__(
        self,
        tokens: Tokens,
        *,
        keys: Callable[[], tuple[bytes, ...]],
        address: str,
        admins: Iterable[str],
        is_guarded: bool,
        is_unprotected: bool,
        is_local: bool,
        wall_ms: Callable[[], int],
    ) -> None:
        self._tokens = tokens
        self._keys = keys
        self._address = address
        self._admins = frozenset(admins)
        self._is_guarded = is_guarded
        self._is_unprotected = is_unprotected
        self._is_local = is_local
        self._wall_ms = wall_ms

    @property
    def has_login(self) -> bool:
        """Whether there is a token to log in with."""
        return len(self._tokens) > 0

    def of(self, request: web.Request) -> Caller:
        """Tell who sent a request.

        Raises:
            Problem: 401 for a token that isn't taken.
        """
        given = request.headers.getall(hdrs.AUTHORIZATION, [])
        if given:
            is_hop, password = HOP in request.headers, _password(given)
            if is_hop and given[0].startswith(f"{SCHEME} "):
                return self._by_signature(request, given)
            if password is None:
                return self._by_token(given, is_hop=is_hop)
            return self._by_password(password, is_hop=is_hop)
        certified = self._by_certificate(request)
        if certified is None:
            return self._by_address(request)
        # Whatever a worker may do itself: what it passes on is a question.
        if HOP in request.headers:
            return Caller(certified.name, Level.READ, is_known=True)
        return certified

    def _by_token(self, given: list[str], *, is_hop: bool) -> Caller:
        scheme, _, secret = given[0].partition(" ")
        if len(given) == 1 and scheme.lower() == "bearer":
            secret = secret.strip()
            if is_hop and self._tokens.find_hop(secret) is not None:
                # It is a bearer's: whoever had a worker of that release ask has it, so it counts as a reader's.
                return Caller("a worker of an older release", Level.READ, is_known=True, sends_itself=False)
            token = self._tokens.find(secret)
            if token is not None:
                level = Level.READ if is_hop else token.level
                return Caller(token.name, level, is_known=True, sends_itself=False)
        raise unauthorized("the token isn't one that this worker takes", wrong=True)

    def _by_signature(self, request: web.Request, given: list[str]) -> Caller:
        asked = SignedRequest(request.method, self._address, request.raw_path, request.headers.get(PARTITIONS, ""))
        try:
            request[BODY] = check(self._keys(), asked, ", ".join(given), self._wall_ms())
        except ValueError as error:
            raise unauthorized(str(error), wrong=True) from None
        return Caller("another worker", Level.READ, is_known=True, is_worker=True, sends_itself=False)

    def _by_password(self, password: str, *, is_hop: bool) -> Caller:
        token = self._tokens.find(password)
        if token is None:
            raise unauthorized("the password isn't a token that this worker takes", wrong=True)
        level = Level.READ if is_hop else token.level
        return Caller(f"login with {token.name}", level, is_known=True, is_browser=True)

    def _by_certificate(self, request: web.Request) -> Caller | None:
        certificate = request.get_extra_info("peercert")
        # The handshake looked at the dates; a connection may stay open for longer than its certificate holds.
        if not certificate or _ends_s(certificate["notAfter"]) < time.time():
            return None
        names = subjects(certificate)
        level = Level.ADMIN if not self._admins.isdisjoint(names) else Level.READ
        return Caller(f"certificate {names[0]}", level, is_known=True)

    def _by_address(self, request: web.Request) -> Caller:
        is_here = self._is_local and not self._is_guarded
        if is_here and names_this_machine(request.host) and not any(map(request.headers.__contains__, FORWARDED)):
            return THIS_MACHINE
        return Caller("nobody known", Level.READ if self._is_unprotected else Level.OPEN)

    def refusal(self, request: web.Request, caller: Caller, needed: Level) -> Problem:
        """Give why a caller may not do what needs a level that is above the caller's."""
        if caller.is_known:
            return Problem(
                403,
                "forbidden",
                "This isn't allowed to everybody",
                f"it takes an administrator, and {caller.name} may read only: use one of admin_tokens, or a "
                "certificate of admin_certificates",
            )
        if self._is_guarded:
            return unauthorized("send one of the worker's tokens as 'Authorization: Bearer TOKEN', or a certificate")
        if self._is_local and not self._is_unprotected:
            return Problem(
                403,
                "foreign-host",
                "The request isn't meant for this machine",
                f"Host is {request.host!r} or a proxy passed it on, and queries are for this machine: ask localhost, "
                "set query_tokens, or set queries_unprotected=True",
            )
        return Problem(
            403,
            "forbidden",
            "This isn't allowed to everybody",
            "queries_unprotected=True lets everybody read and nobody administer: set admin_tokens"
            if self._is_unprotected
            else "no setting says who may: set query_tokens, admin_tokens or web_client_ca",
        )


async def check_body(request: web.Request) -> None:
    """Refuse a body that isn't the one that was signed.

    Raises:
        Problem: 401.
    """
    if BODY in request and digest_of(await request.read()) != request[BODY]:
        raise unauthorized("the body isn't the one that was signed", wrong=True)


def unauthorized(detail: str, *, wrong: bool = False) -> Problem:
    """Give the problem of a request that doesn't say, or says wrongly, who sent it."""
    challenge = CHALLENGE + (', error="invalid_token"' if wrong else "")
    headers = {str(hdrs.WWW_AUTHENTICATE): challenge}
    return Problem(401, "unauthorized", "Who asks isn't known", detail, headers=headers)


def _password(given: list[str]) -> str | None:
    """Give the password of HTTP Basic, as RFC 7617 has it; None for another scheme, "" where there is none in it."""
    scheme, _, credentials = given[0].partition(" ")
    if len(given) > 1 or scheme.lower() != "basic":
        return None
    try:
        # Whatever the user's name is.
        return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


_ends_s = lru_cache(maxsize=64)(ssl.cert_time_to_seconds)


@lru_cache(maxsize=64)
def names_this_machine(host: str) -> bool:
    """Tell whether a Host header names the machine itself, whoever's name server said so."""
    try:
        name = URL.build(scheme="http", authority=host).host or ""
    except (ValueError, IndexError):
        return False
    return name == "localhost" or is_loopback(name)


def is_loopback(host: str) -> bool:
    """Tell whether a name or address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
