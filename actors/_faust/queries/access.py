"""Who may ask. What tokens and certificates decide belongs here: every request passes `Access.guard` first.

A web server on the loopback interface is reached by programs of this machine only, and by web pages that a person
looks at here: a page could point its own name at 127.0.0.1, so names that aren't this machine's are refused.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Any

from aiohttp import web
from yarl import URL

from actors._faust.queries.problems import Handler, Problem
from actors.errors import ConfigurationError

MAX_IN_FLIGHT = 256
"""How many questions a worker has at a time; more are told to come again."""


class Access:
    """Decides about every request for state."""

    def __init__(self, app: Any) -> None:
        self._is_open = bool(app.actor_options.queries_unprotected)
        self._in_flight = 0

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request pass, or raise a problem."""
        if not self._is_open and not _names_this_machine(request.host):
            raise Problem(
                403,
                "foreign-host",
                "The request isn't meant for this machine",
                f"Host is {request.host!r}, and queries are for this machine: ask localhost, or set "
                "queries_unprotected=True",
            )
        if self._in_flight >= MAX_IN_FLIGHT:
            raise Problem(
                503, "busy", "Too many questions at once", f"{MAX_IN_FLIGHT} are waiting", retry_after_ms=1000
            )
        self._in_flight += 1
        try:
            return await handler(request)
        finally:
            self._in_flight -= 1


@lru_cache(maxsize=64)
def _names_this_machine(host: str) -> bool:
    try:
        name = URL.build(scheme="http", authority=host).host or ""
    except ValueError:
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


def is_local(conf: Any) -> bool:
    """Tell whether the web server can be reached from this machine only."""
    return conf.web_transport.scheme == "unix" or is_loopback(str(conf.web_bind))


def check_access(app: Any) -> None:
    """Refuse to show state to whoever reaches the port, unless that is what is wanted.

    Raises:
        ConfigurationError: naming the settings.
    """
    conf, options = app.conf, app.actor_options
    if conf.web_enabled and options.queries and not options.queries_unprotected and not is_local(conf):
        raise ConfigurationError(
            f"web_bind={conf.web_bind!r} would show the actors' state under /actors to every machine that reaches "
            f"port {conf.web_port}, without asking who it is: set queries_unprotected=True if that is wanted, "
            "queries=False to answer no queries, or web_bind='127.0.0.1'"
        )


def own_address(conf: Any) -> str:
    """Give where other workers reach this one's web server; empty if they can't."""
    if not conf.web_enabled or conf.web_transport.scheme == "unix":
        return ""
    scheme = "https" if conf.web_ssl_context else "http"
    given = conf.canonical_url
    derived = given.host == conf.NODE_HOSTNAME and given.port == conf.web_port
    if derived and is_loopback(str(conf.web_bind)):
        # Nobody reaches the machine's name here.
        return str(URL.build(scheme=scheme, host=str(conf.web_bind), port=conf.web_port))
    return str(given.with_scheme(scheme) if derived else given)
