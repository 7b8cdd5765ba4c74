"""The extension `web`: queries, dashboard, metrics and health on Faust's web server."""

from __future__ import annotations

import asyncio
import errno
import functools
from typing import Any

from aiohttp.web import SockSite

from actors._faust.extensions import StartingWorker, WorkerExtension
from actors._faust.setup import Setup
from actors._faust.startup.refusal import refuse
from actors.errors import ConfigurationError
from actors.runtime.cancellation import end
from actors.web import health, metrics, operations
from actors.web.access import Level, protect
from actors.web.access.door import doors
from actors.web.access.files import AccessFiles
from actors.web.access.guard import guard_of, protect_rest
from actors.web.access.limits import HANDLER_ARGS
from actors.web.access.settings import check_access, own_address
from actors.web.access.tls import use_own_tls
from actors.web.dashboard.history import History
from actors.web.dashboard.pages import mount as mount_dashboard
from actors.web.events.routes import Broadcasts, mount_events
from actors.web.front import front_of, listen
from actors.web.messages.routes import add_messages
from actors.web.operations import Actions
from actors.web.queries.server import QueryRoutes, mount
from actors.web.queries.service import QueryService


class WebServer(WorkerExtension):
    """The web server of a worker.

    Attributes:
        queries: answers queries, None while the worker is starting or stopping.
        history: the last minutes of the worker's tasks.
        broadcasts: streams of changes.
        actions: the operations that were asked for by HTTP.
    """

    def __init__(self, app: Any, settings: dict[str, Any]) -> None:
        super().__init__(app, settings)
        options = dict(settings.get("web_application_options") or {})
        options["handler_args"] = {**HANDLER_ARGS, **(options.get("handler_args") or {})}
        settings["web_application_options"] = options
        use_own_tls(app.actor_options, settings)
        self.queries: QueryService | None = None
        self.history = History()
        self.broadcasts = Broadcasts(app)
        self.actions = Actions()
        self._sampling: asyncio.Task[None] | None = None
        self._collector = metrics.WorkerCollector(app)

    @functools.cached_property
    def files(self) -> AccessFiles:
        """The files with tokens and certificates; read when they are first needed."""
        return AccessFiles(self.app)

    def check(self, setup: Setup) -> None:
        """Check that the settings protect the state, and announce the worker's address."""
        check_access(self.app)
        setup.address = own_address(self.app)

    def serve(self, web: Any) -> None:
        """Mount queries, dashboard, metrics and health."""
        app, web_app = self.app, web.web_app
        _listen(app, web)
        if app.actors and app.actor_options.queries:
            mount(app, web_app, self._add)
            mount_events(app, web_app, self.broadcasts)
            operations.mount(app, web_app, self.actions)
            if app.actor_options.dashboard:
                mount_dashboard(app, web_app)
        if app.has_service:
            mount_operations(app, web_app)
        protect_rest(app, web_app)

    def _add(self, queries: QueryRoutes, part: Any) -> None:
        add_messages(self.app, queries, part)
        queries.descriptions.append(operations.description)

    async def start(self, worker: StartingWorker) -> None:
        """Show metrics, and answer queries."""
        self._collector.show()
        samples = self.history.follow(lambda: worker.worker.tasks, self.app.actor_clock)
        self._sampling = asyncio.create_task(samples, name="actors history")
        if self.app.conf.web_enabled and self.app.actor_options.queries:
            self.queries = QueryService(worker, self.files.hops(), self.app.actor_clock)

    def router(self, *, check_tokens: bool, **options: Any) -> Any:
        """Return a FastAPI router; see `App.router`.

        Raises:
            ConfigurationError: FastAPI isn't installed.
        """
        try:
            from actors.web.router import router_of
        except ImportError as error:
            raise ConfigurationError("app.router() needs FastAPI: pip install 'faust-actors[fastapi]'") from error
        return router_of(self.app, check_tokens=check_tokens, **options)

    async def stop(self) -> None:
        """Answer no more queries, and show no metrics."""
        self._collector.hide()
        queries, self.queries = self.queries, None
        await self.broadcasts.close()
        if queries is not None:
            await queries.close()
        await end(self._sampling)


def mount_operations(app: Any, web_app: Any) -> None:
    """Add `/metrics`, for those who may read, and `/health`, for all; a page of the app's own there goes first.

    Faust's own page at `/metrics`, if the app has set that up, shows the registry in which our metrics are as well.
    """
    protect(app, web_app, metrics.PAGE, metrics.metrics_page(app))
    protect(app, web_app, health.PREFIX, health.health_pages(app), level=Level.OPEN)


def _listen(app: Any, web: Any) -> None:
    """Have the web server count its connections, and end the worker with one line if it can't listen."""
    start, conf = web.start_server, app.conf

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

    web.start_server = start_server
