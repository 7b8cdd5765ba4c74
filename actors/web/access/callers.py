"""Identifies callers by token, client certificate, signature of another worker, or address.

A browser adds some credentials by itself, whichever site's page makes the request: a password, a certificate, or that
it runs on this machine. Such a request must state that it comes from the worker's own pages: see `check_origin`.
"""

from __future__ import annotations

import base64
import ssl
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from aiohttp import hdrs, web
from yarl import URL

from actors._faust.settings.secrets import Level, Tokens, worker_keys
from actors.web.access.levels import SAFE_METHODS, Caller
from actors.web.access.settings import is_guarded, is_local, is_loopback, own_address
from actors.web.access.signature import HOP, PARTITIONS, PURPOSE, SCHEME, SignedRequest, check, digest_of
from actors.web.problems import Problem

FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP")
THIS_MACHINE = Caller("this machine", Level.ADMIN)
CHALLENGE = 'Bearer realm="faust-actors"'
BROWSER_CHALLENGE = 'Basic realm="faust-actors", charset="UTF-8"'
"""Makes a browser ask its user for a password."""
OWN_SITES = (None, "same-origin", "none")
"""Values of Sec-Fetch-Site for the worker's own pages and what a user typed; None from programs and over plain HTTP."""
BODY: web.RequestKey[str] = web.RequestKey("actors_body", str)
"""The digest of the body that another worker signed."""


class Callers:
    """Identifies callers, and their levels, by the settings of an app."""

    def __init__(self, app: Any) -> None:
        self._tokens: Tokens = app.secrets.tokens
        self._app = app
        self._address = own_address(app)
        self._admins = frozenset(app.actor_options.admin_certificates)
        self._is_guarded = is_guarded(app)
        self._is_unprotected = bool(app.actor_options.queries_unprotected)
        self._is_local = is_local(app.conf)

    @property
    def has_login(self) -> bool:
        """True if there is a token to log in with."""
        return len(self._tokens) > 0

    def of(self, request: web.Request) -> Caller:
        """Return the caller of a request.

        Raises:
            Problem: 401, the token, password or signature isn't accepted.
        """
        given = request.headers.getall(hdrs.AUTHORIZATION, [])
        if given:
            is_hop = HOP in request.headers
            if is_hop and given[0].startswith(f"{SCHEME} "):
                return self._by_signature(request, given)
            return self._by_token(given, is_hop=is_hop)
        certified = self._by_certificate(request)
        if certified is None:
            return self._by_address(request)
        # A request that a worker passes on only reads, whatever the worker itself may do.
        if HOP in request.headers:
            return Caller(certified.name, Level.READ, is_known=True)
        return certified

    def _by_token(self, given: list[str], *, is_hop: bool) -> Caller:
        scheme, _, secret = given[0].partition(" ")
        kind, secret = scheme.lower() if len(given) == 1 else "", secret.strip()
        is_password = kind == "basic"
        secret = _password(secret) if is_password else secret if kind == "bearer" else ""
        token = self._tokens.find(secret)
        if token is None:
            what = "password isn't a token" if is_password else "token isn't one"
            raise unauthorized(f"the {what} that this worker takes", wrong=True)
        return Caller(
            f"login with {token.name}" if is_password else token.name,
            Level.READ if is_hop else token.level,
            is_known=True,
            sends_itself=is_password,
            is_browser=is_password,
        )

    def _by_signature(self, request: web.Request, given: list[str]) -> Caller:
        asked = SignedRequest(request.method, self._address, request.raw_path, request.headers.get(PARTITIONS, ""))
        try:
            keys, now_ms = worker_keys(self._app, PURPOSE), self._app.actor_clock.wall_ms()
            request[BODY] = check(keys, asked, ", ".join(given), now_ms)
        except ValueError as error:
            raise unauthorized(str(error), wrong=True) from None
        return Caller("another worker", Level.READ, is_known=True, is_worker=True, sends_itself=False)

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
        """Return the error for a caller whose level is too low."""
        if caller.is_known:
            what, tokens = "takes an administrator", "admin_tokens, or a certificate of admin_certificates"
            if needed == Level.WRITE:
                what, tokens = "sends a message", "write_tokens"
            detail = f"it {what}, and {caller.name} may read only: use one of {tokens}"
        elif self._is_guarded:
            return unauthorized("send one of the worker's tokens as 'Authorization: Bearer TOKEN', or a certificate")
        elif self._is_unprotected:
            detail = "queries_unprotected=True lets everybody read and nobody administer: set admin_tokens"
        elif self._is_local:
            return Problem(
                403,
                "foreign-host",
                "The request isn't meant for this machine",
                f"Host is {request.host!r} or a proxy passed it on, and queries are for this machine: ask localhost, "
                "set query_tokens, or set queries_unprotected=True",
            )
        else:
            detail = "no setting says who may: set query_tokens, admin_tokens or web_client_ca"
        return Problem(403, "forbidden", "This isn't allowed to everybody", detail)


async def check_body(request: web.Request) -> None:
    """Check the body of a request that another worker signed.

    Raises:
        Problem: 401, the body isn't the signed one.
    """
    if BODY in request and digest_of(await request.read()) != request[BODY]:
        raise unauthorized("the body isn't the one that was signed", wrong=True)


def check_origin(request: web.Request, caller: Caller) -> None:
    """Refuse a request that a browser sends for another site's page.

    Raises:
        Problem: 403, the request may come from another site.
    """
    if not caller.sends_itself:
        return
    origin, site = request.headers.get(hdrs.ORIGIN), request.headers.get("Sec-Fetch-Site")
    is_foreign = origin is not None and _authority(origin) != (_authority(f"{request.scheme}://{request.host}") or ())
    # Every browser names the origin of a request that may change something; programs can send a bearer token instead.
    is_silent = caller.is_browser and request.method not in SAFE_METHODS and origin is None and site is None
    if site not in OWN_SITES or is_foreign or is_silent:
        raise Problem(
            403,
            "foreign-origin",
            "The request comes from another site",
            f"Origin is {origin!r}, Sec-Fetch-Site {site!r}: only this worker's own pages may send it; programs send "
            "'Authorization: Bearer TOKEN'",
        )


def is_link(request: web.Request) -> bool:
    """Return whether a browser's user follows a link: the linking page can't read the answer."""
    headers = request.headers
    is_page = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
    return is_page and request.method in SAFE_METHODS


def _authority(origin: str) -> tuple[str, int | None] | None:
    """Return host and port; the scheme isn't looked at, since a proxy in front may have another one."""
    try:
        url = URL(origin)
        host, port = url.host, url.explicit_port
    except (ValueError, IndexError):
        # yarl raises either for what isn't a URL, some of it only when it is asked for the host.
        return None
    return (host.lower(), port if port not in (80, 443) else None) if host else None


def unauthorized(detail: str, *, wrong: bool = False) -> Problem:
    """Return the error for a request without accepted credentials."""
    challenge = CHALLENGE + (', error="invalid_token"' if wrong else "")
    headers = {str(hdrs.WWW_AUTHENTICATE): challenge}
    return Problem(401, "unauthorized", "The caller is unknown", detail, headers=headers)


def _password(credentials: str) -> str:
    """Return the password of HTTP Basic (RFC 7617), "" if it can't be decoded."""
    try:
        # The user name is ignored.
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


_ends_s = lru_cache(maxsize=64)(ssl.cert_time_to_seconds)


@lru_cache(maxsize=64)
def names_this_machine(host: str) -> bool:
    """Return whether a Host header names this machine, independent of any name server."""
    try:
        name = URL.build(scheme="http", authority=host).host or ""
    except (ValueError, IndexError):
        return False
    return name == "localhost" or is_loopback(name)


SHORT = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
}


def subjects(certificate: Mapping[str, Any]) -> list[str]:
    """Return a certificate's names: the whole subject first, as `CN=ops,O=Example`, then `CN=ops`, `DNS:…`, `URI:…`.

    Args:
        certificate: as `SSLSocket.getpeercert` gives it; one that was verified.
    """
    parts = [
        f"{SHORT.get(kind, kind)}={_escaped(value)}"
        for names in reversed(certificate.get("subject", ()))
        for kind, value in names
    ]
    common = [part for part in parts if part.startswith("CN=")]
    others = [f"{kind}:{value}" for kind, value in certificate.get("subjectAltName", ())]
    return [",".join(parts), *common, *others]


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(",", "\\,")
