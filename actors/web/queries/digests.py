"""Digests of a store's rows, by which `spark_replay watch` compares the store with its changelog.

A row belongs to the bucket CRC-32 of its key modulo the number of buckets. Its digest is the first 8 bytes of the
SHA-256 of the key and the stored value, write metadata included, as a signed number; that of a bucket is the XOR of
its rows' digests. Spark's own functions make the same, see `spark_replay.comparison.watching`. (CRC-32 alone won't do:
the XOR of several is the same where their keys' values are exchanged.)

Rows that had expired by the asker's time are left out, so that the answer depends on no worker's clock. So are rows of
windows and joins that are past their retention, as the row `m` says, which this worker may have removed or not
(`stores._core.windows`). An answer with rows has the row `m` too, of whatever bucket it is.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from itertools import chain
from typing import Annotated

import msgspec

from actors._core.outside import MALFORMED
from actors.runtime.queries.queries import COUNT_SLICE, Bounds, Rows, StateReader
from actors.runtime.spec import ActorSpec
from actors.web.problems import Problem, bad_request
from actors.web.queries.answers import Took
from stores._core.digests import Digests, StoredRow
from stores._core.reader import PartitionReader
from stores._core.record import METADATA_BYTES, is_expired
from stores._core.windows import PROGRESS_KEY, decode_progress

MAX_BUCKETS = 1 << 14
ROWS_PER_BUCKET = 64
DIGEST_BYTES = 8
MAX_ROWS_BYTES = 16 << 20
"""Limit of keys and values in one answer, unless its first value alone is longer."""


class DigestsBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `_digests`: with `buckets` and `rows` the rows of these buckets are asked for, else digests."""

    partition: Annotated[int, msgspec.Meta(ge=0)]
    as_of_ms: int
    buckets: Annotated[int, msgspec.Meta(ge=1, le=MAX_BUCKETS)] | None = None
    rows: list[int] = []


def digests_body(raw: bytes) -> DigestsBody:
    """Read the body of `_digests`; `Problem` if it isn't one."""
    try:
        body = msgspec.json.decode(raw, type=DigestsBody)
    except MALFORMED as error:
        raise bad_request("bad-body", f"the body isn't {{'partition': 0, 'as_of_ms': …}}: {error}") from error
    if body.rows and body.buckets is None:
        raise bad_request("bad-body", "rows are of buckets: say how many there are (buckets)")
    return body


async def digests(reader: StateReader, spec: ActorSpec, store: str, body: DigestsBody, *, took: Took) -> Digests:
    """Return the digests of a partition of this worker, or its rows in `body.rows`, all as of one position."""
    rows: list[StoredRow] = []
    sums: list[int] = []

    def look(stored: Rows, estimated_keys: int) -> Iterator[None]:
        if body.rows:
            yield from _chosen(rows, stored, body, took=took)
            return
        sums.extend([0] * (body.buckets or bucket_count(estimated_keys)))
        yield from _summed(sums, stored, body.as_of_ms)

    has_windows = any(windows.name == store for windows in spec.windows)
    (part,), _ = await reader.walk(
        spec,
        store,
        (body.partition,),
        Bounds(),
        # The row `m` is read as of the moment of `stored`.
        lambda part, stored: look(kept(part.store, stored) if has_windows else stored, part.store.estimated_keys()),
    )
    return Digests(part.position, sums, rows)


def kept(store: PartitionReader, stored: Rows) -> Rows:
    """Return the rows of windows that aren't past their retention, all if the row `m` is missing or damaged."""
    raw = store.get(PROGRESS_KEY)
    try:
        expired = b"" if raw is None else decode_progress(raw[METADATA_BYTES:]).expired
    except ValueError:
        expired = b""
    # Past what may be a long range, which no slice would end in.
    return chain(store.scan(end=expired[:1]), store.scan(expired)) if expired else stored


def bucket_count(keys: int) -> int:
    """Return the number of buckets for a partition with about so many keys, a power of two."""
    return min(MAX_BUCKETS, 1 << (max(0, keys) // ROWS_PER_BUCKET).bit_length())


def _summed(sums: list[int], stored: Rows, as_of_ms: int) -> Iterator[None]:
    count, crc32, sha256 = len(sums), zlib.crc32, hashlib.sha256
    for number, (key, raw) in enumerate(stored, 1):
        if not is_expired(raw, as_of_ms):
            digest = sha256(key + raw).digest()
            sums[crc32(key) % count] ^= int.from_bytes(digest[:DIGEST_BYTES], "big", signed=True)
        if number % COUNT_SLICE == 0:
            yield


def _chosen(rows: list[StoredRow], stored: Rows, body: DigestsBody, *, took: Took) -> Iterator[None]:
    chosen, count, size = frozenset(body.rows), body.buckets or 1, 0
    for number, (key, raw) in enumerate(stored, 1):
        is_chosen, length = zlib.crc32(key) % count in chosen, len(key) + len(raw)
        if (is_chosen or key == PROGRESS_KEY) and not is_expired(raw, body.as_of_ms):
            rows.append(StoredRow(key, raw))
            took(length)
            size += length if is_chosen else 0
            if size > MAX_ROWS_BYTES and size > length:
                text = f"the rows of {len(chosen)} buckets of {count} have more than {MAX_ROWS_BYTES:,} bytes"
                raise Problem(413, "large-answer", "The answer is too large", f"{text}: ask for fewer buckets")
        if number % COUNT_SLICE == 0:
            yield
