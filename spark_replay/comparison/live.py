"""The query API of running workers, as far as a comparison with their changelog needs it.

Of a partition the owner makes digests of the rows that haven't expired at a time, by bucket, or returns the rows of
some buckets with their write metadata; `spark_replay.comparison.watching` makes the same digests of a log:

    POST {url}/actors/{store}/_digests
    {"partition": 0, "as_of_ms": 1760000}                         and "buckets": 64, "rows": [3, 9] for rows

    200 {"position": {"changelog_offset": 42, "epoch": 3, …}, "digests": [-81, 7, …],
         "rows": [{"key": "YQ==", "value": …}, …]}

Keys and values are the stored bytes, in base64. An answer belongs to the position in it. 503 means that a partition is
moving: the question is repeated, after the time in `Retry-After` if the answer has one. Other answers are errors, with
`title` and `detail` (RFC 9457).
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping, Sequence
from ssl import SSLContext
from typing import Any
from urllib.parse import quote

import msgspec

from spark_replay.errors import LiveError, LogTooShortError, ToolMissingError
from spark_replay.session import first_line
from spark_replay.sources.base import Source
from spark_replay.sources.brokers.topic import Topic
from stores._core.digests import Digests
from stores._core.outside import MISSHAPEN

_UNAVAILABLE = 503
_TIMEOUT_S = 120.0
_ATTEMPTS = 12
_BACKOFF_S = 0.2
_LONGEST_BACKOFF_S = 5.0
_CATCH_UP_S = 30.0
_CATCH_UP_POLL_S = 0.2


class Workers:
    """The query API of running workers.

    Args:
        urls: Of one worker or more, such as `http://127.0.0.1:6066`; they are asked in turn.
        timeout_s: For one answer.
        token: One of the workers' `query_tokens`. Not shown anywhere.
        ssl: For workers with https: whom to trust, and a certificate of one's own. Python's default when left out.

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
        failures = []
        for url in itertools.islice(self._turn, len(self.urls)):
            address = f"{url}/actors/{quote(store, safe='')}/_digests"
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
            return decode_digests(address, response.data)
        raise LiveError(f"no worker answers: {'; '.join(failures)}")

    def close(self) -> None:
        """Close the connections. May be called twice."""
        self._pool.clear()


def decode_digests(address: str, raw: bytes) -> Digests:
    """Read the answer from an address; `LiveError` if it isn't one."""
    try:
        return msgspec.json.decode(raw, type=Digests)
    except (*MISSHAPEN, msgspec.MsgspecError) as error:
        raise LiveError(f"{address} doesn't answer in the protocol of `_digests` ({error!r})") from error


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


def _problem(raw: bytes) -> str:
    try:
        problem = json.loads(raw)
        return ": ".join(str(problem[name]) for name in ("title", "detail") if problem.get(name))
    except MISSHAPEN:
        return raw[:200].decode(errors="replace").strip() or "nothing"
