"""Finds write-ahead logs that don't continue a database's tables.

RocksDB replays the logs that it finds. It doesn't notice that one is missing between the tables and the logs, or
between two logs. A copy of a database that was taken while a worker used it may look like that: the manifest was
copied, then a log was flushed to a table and deleted, then the next log was copied. So may a disk after a loss of
power, which kept a log but not the end of the log before. Such a database opens without an error at a current position
and lacks keys.

The manifest says which log the tables end before (`MinLogNumberToKeep`), and each batch in a log has the sequence
number of its first write. Both formats are described in RocksDB's wiki ("MANIFEST", "Write Ahead Log File Format").
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_BLOCK_BYTES = 32 << 10
_HEADER_BYTES = 7
"""CRC-32C (4 bytes), length (2) and kind (1) of a fragment."""
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_BATCH_HEADER_BYTES = 12
"""Sequence number (8 bytes) and number of writes (4)."""

_LOG_NUMBER, _LAST_SEQUENCE, _MIN_LOG_NUMBER = 2, 4, 10
_NUMBERS = {_LOG_NUMBER, 3, _LAST_SEQUENCE, 9, _MIN_LOG_NUMBER, 203}
_TEXTS = {1, 8193}
"""The tags of an edit that come before the ones for files, by the kind of their value."""
_COMPACTION = {5, 6}


def why_torn(path: Path) -> str | None:
    """Return why the logs of the database in the folder don't continue its tables, None if they do or can't be read.

    The logs are listed before the manifest is read. If a worker uses the database, the list is older, which is no gap.
    """
    try:
        return _why_torn(path)
    except (OSError, IndexError, ValueError):
        return None


def _why_torn(path: Path) -> str | None:
    sizes = {int(file.stem): file.stat().st_size for file in path.glob("*.log") if file.stem.isdecimal()}
    logs = sorted(number for number, size in sizes.items() if size)
    if not logs:
        return None
    manifest = path / (path / "CURRENT").read_text().strip()
    made = int(manifest.name.rpartition("-")[2])
    flushed = _flushed(manifest.read_bytes(), made)
    live = [number for number in logs if number >= flushed.next_log]
    if not live:
        return None
    expected: int | None = None
    if flushed.next_log not in sizes:
        if flushed.next_log > made:
            return f"{_log(path, flushed.next_log).name} is missing, which comes before {_log(path, live[0]).name}"
        # Nothing was flushed since the database was opened, which gave the next log any number.
        expected = flushed.sequence + 1
    for number in live if expected is not None or len(live) > 1 else ():
        file = _log(path, number)
        for sequence, count in _batches(file.read_bytes()):
            if expected is not None and sequence != expected:
                return f"{file.name} goes on with write {sequence}, where write {expected} comes next"
            expected = sequence + count
    return None


def _log(path: Path, number: int) -> Path:
    return path / f"{number:06d}.log"


class _Flushed(NamedTuple):
    """The first log that isn't in the tables, and the last sequence number when the database was opened."""

    next_log: int
    sequence: int


def _flushed(manifest: bytes, made: int) -> _Flushed:
    """Read a manifest. Each opening makes one, with the number `made`; logs of later flushes have higher numbers."""
    next_log = sequence = 0
    is_opening = True
    for edit in _records(manifest):
        numbers, is_compaction = _numbers(edit)
        next_log = max(next_log, numbers.get(_MIN_LOG_NUMBER, 0))
        is_flush = max(numbers.get(_LOG_NUMBER, 0), next_log) > made
        is_opening = is_opening and not is_compaction and not is_flush
        if is_opening:
            sequence = max(sequence, numbers.get(_LAST_SEQUENCE, 0))
    return _Flushed(next_log, sequence)


def _numbers(edit: bytes) -> tuple[dict[int, int], bool]:
    """Return the numbers of an edit by their tags, and whether it is a compaction's. They come before the files."""
    at = 0
    found: dict[int, int] = {}
    while at < len(edit):
        tag, at = _varint(edit, at)
        if tag not in _NUMBERS and tag not in _TEXTS:
            return found, tag in _COMPACTION
        value, at = _varint(edit, at)
        if tag in _NUMBERS:
            found[tag] = value
        else:
            at += value
    return found, False


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _batches(raw: bytes) -> Iterator[tuple[int, int]]:
    """Return first sequence number and number of writes of each batch of a log."""
    for record in _records(raw):
        if len(record) >= _BATCH_HEADER_BYTES:
            yield int.from_bytes(record[:8], "little"), int.from_bytes(record[8:12], "little")


def _records(raw: bytes) -> Iterator[bytes]:
    """Return the whole records of a log or manifest. The end of a block that has no room for a header is skipped."""
    at, record = 0, b""
    while at + _HEADER_BYTES <= len(raw):
        room = _BLOCK_BYTES - at % _BLOCK_BYTES
        if room < _HEADER_BYTES:
            at += room
            continue
        length, kind = int.from_bytes(raw[at + 4 : at + 6], "little"), raw[at + 6]
        fragment = raw[at + _HEADER_BYTES : at + _HEADER_BYTES + length]
        if kind == 0 or len(fragment) < length:
            return
        at += _HEADER_BYTES + length
        if kind in (_FULL, _FIRST):
            record = fragment
        elif kind in (_MIDDLE, _LAST):
            record += fragment
        if kind in (_FULL, _LAST):
            yield record
