"""Faust's web server with the parts of `actors.web` on it."""

from __future__ import annotations

import errno
from typing import Any

from aiohttp.web import SockSite

from actors._faust.startup.refusal import refuse
from actors.declare.options import ActorOptions
from actors.errors import ConfigurationError
from actors.web.access.door import doors
from actors.web.access.files import AccessFiles as AccessFiles
from actors.web.access.guard import guard_of, protect_rest
from actors.web.access.limits import HANDLER_ARGS
from actors.web.access.tls import with_own_tls
from actors.web.dashboard.pages import mount as mount_dashboard
from actors.web.front import front_of, listen
from actors.web.operations import mount_operations
from actors.web.queries.server import mount


def with_web_options(options: ActorOptions, faust_options: dict[str, Any]) -> dict[str, Any]:
    """Return Faust's settings with the limits and the certificate of the web server."""
    web_options = dict(faust_options.get("web_application_options") or {})
    web_options["handler_args"] = {**HANDLER_ARGS, **(web_options.get("handler_args") or {})}
    return with_own_tls(options, {**faust_options, "web_application_options": web_options})


def mount_web(app: Any, web: Any) -> None:
    """Mount queries, dashboard, metrics and health on Faust's web server. May be called more than once."""
    _listen(app, web)
    if app.actors and app.actor_options.queries:
        mount(app, web.web_app)
        if app.actor_options.dashboard:
            mount_dashboard(app, web.web_app)
    if app.actors:
        mount_operations(app, web.web_app)
    protect_rest(app, web.web_app)


def _listen(app: Any, web: Any) -> None:
    """Have the web server count its connections, and end the worker with one line if it can't listen."""
    start, conf = web.start_server, app.conf
    if getattr(start, "is_ours", False):
        return

    async def start_server() -> None:
        try:
            if conf.web_transport.scheme != "tcp":
                await start()
                return
            await web._runner.setup()
            for door in doors(str(conf.web_bind), conf.web_port, guard_of(app, web.web_app).connections):
                await SockSite(web._runner, door, ssl_context=conf.web_ssl_context).start()
            if (front := front_of(app)) is not None:
                web.add_future(listen(app, front, web._runner, guard_of(app, web.web_app).connections))
        except OSError as error:
            where = (
                conf.web_transport
                if conf.web_transport.scheme != "tcp"
                else (f"web_bind={conf.web_bind!r}, web_port={conf.web_port}")
            )
            what = "another process listens there" if error.errno == errno.EADDRINUSE else str(error)
            refuse(
                app,
                ConfigurationError(
                    f"the web server can't listen at {where}: {what}. Choose another port (`worker --web-port PORT`, "
                    "web_port=…), or run without one (`worker --without-web`)"
                ),
            )

    start_server.is_ours = True  # type: ignore[attr-defined]
    web.start_server = start_server
