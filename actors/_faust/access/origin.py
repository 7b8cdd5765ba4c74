"""Requests that a browser sends for another site's page, and that look as if its user had sent them."""

from __future__ import annotations

from aiohttp import hdrs, web
from yarl import URL

from actors._faust.access.levels import Caller
from actors._faust.queries.problems import Problem


def check_origin(request: web.Request, caller: Caller | None) -> None:
    """Refuse what another site's page has a browser send: such as knows who it is without being told by the page.

    Raises:
        Problem: 403.
    """
    origin, site = request.headers.get(hdrs.ORIGIN), request.headers.get("Sec-Fetch-Site")
    is_same = origin is not None and _authority(origin) == _authority(f"{request.scheme}://{request.host}")
    if origin is None:
        # Browsers say one of the two; programs without a cookie needn't.
        is_same = site in ("same-origin", "none") or (site is None and (caller is None or not caller.has_cookie))
    if not is_same or site not in (None, "same-origin", "none"):
        raise Problem(
            403,
            "foreign-origin",
            "The request comes from another site",
            f"Origin is {origin!r}, Sec-Fetch-Site {site!r}: only this worker's own pages may send it",
        )


def _authority(origin: str) -> tuple[str, int | None] | None:
    """Give host and port; the scheme isn't looked at, since a proxy in front may have another one."""
    try:
        url = URL(origin)
        host, port = url.host, url.explicit_port
    except (ValueError, IndexError):
        # yarl raises either for what isn't a URL, some of it only when it is asked for the host.
        return None
    return (host.lower(), port if port not in (80, 443) else None) if host else None
