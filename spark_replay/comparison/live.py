"""The state that running workers hold, asked for through their query API.

The protocol, of which any worker answers for any key:

    POST {url}/actors/{store}/_many
    {"encoding": "base64", "raw": true, "keys": ["YQ==", …]}      and "partition": 0 if the store may hold any key

    200 {"store": "spent",
         "results": [{"key": "YQ==", "value": "MTI=" or null, "partition": 0, "expires_at_ms": 1760000 or null}, …],
         "positions": {"0": {"changelog_offset": 42, "epoch": 3, "source_offset": 17}, …},
         "next": null, or how many results there are if they aren't of all keys}

Keys and values are the stored bytes. A result belongs to the position in the answer, and is compared with the log at
that position, so that a key which is written meanwhile is no mismatch. 503 means that a partition is moving: the
question is repeated, after the time in `Retry-After` if the answer has one. Other answers are errors, with `title` and
`detail` (RFC 9457).

Write metadata isn't served: values and expiries are compared, and causes decided by these alone.

Of a partition the owner also makes digests of the rows that haven't expired at a time, by bucket, or returns the rows
of some buckets with their write metadata; `spark_replay.comparison.buckets` makes the same of a log:

    POST {url}/actors/{store}/_digests
    {"partition": 0, "as_of_ms": 1760000}                         and "buckets": 64, "rows": [3, 9] for rows

    200 {"position": {"changelog_offset": 42, "epoch": 3, …}, "digests": [-81, 7, …],
         "rows": [{"key": "YQ==", "value": …}, …]}
"""

from __future__ import annotations

import base64
import itertools
import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from ssl import SSLContext
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812

from spark_replay.comparison.held import Held, Part
from spark_replay.errors import LiveError, LogTooShortError, ToolMissingError
from spark_replay.fold.points import now_ms
from spark_replay.session import first_line
from spark_replay.sources.base import Source
from spark_replay.sources.brokers.topic import Topic
from spark_replay.sources.changelog import read_rows
from spark_replay.sources.reading import reading
from stores._core.outside import MISSHAPEN
from stores._core.record import Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS_AT_ONCE = 500
_UNAVAILABLE = 503
_TIMEOUT_S = 30.0
_ATTEMPTS = 12
_BACKOFF_S = 0.2
_LONGEST_BACKOFF_S = 5.0
_CATCH_UP_S = 30.0
_CATCH_UP_POLL_S = 0.2
_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("expires_at_ms", pa.int64()),
        ("claimed", pa.int32()),
        ("position", pa.int64()),
        ("asked_ms", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A worker's answer for one key.

    Attributes:
        key: The key.
        value: Its value, None if it is missing.
        expires_at_ms: Unix milliseconds, 0 for never.
        partition: Where the worker has it.
        changelog_offset: The position that this is of.
        epoch: The owner's.
    """

    key: bytes
    value: bytes | None
    expires_at_ms: int
    partition: int
    changelog_offset: int
    epoch: int


class StoredRow(msgspec.Struct, frozen=True):
    """A key, and its value with the write metadata."""

    key: bytes
    value: bytes


class Digests(msgspec.Struct, frozen=True):
    """The digests of a partition's buckets, or the rows of some, at a position."""

    position: Position
    digests: list[int]
    rows: list[StoredRow]


class Workers:
    """The query API of running workers.

    Args:
        urls: Of one worker or more, such as `http://127.0.0.1:6066`; they are asked in turn.
        timeout_s: For one answer.
        token: One of the workers' `query_tokens`. Not shown anywhere.
        ssl: For workers with https: whom to trust, and a certificate of one's own. Python's default when left out.

    Attributes:
        answered: For how many keys workers have answered.

    Raises:
        ToolMissingError: urllib3 isn't installed.
        LiveError: There is no URL.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        timeout_s: float = _TIMEOUT_S,
        token: str | None = None,
        ssl: SSLContext | None = None,
    ) -> None:
        try:
            import urllib3
        except ImportError as error:
            raise ToolMissingError("urllib3 isn't installed: pip install 'faust-actors[spark]'") from error
        self.urls = tuple(url.rstrip("/") for url in urls if url.strip())
        if not self.urls:
            raise LiveError("--live takes the URL of a worker, such as http://127.0.0.1:6066")
        retries = urllib3.Retry(
            total=None,
            connect=1,
            read=1,
            redirect=0,
            status=_ATTEMPTS,
            other=0,
            allowed_methods=None,
            status_forcelist=(429, _UNAVAILABLE),
            backoff_factor=_BACKOFF_S,
            backoff_max=_LONGEST_BACKOFF_S,
            raise_on_status=False,
        )
        self._errors: Any = urllib3.exceptions
        said = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._pool = urllib3.PoolManager(retries=retries, timeout=timeout_s, headers=said, ssl_context=ssl)
        self._turn = itertools.cycle(self.urls)
        self.answered = 0

    def many(self, store: str, keys: Sequence[bytes], *, partition: int | None = None) -> list[Answer]:
        """Ask for keys: in their own partitions, or in one that is named.

        Raises:
            LiveError: No worker answers, or not as it should.
        """
        answers: list[Answer] = []
        while len(answers) < len(keys):
            first = self._first_of(store, keys[len(answers) :], partition)
            answers += first
            self.answered += len(first)
        return answers

    def digests(
        self, store: str, partition: int, *, as_of_ms: int, buckets: int | None = None, rows: Sequence[int] = ()
    ) -> Digests:
        """Ask for the digests of a partition's buckets, or for the rows of some of so many `buckets`.

        Raises:
            LiveError: The owner doesn't answer, or not as it should.
        """
        body: dict[str, Any] = {"partition": partition, "as_of_ms": as_of_ms}
        if buckets is not None:
            body |= {"buckets": buckets, "rows": list(rows)}
        address, raw = self._post(store, "_digests", body)
        try:
            return msgspec.json.decode(raw, type=Digests)
        except msgspec.MsgspecError as error:
            raise LiveError(f"{address} doesn't answer in the protocol of `_digests` ({error!r})") from error

    def _first_of(self, store: str, keys: Sequence[bytes], partition: int | None) -> list[Answer]:
        """Ask for keys, and return what one answer holds: all, or the first of them."""
        asked = [base64.b64encode(key).decode() for key in keys]
        where = {} if partition is None else {"partition": partition}
        address, raw = self._post(store, "_many", {"encoding": "base64", "raw": True, "keys": asked, **where})
        return _decoded(address, raw, keys)

    def _post(self, store: str, what: str, body: Mapping[str, Any]) -> tuple[str, bytes]:
        """Ask the workers in turn, and return the address and the body of the first answer."""
        failures = []
        for url in itertools.islice(self._turn, len(self.urls)):
            address = f"{url}/actors/{quote(store, safe='')}/{what}"
            try:
                response = self._pool.request(
                    "POST",
                    address,
                    body=json.dumps(body).encode(),
                    headers={**self._pool.headers, "Content-Type": "application/json"},
                    # Workers don't compress: what is compressed would only be large.
                    decode_content=False,
                )
            except self._errors.HTTPError as error:
                failures.append(f"{url}: {first_line(error)}")
                continue
            if response.status != 200:
                text = f"{address} answered {response.status}: {_problem(response.data)}"
                raise LiveError(text, is_unavailable=response.status == _UNAVAILABLE)
            return address, response.data
        raise LiveError(f"no worker answers: {'; '.join(failures)}")

    def close(self) -> None:
        """Close the connections. May be called twice."""
        self._pool.clear()


@contextmanager
def open_live(
    source: Source, workers: Workers, *, store: str, sample: int | None, placement: str
) -> Iterator[tuple[Held, Topic]]:
    """Ask running workers for the keys of a log; arguments and errors are those of `spark_replay.validate_live`.

    Returns:
        The answers, and the log, which reaches their positions.
    """
    with tempfile.TemporaryDirectory(prefix="spark-replay-") as folder:
        told = _ask(_batches(source, sample, placement), workers, store, to=Path(folder) / "answers.parquet")
        topic = caught_up(source, told.positions)
        yield _held(workers, store, topic, told), topic


@dataclass(slots=True)
class _Told:
    """The answers, in a file, and of each partition the highest position and epoch among them.

    `unanswered` has why the state of a partition can't be read: it isn't asked for again.
    """

    file: Path
    positions: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    asked_ms: int = 0
    unanswered: dict[int, str] = field(default_factory=dict)

    def read(self, spark: SparkSession) -> DataFrame:
        nothing = F.lit(None).cast("bigint")
        return spark.read.parquet(f"file://{self.file}").withColumns(
            {
                # the key is in another partition: that one's position doesn't apply to it
                "position": F.when(F.col("claimed") == F.col("partition"), F.col("position")),
                "source_offset": nothing,
                "epoch": nothing,
                "input": nothing.cast("int"),
            }
        )

    def add(self, answer: Answer) -> None:
        number = answer.partition
        self.positions[number] = max(self.positions.get(number, 0), answer.changelog_offset)
        self.epochs[number] = max(self.epochs.get(number, 0), answer.epoch)


def _ask(batches: Iterable[_Batch], workers: Workers, store: str, *, to: Path) -> _Told:
    """Ask for keys, and keep no more than a batch in memory."""
    told = _Told(to)
    with pq.ParquetWriter(to, _SCHEMA) as writer:
        for batch, answers in _answered(batches, workers, store, told):
            for answer in answers:
                told.add(answer)
            columns: list[list[Any]] = [
                batch.partitions,
                batch.keys,
                [answer.value for answer in answers],
                [answer.expires_at_ms for answer in answers],
                [answer.partition for answer in answers],
                [answer.changelog_offset for answer in answers],
                [told.asked_ms] * len(answers),
            ]
            writer.write_table(pa.table(columns, schema=_SCHEMA))
    return told


def _answered(
    batches: Iterable[_Batch], workers: Workers, store: str, told: _Told
) -> Iterator[tuple[_Batch, list[Answer]]]:
    """Return the batches with their answers. One that can't be answered is asked for by partition."""
    for each in batches:
        batch = each.of(number for number in each.partitions if number not in told.unanswered)
        if not batch.keys:
            continue
        # before the question: an answer is younger than this
        told.asked_ms = now_ms()
        try:
            yield batch, workers.many(store, batch.keys, partition=batch.asked)
        except LiveError as error:
            if not error.is_unavailable:
                raise
            numbers = sorted(set(batch.partitions))
            if len(numbers) == 1:
                told.unanswered[numbers[0]] = str(error)
            else:
                yield from _answered((batch.of([number]) for number in numbers), workers, store, told)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Keys, the partition where the log has each, and the one to ask in, if it has to be named."""

    partitions: list[int]
    keys: list[bytes]
    asked: int | None

    def of(self, numbers: Iterable[int]) -> _Batch:
        """Return the keys of some partitions."""
        chosen = set(numbers)
        pairs = [pair for pair in zip(self.partitions, self.keys, strict=True) if pair[0] in chosen]
        return _Batch([number for number, _ in pairs], [key for _, key in pairs], self.asked)


def _batches(source: Source, sample: int | None, placement: str) -> Iterator[_Batch]:
    with reading(str(source)):
        keys = _keys(source, sample)
        if placement == "task":
            keys = keys.orderBy("partition")
        rows = ((row["partition"], bytes(row["key"])) for row in keys.toLocalIterator())
        groups = itertools.groupby(rows, key=lambda row: row[0] if placement == "task" else None)
        for asked, group in groups:
            while batch := list(itertools.islice(group, KEYS_AT_ONCE)):
                yield _Batch([partition for partition, _ in batch], [key for _, key in batch], asked)


def _keys(source: Source, sample: int | None) -> DataFrame:
    rows = read_rows(source, source.describe())
    keys = rows.where(F.col("key").isNotNull()).select("partition", "key").distinct()
    if sample is None:
        return keys
    return keys.orderBy(F.xxhash64("key"), "partition").limit(sample)


def caught_up(source: Source, positions: Mapping[int, int]) -> Topic:
    """Describe the log once it reaches the answers' positions: workers may answer before a commit can be read."""
    deadline = time.monotonic() + _CATCH_UP_S
    while True:
        topic = source.describe()
        beyond = [
            number
            for number, position in positions.items()
            if number >= topic.partition_count or position > topic.ends[number]
        ]
        if not beyond:
            return topic
        if time.monotonic() > deadline:
            raise LogTooShortError(
                f"workers answered for partition {beyond[0]} at offset {positions[beyond[0]]}, and {source} ends "
                "before it: is this their cluster and their changelog?"
            )
        time.sleep(_CATCH_UP_POLL_S)


def _held(workers: Workers, store: str, topic: Topic, told: _Told) -> Held:
    where = ", ".join(workers.urls)

    def part(number: int, position: int) -> Part:
        return Part(
            partition=number,
            changelog_offset=position,
            as_of_ms=told.asked_ms,
            epoch=told.epochs[number],
            topic_id="",
            where=where,
            owner="the owner",
        )

    return Held(
        kind="live workers",
        where=where,
        app="",
        store=store,
        placement="task",
        partition_count=topic.partition_count,
        parts=tuple(part(number, position) for number, position in sorted(told.positions.items())),
        stale=(),
        read=told.read,
        is_sampled=True,
        unanswered=told.unanswered,
    )


class _Place(msgspec.Struct):
    changelog_offset: int
    epoch: int


class _Result(msgspec.Struct):
    key: bytes
    value: bytes | None
    partition: int
    expires_at_ms: int | None


class _Results(msgspec.Struct):
    results: list[_Result]
    positions: dict[int, _Place]
    next: int | None = None


def _decoded(address: str, raw: bytes, keys: Sequence[bytes]) -> list[Answer]:
    try:
        said = msgspec.json.decode(raw, type=_Results)
        answers = {
            result.key: Answer(
                key=result.key,
                value=result.value,
                expires_at_ms=result.expires_at_ms or 0,
                partition=result.partition,
                changelog_offset=said.positions[result.partition].changelog_offset,
                epoch=said.positions[result.partition].epoch,
            )
            for result in said.results
        }
        # Workers end a long answer early.
        return [answers[key] for key in keys[: len(keys) if said.next is None else max(1, said.next)]]
    except (*MISSHAPEN, msgspec.MsgspecError) as error:
        raise LiveError(f"{address} doesn't answer in the protocol of `_many` ({error!r})") from error


def _problem(raw: bytes) -> str:
    try:
        problem = json.loads(raw)
        return ": ".join(str(problem[name]) for name in ("title", "detail") if problem.get(name))
    except MISSHAPEN:
        return raw[:200].decode(errors="replace").strip() or "nothing"
