"""The pages that monitoring and orchestrators ask, on Faust's web server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from actors.web import health, metrics
from actors.web.access import Level, protect
from actors.web.queries.memory import bound

if TYPE_CHECKING:
    from actors._faust.app import App


def mount_operations(app: App, web_app: web.Application) -> None:
    """Add `/metrics`, for those who may read, and `/health`, for all; a page of the app's own there goes first.

    Faust's own page at `/metrics`, if the app has set that up, shows the registry in which our metrics are as well.
    """
    page = metrics.metrics_page(app)
    bound(web_app, page)
    protect(app, web_app, metrics.PAGE, page)
    protect(app, web_app, health.PREFIX, health.health_pages(app), level=Level.OPEN)
