"""Requests that a browser sends for another site's page, and that look as if its user had sent them.

A browser adds some proofs of identity by itself, whichever page asks: a password that it was told before, a
certificate, or just that it runs on this machine. Such a request must say that it comes from the worker's own pages.
"""

from __future__ import annotations

from aiohttp import hdrs, web
from yarl import URL

from actors.web.access.levels import SAFE_METHODS, Caller
from actors.web.problems import Problem

OWN = (None, "same-origin", "none")
"""Values of Sec-Fetch-Site for the worker's own pages and what a user typed; None from programs and over plain HTTP."""


def check_origin(request: web.Request, caller: Caller) -> None:
    """Refuse a request that another site's page has a browser send.

    Raises:
        Problem: 403.
    """
    origin, site = request.headers.get(hdrs.ORIGIN), request.headers.get("Sec-Fetch-Site")
    is_foreign = origin is not None and _authority(origin) != (_authority(f"{request.scheme}://{request.host}") or ())
    # Every browser names the origin of a request that may change something; programs can send a bearer token instead.
    is_silent = caller.is_browser and request.method not in SAFE_METHODS and origin is None and site is None
    if site not in OWN or is_foreign or is_silent:
        raise Problem(
            403,
            "foreign-origin",
            "The request comes from another site",
            f"Origin is {origin!r}, Sec-Fetch-Site {site!r}: only this worker's own pages may send it; programs send "
            "'Authorization: Bearer TOKEN'",
        )


def is_link(request: web.Request) -> bool:
    """Tell whether a browser's user follows a link: the page that has the link can't read what it leads to."""
    headers = request.headers
    is_page = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
    return is_page and request.method in SAFE_METHODS


def _authority(origin: str) -> tuple[str, int | None] | None:
    """Give host and port; the scheme isn't looked at, since a proxy in front may have another one."""
    try:
        url = URL(origin)
        host, port = url.host, url.explicit_port
    except (ValueError, IndexError):
        # yarl raises either for what isn't a URL, some of it only when it is asked for the host.
        return None
    return (host.lower(), port if port not in (80, 443) else None) if host else None
