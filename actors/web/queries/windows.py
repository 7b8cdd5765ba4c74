"""Answers of this worker about the windows of a key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from actors.declare.values.codecs import CodecError
from actors.runtime.queries.queries import StateReader, read
from actors.runtime.spec import ActorSpec
from actors.runtime.windows.committed import read_windows
from actors.runtime.windows.store import LAST_MS, WindowStore
from actors.web.problems import Problem, bad_request
from actors.web.queries.answers import KeyAnswer, Took, of_part
from actors.web.queries.coding import KeyCoding, Parameters, as_json, encoded

_ROW_BYTES = 64
"""About what the bounds of a window take in an answer."""


class WindowValue(msgspec.Struct, frozen=True):
    """A window and its value. Times are Unix milliseconds."""

    start_ms: int
    end_ms: int
    value: msgspec.Raw


class WindowsAnswer(KeyAnswer, frozen=True):
    """The windows of a key in order of their starts.

    Attributes:
        next: the `from` of the next page, None if there is none.
        stream_ms: stream time of the key's partition, None before its first record.
    """

    store: str
    key: Any
    windows: list[WindowValue]
    next: int | None
    stream_ms: int | None


class WindowCoding(KeyCoding):
    """How the keys and values of a window store are written outside of it."""

    def __init__(self, store: WindowStore[Any, Any]) -> None:
        super().__init__(f"store {store.name}", store.decode_key, store.encode_key)
        self.store = store

    def plain_value(self, raw: bytes, *, is_raw: bool) -> msgspec.Raw:
        """Return a window's stored value as JSON; `Problem` if it isn't a value of the store."""
        try:
            return as_json(encoded(raw) if is_raw else self.store.result(raw))
        except (CodecError, msgspec.MsgspecError) as error:
            text = f"store {self.store.name}: {error}; with raw=true its bytes are given"
            raise Problem(500, "bad-value", "The value isn't of the store's type", text) from error


def span_of(parameters: Parameters) -> tuple[int, int]:
    """Return the span of time in which windows begin, both bounds included, by `from` and `to`."""
    from_ms = parameters.number("from", 0, LAST_MS) or 0
    given = parameters.number("to", 0, LAST_MS)
    to_ms = LAST_MS if given is None else given
    if from_ms > to_ms:
        raise bad_request("bad-parameter", f"from={from_ms} is behind to={to_ms}")
    return from_ms, to_ms


async def answer(
    reader: StateReader,
    spec: ActorSpec,
    coding: WindowCoding,
    key: bytes,
    partition: int,
    span: tuple[int, int],
    *,
    is_raw: bool,
    max_bytes: int,
    took: Took,
) -> WindowsAnswer:
    """Return the windows of a key of this worker's partition; they end behind the first that exceeds `max_bytes`."""
    async with reader.pace.places:
        (task,) = await reader.hold(spec, (partition,))
        held = task.of(coding.store.name)
        with reader.pace.charged():
            found = read_windows(coding.store, lambda row: read(held, row).value, key, *span, items=held.store.scan)
        took(sum(_ROW_BYTES + len(raw) for _, raw in found.windows))

        def values() -> Iterator[WindowValue]:
            left = max_bytes
            for (start_ms, end_ms), raw in found.windows:
                shown = coding.plain_value(raw, is_raw=is_raw)
                size = _ROW_BYTES + memoryview(shown).nbytes
                took(size)
                left -= size
                yield WindowValue(start_ms, end_ms, shown)
                if left <= 0:
                    return

        rows = await reader.pace.run(values())
    next_ms = found.next_ms if len(rows) == len(found.windows) else found.windows[len(rows)][0].start_ms
    return WindowsAnswer(
        store=coding.store.name,
        key=encoded(key) if is_raw else coding.plain_key(key),
        windows=rows,
        next=next_ms,
        stream_ms=found.stream_ms if found.stream_ms >= 0 else None,
        **of_part(held),
    )
