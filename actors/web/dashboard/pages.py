"""The routes under `/dashboard`."""

from __future__ import annotations

import binascii
from base64 import b64decode
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

import msgspec
from aiohttp import web
from yarl import URL

from actors._faust.app import App
from actors.admin.operation import Operation
from actors.admin.parked.operations import DropParked, RetryParked
from actors.admin.parked.reader import ParkedError, ParkedReader, What, actor_of, kinds_of, shown
from actors.admin.parked.showing import entry_json, fetch_schemas
from actors.admin.pausing import PauseActor, ResumeActor
from actors.declare.definition import ActorDefinition
from actors.errors import BrokerUnavailableError, ConfigurationError
from actors.web.access import Level, caller_of, protect
from actors.web.dashboard.group import Group, Report
from actors.web.dashboard.plots import Plots
from actors.web.dashboard.rendering import Pages
from actors.web.dashboard.view import MAX_ROWS, build
from actors.web.dashboard.waiting import Looker
from actors.web.operations import Actions, setup_of
from actors.web.problems import JSON_HEADERS, NO_STORE, Handler, Problem, bad_request, not_ready
from actors.web.queries.service import service_of

PREFIX = "/dashboard"
LIVE = "Actors-Live"
"""A request with this header is the page's own, for what is new on it."""
MAX_TEXT_CHARS = 1_000
MAX_KEY_BYTES = 4_096
"""Longer keys are counted and not shown: they don't fit into the URL of their page."""
HEADERS = {
    **NO_STORE,
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    # Without it a browser wouldn't say where a form was sent from.
    "Referrer-Policy": "same-origin",
}
FILE_HEADERS = {"Cache-Control": "private, max-age=604800", "X-Content-Type-Options": "nosniff"}
MIME_TYPES = {"dashboard.css": "text/css", "dashboard.js": "text/javascript"}

_VERBS = {"retry": "Retry", "drop": "Drop the first of the", "drop-all": "Drop all of the"}


class Dashboard:
    """Answers requests; one per web server.

    Args:
        app: the app, of which the declarations are known.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._pages = Pages()
        self._looker = Looker(app)
        self._group = Group(str(app.conf.id), self._own_report)
        self._actions: Actions = app.extensions["web"].actions
        self._plots = Plots()

    def application(self) -> web.Application:
        """Return the part of the web server that is mounted under `/dashboard`."""
        part = web.Application(middlewares=[self.for_people])
        part.router.add_get("", self.overview)
        part.router.add_get("/", self.overview)
        part.router.add_get("/actor", self.actor)
        part.router.add_get("/parked", self.parked)
        part.router.add_post("/parked/{verb:retry|drop|drop-all}", self.act)
        part.router.add_post("/{verb:pause|resume}", self.pause)
        part.router.add_get("/status.json", self.status)
        part.router.add_get("/history.json", self.history)
        part.router.add_get("/{file:dashboard\\.(?:css|js)}", self.file)
        part.on_cleanup.append(self._actions.close)
        return part

    @web.middleware
    async def for_people(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Show a browser's user what can't be shown as a page; programs get the problem itself."""
        try:
            return await handler(request)
        except Problem as problem:
            if LIVE in request.headers or "text/html" not in request.headers.get("Accept", ""):
                raise
            page = self._page(request, "problem.html", problem=problem)
            page.set_status(problem.status)
            return page

    async def overview(self, request: web.Request) -> web.StreamResponse:
        """Show the whole app."""
        service = service_of(self._app)
        cluster = await self._group.look(service)
        recent = self._app.extensions["web"].history.series()
        plots = await self._plots.look(service.workers, cluster, recent, (None, None))
        async with service.router.reader.pace.turn():
            return self._page(request, "overview.html", view=build(cluster), recent=self._actions.recent, plots=plots)

    async def actor(self, request: web.Request) -> web.StreamResponse:
        """Show one actor, with the plots of one partition if that is given."""
        service, name = service_of(self._app), request.query.get("name", "")
        count = service.actor(name).partition_count
        start = min(_number(request.query.get("from", "0")), count)
        given = request.query.get("partition", "")
        chosen = _number(given) if given else None
        if chosen is not None and chosen >= count:
            raise bad_request("bad-parameter", f"partition {chosen} of {count}")
        cluster, own = await self._group.look(service), self._app.extensions["web"].history.series(name, chosen)
        plots = await self._plots.look(service.workers, cluster, own, (name, chosen))
        async with service.router.reader.pace.turn():
            view = build(cluster, name, start - start % MAX_ROWS)
            recent = self._actions.recent
            return self._page(request, "actor.html", view=view, recent=recent, plots=plots, chosen=chosen)

    async def parked(self, request: web.Request) -> web.StreamResponse:
        """Show what waits of one key, with what can be done about it."""
        definition, what, partition, key = self._place(request.query)
        try:
            async with self._actions.reading(), ParkedReader.connect(setup_of(self._app)) as reader:
                line = await reader.line(definition, what, partition, key)
                page = () if line is None else line.entries[:MAX_ROWS]
                contents = {} if line is None else await reader.contents(definition, line, page)
        except BrokerUnavailableError as error:
            raise not_ready(str(error)) from error
        if line is None:
            where = f"partition {partition} of {definition.name}"
            text = f"nothing of key {shown(key)} is parked in {where} any more: somebody may have dealt with it already"
            raise Problem(404, "not-parked", "Nothing is parked there", text)
        await fetch_schemas(definition, contents.values())
        entries = await service_of(self._app).router.reader.pace.run(
            _shown(entry_json(definition, line, entry, contents.get(entry.sequence))) for entry in page
        )
        return self._page(request, "parked.html", line=line, entries=entries)

    async def act(self, request: web.Request) -> web.StreamResponse:
        """Begin a retry or a drop, and go back to the page that shows what comes of it."""
        form = _form(await request.read())
        verb = request.match_info["verb"]
        definition, what, partition, key = self._place(form)
        if verb == "drop" and not form.get("id"):
            raise bad_request("no-id", "say which one to drop: a command that is given twice must not drop two")
        place: dict[str, Any] = {"actor": definition.name, "what": what, "partition": partition, "key": key}
        operation: Operation = RetryParked(**place)
        if verb != "retry":
            choice = {"entry_id": form["id"]} if verb == "drop" else {"is_all": True}
            operation = DropParked(**place, **choice)
        text = f"{_VERBS[verb]} {what}s of key {shown(key)} in {definition.name}, partition {partition}"
        self._actions.start(setup_of(self._app), operation, text, caller_of(request).name)
        back = URL(f"{PREFIX}/actor").with_query(name=definition.name)
        raise web.HTTPSeeOther(f"{back if form.get('back') == 'actor' else PREFIX}#actions", headers=NO_STORE)

    async def pause(self, request: web.Request) -> web.StreamResponse:
        """Pause or resume an actor, or one partition of it; then show its page."""
        form, verb = _form(await request.read()), request.match_info["verb"]
        name, number = service_of(self._app).actor(form.get("actor", "")).name, form.get("partition", "")
        where = f"{name}:{_number(number)}" if number else name
        operation = PauseActor(where=where) if verb == "pause" else ResumeActor(where=where)
        text = f"{verb.capitalize()} {name}, {f'partition {number}' if number else 'all partitions'}"
        await self._actions.run(setup_of(self._app), operation, text, caller_of(request).name)
        back = URL(f"{PREFIX}/actor").with_query(name=name)
        raise web.HTTPSeeOther(str(back), headers=NO_STORE)

    async def status(self, _: web.Request) -> web.StreamResponse:
        """Say what the other workers' pages show of this one."""
        service_of(self._app)
        return web.Response(body=msgspec.json.encode(await self._own_report()), headers=JSON_HEADERS)

    async def history(self, request: web.Request) -> web.StreamResponse:
        """Say what the other workers' plots show of this one."""
        service_of(self._app)
        name, given = request.query.get("name"), request.query.get("partition", "")
        series = self._app.extensions["web"].history.series(name, _number(given) if given else None)
        return web.Response(body=msgspec.json.encode(series), headers=JSON_HEADERS)

    async def file(self, request: web.Request) -> web.StreamResponse:
        """Return the style sheet, or the script."""
        name = request.match_info["file"]
        return web.Response(body=self._pages.file(name), content_type=MIME_TYPES[name], headers=FILE_HEADERS)

    async def _own_report(self) -> Report:
        said, waiting = self._app.worker_status(), await self._looker.look()
        # What a handler raised may not be Unicode, and of any length, as keys are.
        tasks = [replace(task, reason=task.reason and sendable(task.reason[:MAX_TEXT_CHARS])) for task in said.tasks]
        lines = [line for line in waiting.lines if len(line.key) <= MAX_KEY_BYTES]
        is_cut = waiting.is_cut or len(lines) < len(waiting.lines)
        return Report(replace(said, tasks=tasks), msgspec.structs.replace(waiting, lines=lines, is_cut=is_cut))

    def _page(self, request: web.Request, template: str, **content: Any) -> web.Response:
        caller = caller_of(request)
        text = self._pages.render(
            template,
            **content,
            app=str(self._app.conf.id),
            is_polled="view" in content or template == "problem.html",
            is_live=LIVE in request.headers,
            may_act=caller.level >= Level.ADMIN,
        )
        return web.Response(text=sendable(text), content_type="text/html", headers=HEADERS)

    def _place(self, given: Any) -> tuple[ActorDefinition, What, int, bytes]:
        """Return actor, kind, partition and key that a query or a form names; `Problem` if they can't be."""
        app: Any = self._app
        try:
            definition = actor_of(app, given.get("actor", ""))
        except (ConfigurationError, ParkedError) as error:
            raise Problem(404, "unknown-actor", "There is no such actor", str(error)) from error
        kinds: list[What] = [kind for kind in kinds_of(definition) if kind == given.get("what")]
        if not kinds:
            raise bad_request("bad-parameter", f"what is one of: {', '.join(kinds_of(definition))}")
        partition = _number(given.get("partition", ""))
        count = service_of(self._app).actors[definition.name].partition_count
        if partition >= count:
            raise bad_request("bad-parameter", f"partition {partition} of {count}")
        try:
            key = b64decode(given.get("key", ""), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise bad_request("bad-parameter", "key is a key's bytes in base64, with - and _") from None
        return definition, kinds[0], partition, key


def mount(app: App, web_app: web.Application) -> None:
    """Add the routes to a web server, once."""
    part = Dashboard(app).application()
    protect(app, web_app, PREFIX, part, level=Level.READ, login=True)


def _form(body: bytes) -> dict[str, str]:
    try:
        # A browser sends a form as the page is, which is UTF-8.
        fields = parse_qs(body.decode(), max_num_fields=20, errors="strict")
    except ValueError:
        raise bad_request("bad-body", "a form of this page has up to 20 fields in UTF-8") from None
    return {name: values[0] for name, values in fields.items()}


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 8):
        raise bad_request("bad-parameter", f"{text[:20]!r} isn't a number")
    return int(text)


def sendable(text: str) -> str:
    """Return a text with escapes for what can't be sent."""
    return text.encode(errors="backslashreplace").decode()


def _shown(entry: dict[str, Any]) -> dict[str, Any]:
    # Without what it holds: up to a hundred of them, each as large as a record, would wait for their turns.
    return {name: entry[name] for name in ("what", "id", "error", "attempts", "since_ms")} | {"text": _text(entry)}


def _text(entry: dict[str, Any]) -> str:
    """Return what an entry holds, for a person."""
    if not entry["is_shown"]:
        return f"({entry['bytes']} bytes: see `parked show --full`)"
    if "effect" in entry:
        parts = [msgspec.json.encode(part).decode() for part in entry["args"]]
        parts += [f"{name}={msgspec.json.encode(part).decode()}" for name, part in entry["kwargs"].items()]
        text = f"{entry['effect']}({', '.join(parts)})"
    else:
        value = entry["value"]
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…"
