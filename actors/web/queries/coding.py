"""Decoding of requests and encoding of answers: parameters, bodies, keys and values as JSON, URLs or bytes.

Bytes are base64 in JSON. A key in a URL is what the store's serializer writes, as a command's is: `ada`, `42`,
`{"id":1}`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from aiohttp import web

from actors._core.outside import MALFORMED
from actors._core.pages import Place, decode_base64, decode_place
from actors._core.values.read_back import is_finite
from actors.declare.values.codecs import CodecError
from actors.declare.values.decoder import plain
from actors.declare.values.schemas import key_codec
from actors.errors import show_bytes
from actors.runtime.message.store import Store
from actors.web.problems import Problem, bad_request

ENCODINGS = ("text", "json", "base64")
MAX_KEY_BYTES = 64 * 1024
MAX_INTEGER_BITS = 63
DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000
MAX_KEYS = 1_000
READS = ("committed", "standby")
COMMON = frozenset({"read"})
_UNSET = object()


class KeyCoding:
    """How keys are written outside of the bytes in which they are stored.

    Args:
        what: whose keys they are, for people.
        decode: makes a key of its bytes.
        encode: makes the bytes.
    """

    def __init__(self, what: str, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]) -> None:
        self._what = what
        self._decode = decode
        self._encode = encode
        self._kind: str | None = None
        self._default: str | None = None

    @classmethod
    def of_actor(cls, app: Any, actor: str) -> KeyCoding:
        """Return how the keys of an actor are written."""
        codec = key_codec(app, app.actors[actor].topic.schema)
        return cls(f"actor {actor}", codec.decode, codec.encode)

    @property
    def kind(self) -> str:
        """The kind of keys: `base64` for bytes, `text` for text that is stored as it is, `other`."""
        if self._kind is None:
            try:
                probe = self._decode(b"0")
            except CodecError:
                probe = None
            self._kind = "base64" if isinstance(probe, bytes) else "text" if probe == "0" else "other"
        return self._kind

    @property
    def default_encoding(self) -> str:
        """How a key is written where nothing else is said."""
        self._default = "base64" if self.kind == "base64" else "text"
        return self._default

    def key_of_url(self, given: bytes, encoding: str | None) -> bytes:
        """Return the stored bytes of a key that was in a URL, percent-decoded.

        Raises:
            Problem: it isn't a key of the store.
        """
        encoding = encoding or self._default or self.default_encoding
        if encoding == "text":
            return self._first_key((given, _quoted(given)), given)
        if encoding == "base64":
            return self._from_base64(given)
        try:
            value = json.loads(given)
        except MALFORMED as error:
            raise bad_request("bad-key", f"{show_bytes(given)} isn't JSON: {error}") from error
        return self.key_of_json(value, "json")

    def key_of_json(self, value: Any, encoding: str | None) -> bytes:
        """Return the stored bytes of a key that was in a JSON body; `Problem` if it isn't a key of the store."""
        encoding = encoding or ("base64" if self.default_encoding == "base64" else "json")
        if encoding == "base64":
            return self._from_base64(value)
        try:
            raw = json.dumps(value).encode()
        except MALFORMED as error:
            raise bad_request("bad-key", f"{self._what}: a key is nested too deeply") from error
        if isinstance(value, str):
            plain = value.encode("utf-8", errors="surrogatepass")
            # The one that is read back as the same text; of a key that isn't text, the one that can be read.
            same = [one for one in (raw, plain) if self._decoded(one) == value]
            return self._first_key(same or (raw, plain), plain)
        if isinstance(self._decoded(raw), str):
            raise bad_request("bad-key", f"{self._what}: keys are text, not {show_bytes(raw)}")
        return self._first_key((raw,), raw)

    def key(self, raw: bytes) -> Any:
        """Return the key that is stored as `raw`; `Problem` if there can't be such a key."""
        try:
            return self._decode(raw)
        except CodecError as error:
            raise bad_request("bad-key", f"{self._what}: {error}") from error

    def prefix_of_url(self, given: bytes, encoding: str | None) -> bytes:
        """Return the bytes of a prefix, which is no key itself."""
        if (encoding or self.default_encoding) == "base64":
            return self._from_base64(given)
        return given

    def plain_key(self, raw: bytes) -> Any:
        """Return a stored key for `json_bytes`."""
        try:
            key = self._decode(raw)
        except CodecError:
            return {"base64": encoded(raw)}
        # The encoder writes integers of 64 bits, and infinity as null.
        is_number = key.bit_length() <= MAX_INTEGER_BITS if isinstance(key, int) else is_finite(key)
        return key if is_number else {"base64": encoded(raw)}

    def _decoded(self, raw: bytes) -> Any:
        try:
            return self._decode(raw)
        except CodecError:
            return _UNSET

    def _first_key(self, candidates: Sequence[bytes | None], given: bytes) -> bytes:
        reason = "no text"
        for raw in candidates:
            if raw is None:
                continue
            try:
                return self._checked(self._encode(self._decode(raw)))
            except CodecError as error:
                reason = str(error)
        raise bad_request("bad-key", f"{self._what}: {show_bytes(given)} can't be a key: {reason}")

    def _from_base64(self, text: Any) -> bytes:
        try:
            return self._checked(decode_base64(text))
        except ValueError as error:
            raise bad_request("bad-key", f"{self._what}: a key isn't base64: {error}") from error

    @staticmethod
    def _checked(raw: bytes) -> bytes:
        if len(raw) > MAX_KEY_BYTES:
            raise bad_request("bad-key", f"a key of {len(raw)} bytes: the longest has {MAX_KEY_BYTES}")
        return raw


class StoreCoding(KeyCoding):
    """How one store's keys and values are written outside of it."""

    def __init__(self, store: Store[Any, Any]) -> None:
        # Looked up late: a class actor's store learns its codecs after it was made.
        super().__init__(f"store {store.name}", lambda raw: store.decode_key(raw), lambda key: store.encode_key(key))
        self.store = store

    def plain_value(self, raw: bytes, *, is_raw: bool, raw_key: bytes | None = None) -> Any:
        """Return a stored value, without its metadata, for `json_bytes`; `raw_key` says what it is where it matters.

        Raises:
            Problem: it isn't a value of the store's type.
        """
        if is_raw:
            return encoded(raw)
        try:
            return self.store.decode_value(raw) if raw_key is None else self.store.shown(raw_key, raw)
        except CodecError as error:
            raise Problem(
                500,
                "bad-value",
                "The value isn't of the store's type",
                f"store {self.store.name}: {error}; with raw=true its bytes are given",
            ) from error


def encoded(raw: bytes) -> str:
    """Return bytes as base64."""
    return base64.b64encode(raw).decode()


def as_json(value: Any) -> msgspec.Raw:
    """Return a value as JSON for a place in JSON; see `json_bytes`."""
    return msgspec.Raw(json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Return a value as JSON: of a model its fields, of bytes their base64; `Problem` if JSON can't say it."""
    try:
        return _ENCODER.encode(value)
    except (TypeError, OverflowError, *MALFORMED) as error:
        raise Problem(500, "not-json", "The value can't be written as JSON", str(error)) from error


_ENCODER = msgspec.json.Encoder(enc_hook=plain)


def _quoted(given: bytes) -> bytes | None:
    """Return text as JSON, None if it isn't text."""
    try:
        return json.dumps(given.decode()).encode()
    except UnicodeDecodeError:
        return None


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
        request: the request, or the query of its URL as it was sent.
        allowed: the names that are known.

    Attributes:
        read: "committed" if only the owner may answer, "standby" if standbys may answer too.

    Raises:
        Problem: one is unknown, given twice, or isn't text.
    """

    def __init__(self, request: web.Request | str, allowed: frozenset[str] = COMMON) -> None:
        self._values: dict[str, bytes] = {}
        self.read = "committed"
        query = request if isinstance(request, str) else request.rel_url.raw_query_string
        if not query:
            return
        # latin-1 keeps each byte as it is: a parameter may be part of a binary key.
        for name, value in parse_qsl(query, keep_blank_values=True, encoding="latin-1"):
            if name not in allowed:
                known = ", ".join(sorted(allowed))
                raise bad_request("bad-parameter", f"parameter {name!r} is unknown here; known are: {known}")
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
        if not (text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high):
            raise bad_request("bad-parameter", f"parameter {name} is {text!r}, not a number from {low} to {high}")
        return int(text)

    def encoding(self) -> str | None:
        """Return the form of keys in this URL."""
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
    return last_key(request.rel_url.raw_path, place)


def last_key(raw_path: str, place: int) -> bytes:
    """Return the last part of a path, percent-decoded, which is the `place`-th."""
    parts = raw_path.split("/", place)
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
