"""The pages that monitoring and orchestrators ask, on Faust's web server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from actors._faust import health, metrics

if TYPE_CHECKING:
    from actors._faust.app import App


def mount_operations(app: App, web_app: web.Application) -> None:
    """Add `/metrics` and `/health`, once, and not where the app has a page of its own.

    Faust's own page at `/metrics`, if the app has set that up, shows the registry in which our metrics are as well.
    """
    taken = {resource.canonical for resource in web_app.router.resources()}
    for prefix, part in ((metrics.PAGE, metrics.metrics_page), (health.PREFIX, health.health_pages)):
        if not any(path == prefix or path.startswith(f"{prefix}/") for path in taken):
            web_app.add_subapp(prefix, part(app))
