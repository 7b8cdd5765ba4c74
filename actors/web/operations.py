"""The pages that monitoring and orchestrators ask, on Faust's web server."""

from __future__ import annotations

from aiohttp import web

from actors.web import health, metrics
from actors.web.access import Level, protect
from actors.web.host import Host


def mount_operations(app: Host, web_app: web.Application) -> None:
    """Add `/metrics`, for those who may read, and `/health`, for all; a page of the app's own there goes first.

    Faust's own page at `/metrics`, if the app has set that up, shows the registry in which our metrics are as well.
    """
    protect(app, web_app, metrics.PAGE, metrics.metrics_page(app))
    protect(app, web_app, health.PREFIX, health.health_pages(app), level=Level.OPEN)
