"""Operations over HTTP, and on the dashboard's pages: those under way, and the last that ended.

    POST /operations/parked/retry   {"actor": "orders", "key": "a"}

Each operation of `actors.admin.operations` has a path: its command's words. The body has its arguments and options as
JSON, by the names that they have on the command line, and the reply has its answer.

A page's retries and drops run beside the request that asked for them, since an outcome takes as long as the partition's
owner does. The pages show all that change something as they show everything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import operator
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import MISSING, Field, dataclass, fields
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec
from aiohttp import web

from actors._core.logs import escaping, text_of
from actors._core.outside import MALFORMED
from actors._faust.app import App
from actors._faust.setup import Setup
from actors.admin.operation import Answer, Caller, Operation, name_of
from actors.admin.operations import OPERATIONS
from actors.errors import ActorsError, BrokerUnavailableError, ConfigurationError, UsageError
from actors.web.access import Level, caller_of, protect
from actors.web.problems import CONTENT_TYPE, JSON_HEADERS, Problem, bad_request, not_ready
from actors.web.queries.coding import json_body
from stores._core.printable import printable_json

logger = escaping(logging.getLogger(__name__))

PREFIX = "/operations"
MAX_UNDER_WAY = 8
MAX_READERS = 2
"""How many look at what is kept for keys at a time: each reads whole changelogs."""
MAX_KEPT = 20
KEEP_MS = 15 * 60_000
MAX_TEXT_CHARS = 300

Tone: TypeAlias = Literal["good", "busy", "warn", "bad"]


@dataclass(slots=True)
class Action:
    """An operation that somebody asked for. Times are Unix milliseconds."""

    text: str
    asked_by: str
    began_ms: int
    tone: Tone = "busy"
    outcome: str = "under way"
    ended_ms: int | None = None

    def ended(self, tone: Tone, outcome: str) -> None:
        """Note the outcome."""
        self.tone, self.outcome, self.ended_ms = tone, " ".join(outcome.split()), _now_ms()
        logger.info("%s, asked for by %s: %s", self.text, self.asked_by, self.outcome)


class Actions:
    """The operations that were asked for at this worker."""

    def __init__(self) -> None:
        self._kept: deque[Action] = deque(maxlen=MAX_KEPT)
        self._under_way: set[asyncio.Task[Answer]] = set()
        self._reading = asyncio.Semaphore(MAX_READERS)

    @property
    def recent(self) -> list[Action]:
        """Actions that run, and that ended within a quarter of an hour; the newest first."""
        since_ms = _now_ms() - KEEP_MS
        return [action for action in self._kept if action.ended_ms is None or action.ended_ms > since_ms]

    def start(self, setup: Setup, operation: Operation, text: str, asked_by: str) -> asyncio.Task[Answer]:
        """Begin with it; `Problem` if too many are under way."""
        if len(self._under_way) >= MAX_UNDER_WAY:
            raise Problem(503, "busy", "Too much is under way", f"{MAX_UNDER_WAY} retries and drops are: wait for one")
        task = asyncio.create_task(self.run(setup, operation, text, asked_by), name=f"operation: {text}")
        self._under_way.add(task)
        task.add_done_callback(self._end)
        return task

    async def run(self, setup: Setup, operation: Operation, text: str, asked_by: str) -> Answer:
        """Carry it out.

        Raises:
            Problem: it isn't carried out.
        """
        action = Action(text, asked_by, _now_ms())
        self._kept.appendleft(action)
        try:
            answer = await _run(operation, setup, asked_by)
        except asyncio.CancelledError:
            action.ended("warn", "this worker stops: the command may have been given, and takes effect in its turn")
            raise
        except Exception as error:
            # Whatever it is: the page is where somebody waits for it.
            action.ended("bad", text_of(error) or type(error).__name__)
            raise
        summary = answer.lines[-1] if answer.lines else "done"
        action.ended("good" if answer.failure is None else "bad", answer.failure or summary)
        return answer

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Count a look at what is kept for keys; `Problem` if too many look."""
        if self._reading.locked():
            raise Problem(
                503,
                "busy",
                "Too many look at what is parked",
                f"{MAX_READERS} reads of it are under way: ask again later",
                retry_after_ms=1000,
            )
        async with self._reading:
            yield

    async def answer(
        self, app: App, kind: type[Operation], arguments: type[msgspec.Struct], request: web.Request
    ) -> web.StreamResponse:
        """Carry out the operation that a request's JSON describes, and return its answer."""
        body = await json_body(request)
        operation = operation_of(kind, arguments, body)
        setup, caller = setup_of(app), caller_of(request).name
        if kind.is_reading:
            async with self.reading():
                answer = await _run(operation, setup, caller)
        else:
            text = " ".join([kind.command, *body.decode(errors="backslashreplace").split()])[:MAX_TEXT_CHARS]
            answer = await self.start(setup, operation, text, caller)
        content = {"content": answer.content, "lines": answer.lines, "remarks": answer.remarks}
        if answer.failure is not None:
            raise Problem(409, "not-done", "It is done in part or not at all", answer.failure, **content)
        return web.Response(body=printable_json(content).encode(), headers=JSON_HEADERS)

    def _end(self, task: asyncio.Task[Answer]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            # The page has shown the error.
            task.exception()

    async def close(self, _: web.Application) -> None:
        """Cancel the operations in progress. May be called twice."""
        tasks = list(self._under_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(operation: Operation, setup: Setup, caller: str) -> Answer:
    try:
        return await operation.run(setup, Caller(caller, _unasked))
    except BrokerUnavailableError as error:
        raise not_ready(str(error)) from error
    except (UsageError, ConfigurationError) as error:
        raise bad_request("bad-parameter", str(error)) from error
    except ActorsError as error:
        raise Problem(409, "refused", "The operation isn't carried out", str(error)) from error


def _unasked(question: str) -> None:
    raise UsageError(f'{question} Add "yes": true')


def setup_of(app: App) -> Setup:
    """Return the settings of the running worker.

    Raises:
        Problem: 503, it is starting.
    """
    setup: Setup | None = app.actor_service.setup
    if setup is None:
        raise not_ready("this worker is starting")
    return setup


def mount(app: App, web_app: web.Application, actions: Actions) -> None:
    """Add a route for each operation to a web server, once."""
    part = web.Application()
    for kind in OPERATIONS:
        part.router.add_post(_path(kind), functools.partial(actions.answer, app, kind, arguments_of(kind)))
    part.on_cleanup.append(actions.close)
    protect(app, web_app, PREFIX, part, level=Level.ADMIN)


def description(_: App) -> dict[str, Any]:
    """Return the part of the OpenAPI document about operations."""
    arguments = [arguments_of(kind) for kind in OPERATIONS]
    of_json, schemas = msgspec.json.schema_components(arguments, ref_template="#/components/schemas/{name}")
    problem = {"$ref": "#/components/schemas/ProblemAnswer"}
    responses = {
        "200": {"description": "The answer: `content`, and for people `lines` and `remarks`."},
        "409": {"description": "Not done, or in part.", "content": {CONTENT_TYPE: {"schema": problem}}},
        **{status: {"$ref": f"#/components/responses/{status}"} for status in ("400", "401", "403", "503")},
    }
    paths = {
        PREFIX + _path(kind): {
            "post": {
                "operationId": kind.command.replace(" ", "-"),
                "summary": (kind.__doc__ or "").splitlines()[0],
                "parameters": [],
                "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
                "responses": responses,
            }
        }
        for kind, schema in zip(OPERATIONS, of_json, strict=True)
    }
    return {"paths": paths, "components": {"schemas": schemas}}


def operation_of(kind: type[Operation], arguments: type[msgspec.Struct], body: bytes) -> Operation:
    """Return the operation with the arguments of a body; `Problem` if it has others."""
    try:
        return kind(**msgspec.structs.asdict(msgspec.json.decode(body, type=arguments)))
    except MALFORMED as error:
        raise bad_request("bad-body", f"{kind.command}: {error}") from error


def _path(kind: type[Operation]) -> str:
    return "/" + kind.command.replace(" ", "/")


def arguments_of(kind: type[Operation]) -> type[msgspec.Struct]:
    """Return the type of the JSON with an operation's arguments."""
    hints, names = get_type_hints(kind), {field.name: name_of(field) for field in fields(kind)}
    members: list[Any] = [
        (field.name, _in_json(field, hints[field.name]), *([] if field.default is MISSING else [field.default]))
        for field in fields(kind)
    ]
    return msgspec.defstruct(kind.__name__, members, rename=names, forbid_unknown_fields=True, kw_only=True)


def _in_json(field: Field[Any], hint: Any) -> Any:
    """Return the type of an argument in JSON, which has no bytes, with the bounds of a number."""
    bounds = msgspec.Meta(ge=field.metadata.get("least", 0), le=field.metadata.get("most"))
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds: list[Any] = [
        Annotated[part, bounds] if part in (int, float) else part for part in parts if part is not bytes
    ]
    return functools.reduce(operator.or_, kinds)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
