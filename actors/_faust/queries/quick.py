"""Answers a question for a key without an asyncio task, and without reading its headers again.

A client that keeps its connection open sends the same headers with every request. aiohttp parses the first request,
finds its handler and has the guard look at who sends it. From then on, what comes in one piece and is a request line
in front of the very bytes of headers that aiohttp has read and the guard has let in on this connection says nothing
new but its line. The line is read here, and the question is answered while it is read. Where a commit is under way it
is answered after that, together with others: see `rounds`.

Everything else is aiohttp's: the first request of a connection, other headers, other routes, requests that come in
pieces or several at once, bodies, what another worker has to be asked for, what goes wrong in an unknown way. It gets
the same bytes, and does all of it itself.

When it holds:

- Between two requests only: aiohttp's parser has nothing of an unfinished one, because all that it was given since it
  last had nothing is one request, head and body, and that was handled. Where an answer came before its request's body,
  aiohttp's waiter tells when the rest is there.
- Only for headers that announce no body: behind the others more comes, which isn't the next request.
- Answers keep the order of their requests: while aiohttp is at one, nothing is answered here, and while a question
  waits here, what comes behind it waits too.
- Who is let in is counted once for each question, also where aiohttp has to look at it after all. What the guard knows
  of a sender counts until its tokens change.

aiohttp's keep-alive and shutdown are what they were. What is used of its inside is checked when the server is made; an
aiohttp that has another one answers all requests in its own way.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest

from actors._core.logs import escaping
from actors._faust.access.guard import Guard, Pass, pass_of
from actors._faust.access.limits import MAX_HEADER_BYTES, MAX_PATH_BYTES
from actors._faust.access.rest import is_own
from actors._faust.queries.problems import Problem, not_ready, wire
from actors._faust.queries.question import Question
from actors._faust.queries.rounds import Rounds
from actors.runtime.meters import QueryMeters

logger = escaping(logging.getLogger(__name__))

_USED = {
    *("_messages", "_waiter", "_close", "_upgraded", "_paused", "_loop", "_manager", "_request_handler"),
    *("_keepalive_timeout", "_next_keepalive_close_time", "_request_in_progress", "_handler_waiter"),
}
_USED_OF_SERVER = {"request_factory", "handler_cancellation", "_loop", "_kwargs"}
_END = b"\r\n\r\n"
_MAX_HEAD_BYTES = MAX_PATH_BYTES + MAX_HEADER_BYTES + 1024
"""Of a request that is let in: its line, its headers as the guard counts them, and what else may stand between them."""

Ask = Callable[[str, bytes, str], Question]


class QuickRoute:
    """Questions for one key, as they are in a request's line.

    Args:
        prefix: where they are mounted.
        ask: gives the question for a key of a store, from its name, the key's bytes and what the URL's query says.
        guard: lets senders in.
        meters: gives what counts questions.
    """

    def __init__(self, prefix: str, ask: Ask, guard: Guard, meters: Callable[[], QueryMeters]) -> None:
        self.guard = guard
        self.meters = meters
        self.rounds = Rounds()
        self._ask = ask
        # Other routes, what could be one of them when it is decoded, and what its router takes for no store's name are
        # left to aiohttp.
        self._line = re.compile(
            rb"GET %b/([^%%/?#{}\x00-\x20\x7f-\xff]+)/"
            rb"(?!_count[ ?]|_many[ ?]|_[^? ]*%%|%%5[Ff]|%%2[Ee]|\.{1,2}[ ?])([^/?#\x00-\x20\x7f-\xff]+)"
            rb"(?:\?([^#\x00-\x20\x7f-\xff]*))? HTTP/1\.1" % prefix.encode()
        )

    def question(self, data: bytes, end: int) -> Question | None:
        """Give what the request line `data[:end]` asks for, None if aiohttp has to look at it."""
        found = self._line.fullmatch(data, 0, end)
        if found is None or end > MAX_PATH_BYTES:
            return None
        store, key, query = found.groups(b"")
        try:
            return self._ask(store.decode(), unquote_to_bytes(key), query.decode())
        except Exception:
            return None


@dataclass(slots=True, eq=False)
class _Asked:
    """A question.

    Attributes:
        data, end: its request's bytes, and where its line ends.
        allowed: who asks.
        began_s: when it came, by the loop's time.
        question: what is asked, once that was looked at.
        commit: which commit's end it waits for.
        since_s: when it began to wait, by the time of questions.
    """

    data: bytes
    end: int
    allowed: Pass
    began_s: float
    question: Question | None = None
    commit: object = None
    since_s: float = 0.0


class QuickProtocol(RequestHandler):
    """A client's connection."""

    __slots__ = ("_behind", "_first", "_held", "_known", "_pass", "_quick", "_taken")

    def __init__(self, manager: web.Server, *, quick: QuickRoute, **options: Any) -> None:
        super().__init__(manager, **options)
        self._quick = quick
        # What aiohttp was given since its parser had nothing unfinished: how it begins, and how many bytes.
        self._first = b""
        self._taken = 0
        # The headers that mean what they meant, with the ends of lines around them, and who was let in with them.
        self._known: bytes | None = None
        self._pass: Pass | None = None
        # The question that waits, and behind it what came meanwhile.
        self._held: _Asked | None = None
        self._behind = b""
        self._request_handler = partial(self._handled, manager.request_handler)

    # --- what aiohttp calls ----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Answer what is known but for its line; give aiohttp everything else."""
        if self._held is not None:
            self._keep_back(data)
            return
        known = self._known
        if known is None or self._taken or not data.endswith(known) or not self._answer(data, len(data) - len(known)):
            self._pass_on(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End what nobody waits for any more."""
        super().connection_lost(exc)
        if self._held is not None:
            self._release()

    async def _handled(self, handler: Callable[..., Awaitable[web.StreamResponse]], request: BaseRequest) -> Any:
        try:
            response = await handler(request)
        except web.HTTPException:
            self._learn(request)
            raise
        self._learn(request)
        return response

    def _pass_on(self, data: bytes) -> None:
        if len(self._first) < _MAX_HEAD_BYTES:
            self._first = (self._first + data)[:_MAX_HEAD_BYTES]
        self._taken += len(data)
        super().data_received(data)

    def _learn(self, request: BaseRequest) -> None:
        """Take note of a request that was handled, if nothing came behind it."""
        head = _head(self._first, request)
        is_whole = head is not None and len(head) + (request.content_length or 0) == self._taken
        if not is_whole or self._messages or self._upgraded or hdrs.TRANSFER_ENCODING in request.headers:
            return
        self._first, self._taken = b"", 0
        self._pass = pass_of(request)
        self._known = None if self._pass is None or head is None else _known(head, request)

    # --- answers ---------------------------------------------------------------------------------------------------

    def _answer(self, data: bytes, end: int) -> bool:
        """Tell whether a request is answered here, now or soon."""
        waiter, allowed, quick = self._waiter, self._pass, self._quick
        # aiohttp is at a request, or closes, or the client doesn't read.
        if waiter is None or waiter.done() or self._paused or allowed is None or quick.guard.is_full:
            return False
        asked = _Asked(data, end, allowed, self._loop.time())
        is_answered = None if quick.rounds.are_on(asked.began_s) else self._look(asked)
        if is_answered is None:
            self._hold(asked)
        return is_answered is not False

    def _look(self, asked: _Asked) -> bool | None:
        """Answer a question. False if aiohttp has to look at it, None if it has to wait for the end of a commit."""
        question = asked.question
        if question is None:
            return self._look_first(asked)
        if question.commit_under_way() is not asked.commit:
            content = _content(question, asked.since_s)
        elif question.is_late(asked.since_s):
            content = _late(question)
        else:
            return None
        if content is None:
            # It is counted again where it is looked at again.
            self._quick.guard.take_back(asked.allowed)
            return False
        self._write(asked, *content)
        return True

    def _look_first(self, asked: _Asked) -> bool | None:
        quick = self._quick
        question = quick.question(asked.data, asked.end)
        if question is None or not quick.guard.again(asked.allowed):
            return False
        asked.question, content = question, _content(question, None)
        if content is not None:
            self._write(asked, *content)
            return True
        asked.commit, asked.since_s = question.commit_under_way(), question.now_s()
        if asked.commit is not None:
            quick.rounds.begin(asked.began_s)
            return None
        quick.guard.take_back(asked.allowed)
        return False

    # --- those that wait -------------------------------------------------------------------------------------------

    def _hold(self, asked: _Asked) -> None:
        quick = self._quick
        quick.guard.enter()
        quick.meters().in_flight += 1
        self._held, self._request_in_progress = asked, True
        self._next_keepalive_close_time = asked.began_s + self._keepalive_timeout
        quick.rounds.add(partial(self._turn, asked))

    def _turn(self, asked: _Asked) -> bool:
        """Tell whether a question is answered, or need not be any more."""
        if self._held is not asked:
            return True
        try:
            is_answered = self._look(asked)
        except Exception:
            # It isn't known what the client has got.
            logger.exception("a question's answer can't be written")
            self._release()
            self.force_close()
            return True
        if is_answered is None:
            return False
        self._release()
        if not is_answered and self._close:
            # A server that stops takes no request, and has this one.
            self._write(asked, *_late(asked.question))
        elif not is_answered:
            self._pass_on(asked.data)
        if self._handler_waiter is not None and not self._handler_waiter.done():
            self._handler_waiter.set_result(None)
        self._let_go()
        return True

    def _release(self) -> None:
        self._held, self._request_in_progress = None, False
        self._quick.guard.leave()
        self._quick.meters().in_flight -= 1

    def _write(self, asked: _Asked, status: int, content: bytes) -> None:
        transport, manager, now_s = self.transport, self._manager, self._loop.time()
        if transport is None or manager is None:
            return
        transport.write(content)
        manager.requests_count += 1
        self._next_keepalive_close_time = now_s + self._keepalive_timeout
        self._quick.meters().answered(status, now_s - asked.began_s)

    def _keep_back(self, data: bytes) -> None:
        if not self._behind and self.transport is not None:
            self.transport.pause_reading()
        self._behind += data

    def _let_go(self) -> None:
        behind, self._behind = self._behind, b""
        if behind and self.transport is not None:
            self.transport.resume_reading()
            self.data_received(behind)


def _head(data: bytes, request: BaseRequest) -> bytes | None:
    """Give the line and headers with which `data` begins if aiohttp has read just these headers for the request.

    Another request before it had the same headers then, and a body of the same length: what follows isn't this one's.
    """
    end = data.find(_END)
    headers = [line.partition(b":") for line in data[: max(end, 0)].split(b"\r\n")[1:]]
    is_same = tuple((name, value.strip(b" \t")) for name, _, value in headers) == request.raw_headers
    return data[: end + len(_END)] if is_same and end >= 0 else None


def _known(head: bytes, request: BaseRequest) -> bytes | None:
    """Give the headers of a request that mean the same behind another line, None if they may mean something else."""
    is_usual = request.method == hdrs.METH_GET and request.version == HttpVersion11
    # Behind these headers a body comes, which isn't another request.
    if not is_usual or request.content_length or hdrs.EXPECT in request.headers:
        return None
    return head[head.find(b"\r\n") :]


def _content(question: Question, since_s: float | None) -> tuple[int, bytes] | None:
    """Give the status and all bytes of an answer, None if it can't be given now or here.

    What goes wrong goes wrong in aiohttp's way too, which says what it is.
    """
    try:
        held = question.held(since_s)
        return None if held is None else (200, wire(question.content(held)))
    except Problem as problem:
        return problem.status, problem.wire()
    except Exception:
        return None


def _late(question: Question | None) -> tuple[int, bytes]:
    reason = "this worker is stopping" if question is None else str(question.too_late())
    return 503, not_ready(reason).wire()


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
        route = self._route() if _suits(self.app, plain) else None
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


def _suits(app: web.Application, server: web.Server) -> bool:
    """Tell whether nothing of the user's own is in the way of every request, and aiohttp's inside is the known one."""
    hooks = [hook for hook in app.on_response_prepare if getattr(hook, "__module__", "") != "aiohttp_cors.cors_config"]
    known = {name for base in RequestHandler.__mro__ for name in getattr(base, "__slots__", ())}
    is_known = known >= _USED and vars(server).keys() >= _USED_OF_SERVER
    return all(map(is_own, app.middlewares)) and not hooks and is_known
