"""Uncommitted writes in memory above the committed state of a partition.

    active writes   of the messages since the last commit began; a message that raises takes its own back
    frozen writes   of the commit that is under way, if one is
    base            committed: a `PartitionReader`; some values that were read are kept at hand

A read takes the first layer that knows the key, so that a handler sees its own writes at once and the base
never sees anything that Kafka may still refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

from mypy_extensions import mypyc_attr

from stores._core.record import (
    EXPIRY_AT,
    INPUT_BITS,
    INPUTS_VERSION,
    METADATA_BYTES,
    METADATA_VERSION,
    NEVER,
    NEVER_BYTES,
    encode_metadata,
    is_expired,
    pack_metadata,
)

if TYPE_CHECKING:
    from stores._core.reader import PartitionReader

Entry: TypeAlias = tuple[bytes, bytes | None]
"""The write metadata, and the value or None for a delete."""
Writes: TypeAlias = dict[bytes, Entry]

WRITE_OVERHEAD_BYTES = 64
"""Bytes of a write in a changelog batch beside its key and value: write metadata, its header's name, framing."""

KEPT_VALUES = 1_000
KEPT_VALUE_BYTES = 1_024
"""How many values of a partition's store are kept at hand, and how large one is at most."""

_first = itemgetter(0)


class MessageScope:
    """Fields that the writes of one message share, and a way to take them back.

    A task has one, which all its stores' overlays share; it sets `epoch` when it takes over, `source_offset`
    and `now_ms` per message or batch.

    Attributes:
        epoch: ownership epoch that goes into write metadata.
        source_offset: offset of the input record that is being handled.
        input: the place of that record's input; None where the actor has one input.
        now_ms: Unix milliseconds by which keys expire; never goes back.
        undo: (writes, key, previous entry or None when there was none), oldest first. Always the same list.
    """

    __slots__ = ("epoch", "input", "now_ms", "source_offset", "undo")

    def __init__(self, epoch: int = 0, source_offset: int = 0, now_ms: int = 0) -> None:
        self.epoch = epoch
        self.input: int | None = None
        self.source_offset = source_offset
        self.now_ms = now_ms
        self.undo: list[tuple[Writes, bytes, Entry | None]] = []

    def rollback(self, keep: int = 0) -> None:
        """Take back all writes since the last `release` or `rollback` but the first `keep`, newest first."""
        undo = self.undo
        while len(undo) > keep:
            writes, key, previous = undo.pop()
            if previous is None:
                writes.pop(key, None)
            else:
                writes[key] = previous

    def release(self) -> None:
        """Keep the writes: they can't be taken back one message at a time any more."""
        if self.undo:
            self.undo.clear()


@mypyc_attr(allow_interpreted_subclasses=True)
class Overlay:
    """The state of one partition as its handlers see it: uncommitted writes above the committed `base`.

    Of a base that nobody else writes to, up to `kept_values` values that were read needn't be read again.
    Values come and go without their metadata. A value that expired by the scope's `now_ms` isn't there.

    Attributes:
        writes: the active writes, the last one of each key. A new dict after `freeze` and `discard`.
        bytes_held: about what `writes` takes in a changelog batch. It never shrinks before `freeze`: after a
            rollback, or when values got shorter, it is too high, never too low.
    """

    __slots__ = (
        "_base_get",
        "_base_scan",
        "_frozen",
        "_is_frozen",
        "_kept",
        "_kept_values",
        "_log",
        "_scope",
        "bytes_held",
        "writes",
    )

    def __init__(self, base: PartitionReader, scope: MessageScope, kept_values: int = 0) -> None:
        self._base_get = base.get
        self._base_scan = base.scan
        self._scope = scope
        self._log = scope.undo.append
        self._frozen: Writes = {}
        self._is_frozen = False
        self._kept: dict[bytes, bytes] = {}
        self._kept_values = kept_values
        self.writes: Writes = {}
        self.bytes_held = 0

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, None when it is absent or expired."""
        entry = self.writes.get(key) or self._frozen.get(key)
        if entry is None:
            kept = self._kept
            raw = kept.get(key)
            if raw is None:
                raw = self._base_get(key)
                if raw is None:
                    return None
                if len(kept) < self._kept_values and len(raw) <= KEPT_VALUE_BYTES:
                    kept[key] = raw
            if raw[EXPIRY_AT:METADATA_BYTES] != NEVER_BYTES and is_expired(raw, self._scope.now_ms):
                return None
            return raw[METADATA_BYTES:]
        metadata, value = entry
        if metadata[EXPIRY_AT:] != NEVER_BYTES and is_expired(metadata, self._scope.now_ms):
            return None
        return value

    def set(self, key: bytes, value: bytes, expires_at_ms: int = NEVER) -> None:
        """Write `value`, to be there until `expires_at_ms` (Unix milliseconds)."""
        writes = self.writes
        previous = writes.get(key)
        self._log((writes, key, previous))
        scope = self._scope
        if scope.input is None:
            metadata = pack_metadata(METADATA_VERSION, scope.epoch, scope.source_offset, expires_at_ms)
        else:
            place = scope.source_offset << INPUT_BITS | scope.input
            metadata = pack_metadata(INPUTS_VERSION, scope.epoch, place, expires_at_ms)
        writes[key] = (metadata, value)
        if previous is None:
            self.bytes_held += len(key) + len(value) + WRITE_OVERHEAD_BYTES
        else:
            grown = len(value) - len(previous[1] or b"")
            if grown > 0:
                self.bytes_held += grown

    def set_all(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Write (key, value) pairs that don't expire."""
        writes, log, scope = self.writes, self._log, self._scope
        if scope.input is None:
            metadata = pack_metadata(METADATA_VERSION, scope.epoch, scope.source_offset, NEVER)
        else:
            metadata = encode_metadata(scope.epoch, scope.source_offset, input=scope.input)
        for key, value in rows:
            previous = writes.get(key)
            log((writes, key, previous))
            writes[key] = (metadata, value)
            if previous is None:
                self.bytes_held += len(key) + len(value) + WRITE_OVERHEAD_BYTES
            else:
                self.bytes_held += max(0, len(value) - len(previous[1] or b""))

    def delete(self, key: bytes) -> bool:
        """Remove `key`; tell whether it was there.

        Nothing is written for an absent key. An expired one counts as absent, but what is left of it is
        removed: that is how expired keys get their tombstone.
        """
        was_there = self.get(key) is not None
        if not was_there and not self.is_kept(key):
            return False
        writes = self.writes
        previous = writes.get(key)
        self._log((writes, key, previous))
        scope = self._scope
        writes[key] = (encode_metadata(scope.epoch, scope.source_offset, input=scope.input), None)
        if previous is None:
            self.bytes_held += len(key) + WRITE_OVERHEAD_BYTES
        return was_there

    def expired(self, key: bytes) -> bytes | None:
        """Return the value that `key` had until it expired, None when it has none or one that is there."""
        entry = self.writes.get(key) or self._frozen.get(key)
        if entry is not None:
            metadata, value = entry
            return value if value is not None and is_expired(metadata, self._scope.now_ms) else None
        raw = self._base_get(key)
        return raw[METADATA_BYTES:] if raw is not None and is_expired(raw, self._scope.now_ms) else None

    def is_kept(self, key: bytes) -> bool:
        """Return whether there is a value of `key`, also one that has expired and wasn't removed yet."""
        entry = self.writes.get(key) or self._frozen.get(key)
        return self._base_get(key) is not None if entry is None else entry[1] is not None

    def read(self, key: bytes) -> bytes | None:
        """Return the value of `key` with its metadata, as a `PartitionReader` does, also when it has expired."""
        entry = self.writes.get(key) or self._frozen.get(key)
        return self._base_get(key) if entry is None else with_metadata(entry)

    def scan(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Return (key, value with its metadata) as a `PartitionReader` does, as of the call."""
        return _layered(self._layer(start, end, reverse), self._base_scan(start, end, reverse=reverse), reverse)

    def absorb(self, writes: Writes) -> None:
        """Take over what another overlay above this one has gathered."""
        mine = self.writes
        for key, entry in writes.items():
            if key not in mine:
                self.bytes_held += len(key) + WRITE_OVERHEAD_BYTES
            self.bytes_held += len(entry[1] or b"")
            mine[key] = entry

    def has_write(self, key: bytes) -> bool:
        """Return whether there is a write of `key`, a delete too, that isn't in the base yet."""
        return key in self.writes or key in self._frozen

    def items(
        self, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Return (key, value) in byte order of the keys, `start` included, `end` not, as of the call.

        Costs a look at every uncommitted key, then the keys in the range.
        """
        return _unexpired(self.scan(start, end, reverse=reverse), self._scope.now_ms)

    def _layer(self, start: bytes | None, end: bytes | None, reverse: bool) -> list[tuple[bytes, bytes | None]]:
        layer = [
            (key, with_metadata(entry))
            for key, entry in (self._frozen | self.writes).items()
            if (start is None or key >= start) and (end is None or key < end)
        ]
        layer.sort(key=_first, reverse=reverse)
        return layer

    def prefix(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return (key, value) of the keys that begin with `prefix`, in byte order, as of the call."""
        return self.items(prefix, after_prefix(prefix))

    def freeze(self) -> Writes:
        """Begin a commit: freeze the active writes and give them, and start a new active layer.

        Raises:
            RuntimeError: another commit is under way, or a message's writes are neither released nor rolled
                back.
        """
        if self._is_frozen:
            raise RuntimeError("freeze() while a commit is under way: settle() or discard() comes first")
        if self._scope.undo:
            raise RuntimeError("freeze() inside a message: release() or rollback() of its scope comes first")
        self._frozen, self._is_frozen = self.writes, True
        self.writes = {}
        self.bytes_held = 0
        return self._frozen

    def settle(self) -> None:
        """End a commit: the frozen layer is in the base now, drop it."""
        kept = self._kept
        if len(kept) >= self._kept_values:
            kept.clear()
        for key in kept.keys() & self._frozen.keys():
            del kept[key]
        self._frozen, self._is_frozen = {}, False

    def discard(self) -> None:
        """Drop all that isn't in the base, frozen or active."""
        dropped = self.writes
        self._scope.undo[:] = [write for write in self._scope.undo if write[0] is not dropped]
        self.settle()
        self.writes = {}
        self.bytes_held = 0


def with_metadata(entry: Entry) -> bytes | None:
    """Return the entry as a `PartitionStore` takes it: write metadata and value in one, None for a delete."""
    metadata, value = entry
    return None if value is None else metadata + value


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the first key after all those that begin with `prefix`, None when there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


class OverlayReader:
    """An overlay in the place of a store's partition: the base of another overlay."""

    __slots__ = ("get", "scan")

    def __init__(self, overlay: Overlay) -> None:
        self.get = overlay.read
        self.scan = overlay.scan

    def position(self) -> None:
        """Return none: uncommitted state belongs to no position."""


def _unexpired(rows: Iterator[tuple[bytes, bytes]], now_ms: int) -> Iterator[tuple[bytes, bytes]]:
    for key, raw in rows:
        if not is_expired(raw, now_ms):
            yield key, raw[METADATA_BYTES:]


def _layered(
    layer: list[tuple[bytes, bytes | None]], base: Iterator[tuple[bytes, bytes]], reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    last = None
    # merge() is stable: of one key, the layer's entry comes before the base's.
    for key, raw in merge(layer, base, key=_first, reverse=reverse):
        if key == last:
            continue
        last = key
        if raw is not None:
            yield key, raw
