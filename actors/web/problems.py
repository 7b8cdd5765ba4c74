"""Errors as `application/problem+json` (RFC 9457)."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from actors._core.logs import escaping
from actors.errors import NewerVersionError, NotOwnerError, NotReadyError

logger = escaping(logging.getLogger(__name__))

TYPE = "urn:faust-actors:problem:"
CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_MS = 250
"""An upper bound of most waits; the header has whole seconds only."""
NO_STORE = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
"""An answer is of its moment, and isn't embedded in other sites' pages."""
JSON_HEADERS = {**NO_STORE, "Content-Type": "application/json"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer for any web framework."""

    status: int
    body: bytes
    headers: Mapping[str, str]


def response_of(answer: HttpAnswer) -> web.Response:
    """Return an answer as aiohttp's."""
    return web.Response(body=answer.body, status=answer.status, headers=dict(answer.headers))


class ProblemAnswer(msgspec.Struct, frozen=True):
    """The members that every problem has."""

    type: str
    title: str
    status: int
    detail: str


class Problem(Exception):  # noqa: N818  RFC 9457's word
    """An error answer.

    Args:
        status: HTTP's.
        kind: the last part of the problem's type.
        title: the same for each problem of a kind.
        detail: what happened here, and what to do.
        headers: further headers of the reply.
        more: further members of the problem's JSON.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        title: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.title = title
        # It may quote a header, which may be no text.
        self.detail = detail.encode(errors="backslashreplace").decode()
        self.headers = headers or {}
        self.more = more

    def response_to(self, request: web.Request) -> web.Response:
        """Return the reply; it is the connection's last where the request's body wasn't read."""
        response = response_of(self.answer())
        if request.can_read_body:
            response.force_close()
        return response

    def answer(self) -> HttpAnswer:
        """Return the reply for any web framework."""
        headers = {**NO_STORE, **self.headers, "Content-Type": CONTENT_TYPE}
        if self.status == 503:
            headers["Retry-After"] = str(math.ceil(self.more.get("retry_after_ms", 1000) / 1000))
        content = {
            "type": TYPE + self.kind,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            **self.more,
        }
        return HttpAnswer(self.status, msgspec.json.encode(content), headers)


def bad_request(kind: str, detail: str) -> Problem:
    """Return the problem of a request that can't be understood."""
    return Problem(400, kind, "The request can't be understood", detail)


def not_ready(detail: str) -> Problem:
    """Return the problem of a question that can be answered later."""
    return Problem(503, "not-ready", "The state can't be read now", detail, retry_after_ms=RETRY_AFTER_MS)


def answer_to(error: BaseException, request: web.Request) -> web.Response:
    """Return the answer to a request that failed.

    Raises:
        web.HTTPException: the error is a redirect: aiohttp answers with it.
    """
    return _problem_of(error, request).response_to(request)


def _problem_of(error: BaseException, request: web.Request) -> Problem:
    match error:
        case Problem():
            return error
        case NotReadyError():
            return not_ready(str(error))
        case NotOwnerError():
            return Problem(421, "not-owner", "Another worker owns the partition", str(error))
        case NewerVersionError():
            return Problem(503, "newer-version", "A newer program wrote the value", str(error))
        case web.HTTPException():
            if error.status < 400:
                raise error
            return _of_http(error)
    logger.error("%s %s failed", request.method, request.rel_url.raw_path, exc_info=error)
    return Problem(500, "failed", "The query failed", "see the worker's log")


def _of_http(error: web.HTTPException) -> Problem:
    details: Mapping[int, str] = {
        404: "there is no such path: see /actors/openapi.json",
        405: "the path doesn't take this method: see /actors/openapi.json",
        413: "the body is too large: ask for fewer keys at once",
    }
    title = error.reason or "HTTP error"
    return Problem(error.status, f"http-{error.status}", title, details.get(error.status, title))
