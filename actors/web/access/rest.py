"""The guard of what others mount on the web server: Faust's own pages, and the app's `@app.page`."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from actors.web.access.guard import PARTS, check_encoding, guard_of
from actors.web.access.levels import Level
from actors.web.access.settings import is_guarded
from actors.web.problems import Handler, Problem


def protect_rest(app: Any, web_app: web.Application) -> None:
    """Ask who it is for all that isn't mounted with `protect`, if a setting says who may; may be called again.

    GET and HEAD need `READ`, other methods `ADMIN`; also where there is nothing, so that nobody finds out what there
    is. What is in `open_pages` is for everybody. Handlers get what passes as it came: bodies of any size, and their
    errors stay theirs. Compressed bodies are refused in any case, since nothing unpacks them.

    Args:
        app: the app.
        web_app: Faust's web server, not started.
    """
    if any(map(_is_own, web_app.middlewares)):
        return
    guard, parts, open_pages = guard_of(app, web_app), web_app[PARTS], frozenset(app.actor_options.open_pages)
    asks = is_guarded(app)

    @web.middleware
    async def rest(request: web.Request, handler: Handler) -> web.StreamResponse:
        match = request.match_info
        if any(part in match.apps for part in parts.values()):
            return await handler(request)
        try:
            check_encoding(request)
            if asks and not _is_preflight(match.handler) and _page(match) not in open_pages:
                guard.admit(request, Level.READ)
        except Problem as problem:
            guard.refused(request, problem)
            return problem.response_to(request)
        with guard.busy(request):
            return await handler(request)

    # Before what the app has of its own.
    web_app.middlewares.insert(0, rest)


def _is_own(middleware: Any) -> bool:
    return getattr(middleware, "__module__", "") == __name__


def _page(match: web.UrlMappingMatchInfo) -> str | None:
    """Give the path of a page as it was declared."""
    resource = match.route.resource
    return None if resource is None else resource.canonical


def _is_preflight(handler: Any) -> bool:
    """Tell whether a browser only asks what `web_cors_options` say, which it does without a token."""
    return getattr(handler, "__module__", "") == "aiohttp_cors.preflight_handler"
