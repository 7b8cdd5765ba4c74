"""Answers a question for a key while its bytes are read, where nothing has to be waited for.

aiohttp runs each request in an asyncio task of its own over three turns of the event loop, finds the handler in its
router by way of the path's parts, and writes the reply's head from a dictionary. That costs more than the answer does.
Here the same handler runs behind the same middlewares, as a coroutine that is driven by hand:

- it ends at once, which is the rule: the reply is written, in the order of the requests;
- it waits for a future (the end of a commit, the group's coordinator): it goes on in that future's callback;
- it wants a task (`in_task`), because it asks another worker: aiohttp runs the rest, as it runs all other requests.

A coroutine that is driven by hand has no current task: what needs one, as `asyncio.timeout`, comes after `in_task`.

aiohttp's parser, limits, keep-alive and shutdown are what they were. What is used of its inside is checked when the
server is made; an aiohttp that has another one answers all requests in its own way.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import re
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.http_parser import HttpRequestParser, RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler, _ErrInfo
from aiohttp.web_request import BaseRequest
from aiohttp.web_urldispatcher import AbstractRoute, UrlMappingMatchInfo

from actors._faust.access.rest import is_own
from actors._faust.queries.problems import Reply

Answering = Coroutine[Any, Any, web.StreamResponse]

_USED = {
    *("_messages", "_waiter", "_close", "_force_close", "_upgraded", "_paused", "_buffer_paused", "_parser"),
    *("_keepalive_handle", "_keepalive_timeout", "_next_keepalive_close_time", "_request_in_progress"),
    *("_handler_waiter", "_request_factory", "_request_handler", "_task_handler", "_manager", "_loop"),
}
_NO_WRITER: Any = None


@types.coroutine
def in_task() -> Generator[None, None, None]:
    """Wait until the coroutine runs in an asyncio task, which it does at once where it isn't driven by hand."""
    if asyncio.current_task() is None:
        yield


@types.coroutine
def _rest(answering: Answering) -> Generator[Any, Any, web.StreamResponse]:
    """Go on with a coroutine that has begun, which `await` refuses to."""
    try:
        waited = answering.send(None)
        while True:
            try:
                got = yield waited
            except BaseException as error:
                waited = answering.throw(error)
            else:
                waited = answering.send(got)
    except StopIteration as end:
        response: web.StreamResponse = end.value
        return response


class KeyMatch(UrlMappingMatchInfo):
    """What the router finds of a question for a key, and the parts of its target as they came."""

    __slots__ = ("raw_key", "raw_query")
    raw_key: str
    raw_query: str


class QuickRoute:
    """The route of questions for one key, beside aiohttp's router.

    Args:
        root: the web server's application.
        part: the one that is mounted in it, with its middlewares.
        route: in `part`, `/{store}/{key}`.
        prefix: where it is mounted.

    Attributes:
        handler: makes the coroutine that answers a request.
    """

    def __init__(self, root: web.Application, part: web.Application, route: AbstractRoute, prefix: str) -> None:
        self._apps = [root, part]
        self._route = route
        # Other routes, what could be one of them when it is decoded, and what its router takes for no store's name are
        # left to aiohttp.
        self._target = re.compile(
            rf"{prefix}/([^%/?#{{}}]+)/"
            r"(?!_count(?:$|\?)|_many(?:$|\?)|_[^?]*%|%5[Ff]|%2[Ee]|\.{1,2}(?:$|\?))([^/?#]+)(?:\?([^#]*))?"
        )
        handler: Callable[..., Any] = route.handler
        for middleware in reversed(part.middlewares):
            handler = functools.partial(middleware, handler=handler)
        self.handler = handler

    def match(self, message: RawRequestMessage) -> KeyMatch | None:
        """Give what aiohttp's router would find, None if this isn't a question that is answered here."""
        if message.method != hdrs.METH_GET or message.version != HttpVersion11 or message.should_close:
            return None
        target = message.path
        found = self._target.fullmatch(target) if target.isascii() else None
        if found is None or message.upgrade or message.chunked or hdrs.EXPECT in message.headers:
            return None
        store, key, query = found.groups("")
        match = KeyMatch({"store": store, "key": key}, self._route)
        match.raw_key = key
        match.raw_query = query
        match._apps = self._apps
        match._current_app = self._apps[1]
        match._frozen = True
        return match


class QuickProtocol(RequestHandler):
    """A client's connection."""

    __slots__ = ("_begun", "_is_parked", "_quick")

    def __init__(self, manager: web.Server, *, quick: QuickRoute, **options: Any) -> None:
        super().__init__(manager, **options)
        self._quick = quick
        # The first of `_messages` waits for a future, and nothing of its connection is answered before.
        self._is_parked = False
        # The first of `_messages` has begun, and aiohttp is to run the rest.
        self._begun: tuple[BaseRequest, Answering] | None = None
        self._request_factory = functools.partial(self._request, manager.request_factory)
        self._request_handler = functools.partial(self._answer, manager.request_handler)

    # --- what aiohttp calls ----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take bytes as aiohttp does, and answer what can be answered at once."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            super().data_received(data)
            return
        # Unseen, it isn't woken by what is parsed now.
        self._waiter = None
        try:
            super().data_received(data)
        finally:
            self._waiter = waiter
        if not self._is_parked:
            self._go_on()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End what nobody waits for any more."""
        super().connection_lost(exc)
        self._drop()

    def _request(self, factory: Callable[..., BaseRequest], *args: Any) -> BaseRequest:
        """Give the request that has begun, with the writer that it lacks; else make one as aiohttp does."""
        if self._begun is None:
            return factory(*args)
        request = self._begun[0]
        request._payload_writer = args[3]
        return request

    async def _answer(self, handler: Callable[..., Awaitable[web.StreamResponse]], request: BaseRequest) -> Any:
        if self._begun is None or self._begun[0] is not request:
            return await handler(request)
        (_, answering), self._begun = self._begun, None
        return await _rest(answering)

    # --- by hand ---------------------------------------------------------------------------------------------------

    def _go_on(self, is_answered: bool = True) -> None:
        """Answer requests in their order, and leave the rest to aiohttp from one on that can't be answered here."""
        while is_answered and self._messages:
            is_answered = self._answer_first()
        if is_answered or self._is_parked:
            return
        if self._waiter is None or self._waiter.done():
            self._drop()
        else:
            self._waiter.set_result(None)

    def _answer_first(self) -> bool:
        """Tell whether the first request could be answered."""
        if self._close or self._force_close or self._upgraded or self._paused or self._buffer_paused:
            return False
        message, payload = self._messages[0]
        manager, task = self._manager, self._task_handler
        if payload is not EMPTY_PAYLOAD or manager is None or task is None or self._keepalive_handle is None:
            return False
        if isinstance(message, _ErrInfo) or (match := self._quick.match(message)) is None:
            return False
        # It gets a writer when aiohttp goes on with it.
        request: Any = manager.request_factory(message, payload, self, _NO_WRITER, task)
        request._match_info = match
        return self._drive(request, self._quick.handler(request), contextvars.copy_context())

    def _drive(self, request: web.Request, answering: Answering, context: contextvars.Context) -> bool:
        """Go on with an answer; tell whether it was given."""
        try:
            waited = context.run(answering.send, None)
        except StopIteration as end:
            return self._write(request, end.value)
        except BaseException as error:
            self._begun = request, _raised(error)
            return False
        if waited is None:
            self._begun = request, answering
            return False
        # As an asyncio task tells a future that it took notice.
        waited._asyncio_future_blocking = False
        self._is_parked = self._request_in_progress = True
        waited.add_done_callback(lambda _: self._resume(request, answering, context))
        return False

    def _resume(self, request: web.Request, answering: Answering, context: contextvars.Context) -> None:
        self._is_parked = self._request_in_progress = False
        self._go_on(self._drive(request, answering, context))
        if not self._is_parked and self._handler_waiter is not None and not self._handler_waiter.done():
            self._handler_waiter.set_result(None)

    def _write(self, request: web.Request, response: web.StreamResponse) -> bool:
        transport, manager, parser = self.transport, self._manager, self._parser
        if not isinstance(response, Reply) or response.keep_alive is False:
            self._begun = request, _given(response)
            return False
        if transport is None or transport.is_closing() or manager is None or parser is None:
            return False
        transport.write(response.wire())
        self._messages.popleft()
        parser.message_consumed()
        manager.requests_count += 1
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        return True

    def _drop(self) -> None:
        """End what has begun and won't be run."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun[1].close()


async def _given(response: web.StreamResponse) -> web.StreamResponse:
    return response


async def _raised(error: BaseException) -> web.StreamResponse:
    raise error


class _QuickServer(web.Server):
    """Makes a protocol for each connection."""

    quick: QuickRoute

    def __call__(self) -> RequestHandler:
        return QuickProtocol(self, quick=self.quick, loop=self._loop, **self._kwargs)


class QuickRunner(web.AppRunner):
    """Runs the web server's application.

    Args:
        app: the application, not started.
        route: gives the quick route when everything is mounted; None for none.
        options: as for `web.AppRunner`.
    """

    __slots__ = ("_route",)

    def __init__(self, app: web.Application, route: Callable[[], QuickRoute | None], **options: Any) -> None:
        super().__init__(app, **options)
        self._route = route

    async def _make_server(self) -> web.Server:
        plain = await super()._make_server()
        route = self._route() if _suits(self.app) else None
        if route is None:
            return plain
        server = _QuickServer(
            plain.request_handler,
            request_factory=plain.request_factory,
            handler_cancellation=plain.handler_cancellation,
            loop=plain._loop,
            **plain._kwargs,
        )
        server.quick = route
        return server


def _suits(app: web.Application) -> bool:
    """Tell whether nothing of the user's own is in the way of every request, and aiohttp's inside is the known one."""
    hooks = [hook for hook in app.on_response_prepare if getattr(hook, "__module__", "") != "aiohttp_cors.cors_config"]
    known = {name for base in RequestHandler.__mro__ for name in getattr(base, "__slots__", ())}
    is_known = known >= _USED and hasattr(HttpRequestParser, "message_consumed")
    return all(map(is_own, app.middlewares)) and not hooks and is_known
