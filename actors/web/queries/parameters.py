"""What a request may say beside its path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from aiohttp import web

from actors._core.outside import MALFORMED
from actors._core.pages import Place, decode_place
from actors.web.problems import Problem, bad_request
from actors.web.queries.coding import ENCODINGS

DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000
MAX_KEYS = 1_000
READS = ("committed", "standby")
COMMON = frozenset({"read"})


class ManyBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `_many`."""

    keys: Annotated[list[msgspec.Raw], msgspec.Meta(extra_json_schema={"maxItems": MAX_KEYS})]
    encoding: str | None = None
    raw: bool = False
    partition: int | None = None
    read: str = "committed"


_MANY = msgspec.json.Decoder(ManyBody)


class Parameters:
    """A URL's parameters, each of which may be said once; unknown ones are refused, for they are typing errors.

    Args:
        request: the request.
        allowed: the names that are known.

    Attributes:
        read: "committed" if only the owner may answer, "standby" if standbys may answer too.

    Raises:
        Problem: one is unknown, given twice, or isn't text.
    """

    def __init__(self, request: web.Request, allowed: frozenset[str] = COMMON) -> None:
        self._values: dict[str, bytes] = {}
        self.read = "committed"
        query = request.rel_url.raw_query_string
        if not query:
            return
        # latin-1 keeps each byte as it is: a parameter may be part of a binary key.
        for name, value in parse_qsl(query, keep_blank_values=True, encoding="latin-1"):
            if name not in allowed:
                known = ", ".join(sorted(allowed))
                raise bad_request("bad-parameter", f"parameter {name!r} isn't known here; there are: {known}")
            if name in self._values:
                raise bad_request("bad-parameter", f"parameter {name} is there twice")
            self._values[name] = value.encode("latin-1")
        self.read = self.text("read") or "committed"
        check_read(self.read)

    def raw(self, name: str) -> bytes | None:
        """Return a parameter's bytes."""
        return self._values.get(name)

    def text(self, name: str) -> str | None:
        """Return a parameter as text."""
        raw = self._values.get(name)
        try:
            return None if raw is None else raw.decode()
        except UnicodeDecodeError as error:
            raise bad_request("bad-parameter", f"parameter {name} isn't UTF-8") from error

    def flag(self, name: str) -> bool:
        """Return a parameter that is true or false; false when it is left out."""
        text = self.text(name)
        if text not in (None, "true", "false"):
            raise bad_request("bad-parameter", f"parameter {name} is {text!r}, not true or false")
        return text == "true"

    def number(self, name: str, low: int, high: int) -> int | None:
        """Return a parameter that is a whole number from `low` to `high`."""
        text = self.text(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 12 and low <= int(text) <= high):
            raise bad_request("bad-parameter", f"parameter {name} is {text!r}, not a number from {low} to {high}")
        return int(text)

    def encoding(self) -> str | None:
        """Return how keys are written in this URL."""
        return checked_encoding(self.text("encoding"))

    def cursor(self) -> Place | None:
        """Return where the page before ended."""
        text = self.text("cursor")
        try:
            return None if text is None else decode_place(text)
        except ValueError as error:
            raise bad_request("bad-parameter", f"parameter cursor isn't one of a page's `next`: {error}") from error


def checked_encoding(encoding: str | None) -> str | None:
    """Refuse an unknown encoding."""
    if encoding is not None and encoding not in ENCODINGS:
        raise bad_request("bad-parameter", f"encoding is {encoding!r}, not one of {', '.join(ENCODINGS)}")
    return encoding


def check_read(read: str) -> None:
    """Refuse what can't be read from."""
    if read not in READS:
        raise bad_request("bad-parameter", f"read is {read!r}, not one of {', '.join(READS)}")


def key_in_path(request: web.Request, place: int) -> bytes:
    """Return the last part of the path, percent-decoded, which is the `place`-th."""
    parts = request.rel_url.raw_path.split("/", place)
    if "/" in parts[-1]:
        raise bad_request("bad-key", "a slash in a key has to be written as %2F")
    return unquote_to_bytes(parts[-1])


async def json_body(request: web.Request) -> bytes:
    """Return the body of a request that has to be JSON.

    Raises:
        Problem: it is of another type.
        web.HTTPRequestEntityTooLarge: it is too large.
    """
    if request.content_type != "application/json":
        given = request.headers.get("Content-Type") or "nothing"
        raise Problem(415, "not-json", "The body has to be JSON", f"Content-Type is {given}, not application/json")
    return await request.read()


def many_body(raw: bytes) -> ManyBody:
    """Read the body of `_many`; `Problem` if it isn't one, or has too many keys."""
    try:
        body = _MANY.decode(raw)
    except MALFORMED as error:
        raise bad_request("bad-body", f"the body isn't {{'keys': [...]}}: {error}") from error
    if len(body.keys) > MAX_KEYS:
        raise bad_request("bad-body", f"{len(body.keys)} keys: ask for up to {MAX_KEYS} at once")
    checked_encoding(body.encoding)
    check_read(body.read)
    return body


def json_key(raw: msgspec.Raw) -> Any:
    """Read one of the keys of a body; `Problem` if it isn't JSON."""
    try:
        return msgspec.json.decode(raw)
    except MALFORMED as error:
        raise bad_request("bad-body", f"a key isn't JSON: {error}") from error


def arguments(raw: bytes) -> Mapping[str, Any]:
    """Read a query's arguments from a body; `Problem` if it isn't a JSON object."""
    try:
        found: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, Any]) if raw.strip() else {}
    except MALFORMED as error:
        raise bad_request("bad-body", f"the body isn't a JSON object of arguments: {error}") from error
    return found
