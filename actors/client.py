"""Asks running workers for the committed state of an app's actors, from any Python program.

    async with StateClient(["http://10.0.0.1:6066", "http://10.0.0.2:6066"]) as state:
        await state.get("run-command-state", "command-17")

Any worker answers for any key. The client asks the owner of a key where it can tell which it is, asks again where a
worker can't answer for the moment, and doesn't take an answer that is older than one that it had before.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import cycle
from ssl import SSLContext
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypeVar, overload
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from actors._core.origins import is_on, origin_of
from actors._core.outside import MALFORMED
from actors._core.partitioner import PARTITIONERS
from actors.errors import ActorsError, UsageError
from actors.http_client import HttpClient

__all__ = [
    "Answer",
    "Position",
    "StateClient",
    "StateError",
    "StateRequestError",
    "StateUnavailableError",
    "SyncStateClient",
    "WindowValue",
]

T = TypeVar("T")
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

MAX_KEYS = 1_000
"""How many keys are asked for at once; the service's limit."""
PAGE_KEYS = 500
AGAIN_S = 0.1
SHUN_S = 30.0
"""How long an owner that couldn't be reached isn't asked directly."""
DEFAULT_TIMEOUT = timedelta(seconds=30)


class StateError(ActorsError):
    """A question for state got no answer."""


class StateUnavailableError(StateError, TimeoutError):
    """No worker could answer in time; the text has the last reason."""


class StateRequestError(StateError):
    """A worker refused the question: it would be refused again.

    Attributes:
        status: HTTP's: 400 for what can't be understood, 401 without a token that the workers take, 403, 404 for an
            unknown store, actor or query, 422 where the query raised `Rejected`, 500 where it failed.
        kind: what was wrong, as `unknown-store`.
    """

    def __init__(self, status: int, kind: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.kind = kind


class Position(msgspec.Struct, frozen=True):
    """The point in a partition's history that an answer is of; offsets are the next ones."""

    partition: int
    changelog_offset: int
    source_offset: int
    epoch: int
    changelog_id: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A store's value of a key.

    Attributes:
        found: whether the key is there; `value` is None if it isn't.
        expires_at_ms: when it stops being there, Unix milliseconds; None for never.
        position: the point that the answer is of.
        staleness_ms: all that was committed before so long ago is in it; 0 from the key's owner.
    """

    found: bool
    value: Any
    expires_at_ms: int | None
    position: Position
    staleness_ms: int = 0


class WindowValue(msgspec.Struct, frozen=True):
    """A window of a key and its value; times are Unix milliseconds."""

    start_ms: int
    end_ms: int
    value: Any


@dataclass(frozen=True, slots=True)
class _Stores:
    """The owner of each partition according to a worker; `routes` is the owner's address by (actor, partition)."""

    stores: Mapping[str, Mapping[str, Any]]
    routes: Mapping[tuple[str, int], str]


class BoundQuery(Protocol[P, R_co]):
    """A query of an actor at a key, as `Account.at("ada").can_pay`."""

    @property
    def function(self) -> Callable[Concatenate[Any, P], R_co]:
        """Return the query's function."""

    def names(self) -> tuple[str, str, Any]:
        """Return the actor's name, the query's and the key."""

    def arguments(self, args: Iterable[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return all arguments by name, as JSON has them."""

    def answer(self, value: Any) -> R_co:
        """Return what JSON has of an answer in its own type."""


class StateClient:
    """Asks workers for state. Use it in an `async with` block.

    Args:
        urls: where workers' web servers are, one or several.
        timeout: how long a call goes on asking.
        follow_owners: ask a key's owner directly; otherwise one of `urls` passes the question on.
        read: "committed" takes answers of owners only, none older than one that was there before. "standby" takes those
            of copies too (docs/how-to/standbys.md), which may be older; counts are of owners always.
        token: one of the workers' `query_tokens`. It is sent to the hosts of `urls` and of `trust_hosts` only: an owner
            on another host isn't asked directly.
        trust_hosts: further hosts of workers, as `10.0.*` or `*.bank.internal`; `["*"]` for any.
        ssl: for workers with https: whom to trust, and a certificate of one's own. Python's default when left out.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        timeout: timedelta = DEFAULT_TIMEOUT,
        follow_owners: bool = True,
        read: Literal["committed", "standby"] = "committed",
        token: str | None = None,
        trust_hosts: Sequence[str] = (),
        ssl: SSLContext | None = None,
    ) -> None:
        self._urls = [url.rstrip("/") for url in ([urls] if isinstance(urls, str) else urls)]
        if not self._urls:
            raise StateError("a client needs the address of at least one worker")
        self._timeout_s = timeout.total_seconds()
        self._read = None if read == "committed" else read
        self._follows = follow_owners and self._read is None
        if isinstance(trust_hosts, str):
            raise StateError("trust_hosts takes a list of hosts, as ['*.bank.internal']")
        # An owner's address is what a member of the group announced, and may be anybody's.
        self._hosts = ["*"] if token is None else [*map(_host, self._urls), *trust_hosts]
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = HttpClient(tls=ssl, headers=headers)
        self._is_secure = all(url.startswith("https:") for url in self._urls)
        self._turns = cycle([*self._urls[1:], self._urls[0]])
        self._stores: _Stores | None = None
        self._shunned: dict[str, float] = {}
        self._seen: dict[tuple[str, int], tuple[Position, float]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect. May be called twice."""
        await self._http.close()

    async def get(
        self, store: str, key: Any, default: Any = None, *, partition: int | None = None, as_of: int | None = None
    ) -> Any:
        """Return the value of a key, or `default`; else as `lookup`."""
        answer = await self.lookup(store, key, partition=partition, as_of=as_of)
        return answer.value if answer.found else default

    async def lookup(self, store: str, key: Any, *, partition: int | None = None, as_of: int | None = None) -> Answer:
        """Return a store's value of a key.

        Args:
            store: its name; a class actor's is the actor's.
            key: text, a number, what JSON can say, or bytes for keys that are bytes.
            partition: where to look, for a store with `placement="task"`.
            as_of: of a table with a history, the value as of that time, Unix milliseconds.

        Raises:
            StateUnavailableError: no worker could answer in time.
            StateRequestError: there is no such store, or it can't have such a key, or keeps no values of that time.
        """
        text, encoding = _key_in_url(key)
        query = _query(encoding=encoding, partition=partition, read=self._read, as_of=as_of)
        path = f"/actors/{quote(store, safe='')}/{text}?{query}"
        route = await self._route(store, key)
        is_found, content = await self._ask("GET", path, store=store, route=route, absent_is_fine=True)
        return Answer(
            found=is_found,
            value=content.get("value"),
            expires_at_ms=content.get("expires_at_ms"),
            position=msgspec.convert(content["position"], Position),
            staleness_ms=int(content.get("staleness_ms", 0)),
        )

    async def windows(
        self, store: str, key: Any, *, from_ms: int | None = None, to_ms: int | None = None
    ) -> list[WindowValue]:
        """Return the windows of a key of a window store, in order of their starts; else as `lookup`.

        Args:
            store: its name.
            key: as of `lookup`.
            from_ms: the first start, Unix milliseconds.
            to_ms: the last start, included.
        """
        text, encoding = _key_in_url(key)
        found: list[WindowValue] = []
        while True:
            query = _query(encoding=encoding, read=self._read, to=to_ms, **{"from": from_ms})
            path, route = f"/actors/{quote(store, safe='')}/{text}?{query}", await self._route(store, key)
            content = (await self._ask("GET", path, store=store, route=route))[1]
            if "windows" not in content:
                raise StateError(f"store {store} has no windows: use get() or lookup()")
            found += msgspec.convert(content["windows"], list[WindowValue])
            from_ms = content["next"]
            if from_ms is None:
                return found

    async def rows(
        self,
        store: str,
        key: Any,
        *,
        start: Any = None,
        end: Any = None,
        prefix: str | bytes | None = None,
        reverse: bool = False,
    ) -> AsyncIterator[tuple[Any, Any]]:
        """Return (row, value) of a key of a map, list or set store, page by page; else as `lookup`.

        Args:
            store: its name.
            key: as of `lookup`.
            start: the first row; of a list an index, below 0 from its end.
            end: the first row behind them.
            prefix: of a map or a set: rows whose stored bytes begin so.
            reverse: the last row first.
        """
        (text, encoding), cursor = _key_in_url(key), None
        bounds = {"from": _bound(start)[0], "to": _bound(end)[0], "prefix": _bound(prefix, is_prefix=True)[0]}
        while True:
            bounds |= {"cursor": cursor, "encoding": encoding, "reverse": "true" if reverse else None}
            query = _query(limit=PAGE_KEYS, read=self._read, **bounds)
            path, route = f"/actors/{quote(store, safe='')}/{text}?{query}", await self._route(store, key)
            content = (await self._ask("GET", path, store=store, route=route))[1]
            for row in content["rows"]:
                yield row["row"], row["value"]
            cursor = content["next"]
            if cursor is None:
                return

    async def get_many(self, store: str, keys: Iterable[Any], *, partition: int | None = None) -> dict[Any, Any]:
        """Return the values of those keys that are there; else as `lookup`.

        The values of one partition are of one moment, up to `MAX_KEYS` keys and some MiB of values.
        """
        left = list(dict.fromkeys(keys))
        found: dict[Any, Any] = {}
        while left:
            batch = left[:MAX_KEYS]
            is_bytes = any(isinstance(key, bytes) for key in batch)
            body: dict[str, Any] = {
                "encoding": "base64" if is_bytes else "json",
                "keys": [_base64(key) if is_bytes else key for key in batch],
            }
            if partition is not None:
                body["partition"] = partition
            if self._read is not None:
                body["read"] = self._read
            _, reply = await self._ask("POST", f"/actors/{quote(store, safe='')}/_many", store=store, body=body)
            answered = reply.get("next")
            answered = len(batch) if answered is None else max(1, answered)
            for key, result in zip(batch[:answered], reply["results"], strict=True):
                if result["found"]:
                    found[key] = result["value"]
            left = left[answered:]
        return found

    async def range(
        self,
        store: str,
        *,
        prefix: str | bytes | None = None,
        start: Any = None,
        end: Any = None,
        partition: int | None = None,
        as_of: int | None = None,
    ) -> AsyncIterator[tuple[Any, Any]]:
        """Return (key, value) in byte order of the stored keys, `start` included, `end` not; else as `lookup`.

        It is read page by page: each page is of the moment when it was read. Bytes come as base64. With `as_of` a time
        that is before the history by the time of a page is refused, also where the latest values are as old.
        """
        first, last, begin = _bound(start), _bound(end), _bound(prefix, is_prefix=True)
        encodings = {encoding for bound, encoding in (first, last, begin) if bound is not None}
        if len(encodings) > 1:
            raise StateError("start and end are of different kinds")
        cursor: str | None = None
        while True:
            query = _query(
                encoding=next(iter(encodings), None),
                partition=partition,
                limit=PAGE_KEYS,
                cursor=cursor,
                prefix=begin[0],
                to=last[0],
                read=self._read,
                as_of=as_of,
                **{"from": first[0]},
            )
            _, page = await self._ask("GET", f"/actors/{quote(store, safe='')}?{query}", store=store)
            for item in page["items"]:
                yield item["key"], item["value"]
            cursor = page["next"]
            if cursor is None:
                return

    async def count(self, store: str, *, prefix: str | bytes | None = None, exact: bool = False) -> int:
        """Return the number of keys of a store, estimated unless `exact`. Options as in `lookup`."""
        begin, encoding = _bound(prefix, is_prefix=True)
        query = _query(exact="true" if exact else None, prefix=begin, encoding=encoding if begin else None)
        _, reply = await self._ask("GET", f"/actors/{quote(store, safe='')}/_count?{query}", store=store)
        return int(reply["count"])

    @overload
    async def ask(self, actor: BoundQuery[P, R_co], /, *args: P.args, **arguments: P.kwargs) -> R_co: ...

    @overload
    async def ask(self, actor: str, query: str, key: Any, /, **arguments: Any) -> Any: ...

    async def ask(self, actor: Any, /, *args: Any, **arguments: Any) -> Any:
        """Return an actor's answer to a query about a key; the arguments are anything that JSON can say.

        Args:
            actor: the actor's name, with the query's name and the key behind it; or a reference, as
                `Account.at("ada").can_pay`, whose answer has the type that the query declares.
            args: query and key, or the query's arguments.
            arguments: the query's arguments.

        Raises:
            StateUnavailableError: no worker could answer in time.
            StateRequestError: there is no such query, it doesn't take the arguments, or it failed.
        """
        if not (isinstance(actor, str) or hasattr(actor, "names")):
            raise UsageError("ask(): give an actor's name, a query's and a key, or a reference, as Account.at(KEY).…")
        if not isinstance(actor, str):
            return actor.answer(await self.ask(*actor.names(), **actor.arguments(args, arguments)))
        query, key = args
        text, encoding = _key_in_url(key)
        path = f"/actors/{quote(actor, safe='')}/_ask/{quote(query, safe='')}/{text}?"
        path += _query(encoding=encoding, read=self._read)
        return (await self._ask("POST", path, body=arguments))[1]["value"]

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        store: str | None = None,
        route: str | None = None,
        body: Any = None,
        absent_is_fine: bool = False,
    ) -> tuple[bool, Any]:
        """Ask until there is an answer; return whether the key is there, and the answer."""
        deadline_s = time.monotonic() + self._timeout_s
        reason = "nobody was asked"
        while True:
            url = route or next(self._turns)
            wait_s, asked_s = AGAIN_S, time.monotonic()
            try:
                status, said = await self._send(method, url + path, body, deadline_s - asked_s)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                reason = f"{url} can't be reached: {error or type(error).__name__}"
                if route is not None:
                    self._shunned[route] = time.monotonic() + SHUN_S
            else:
                is_absent = status == 404 and str(said.get("type", "")).endswith(":no-such-key")
                if status == 200 or (is_absent and absent_is_fine):
                    late = self._late(store, said, asked_s)
                    if late is None:
                        return status == 200, said
                    reason = late
                elif status in (421, 429, 503):
                    reason = f"{url}: {said.get('detail', status)}"
                    wait_s = float(said.get("retry_after_ms", 1000)) / 1000
                else:
                    kind = str(said.get("type", "")).rpartition(":")[2]
                    raise StateRequestError(status, kind, str(said.get("detail", f"{url}: {status}")))
            # Whatever sent it there may be out of date.
            route, self._stores = None, None
            if time.monotonic() + wait_s >= deadline_s:
                raise StateUnavailableError(f"no answer within {self._timeout_s:g} s: {reason}")
            await asyncio.sleep(wait_s)

    async def _send(self, method: str, url: str, body: Any, left_s: float) -> tuple[int, dict[str, Any]]:
        content = None if body is None else msgspec.json.encode(body)
        reply = await self._http.send(method, url, body=content, timeout_s=max(left_s, AGAIN_S))
        try:
            said = msgspec.json.decode(reply.body)
        except MALFORMED:
            said = None
        return reply.status, said if isinstance(said, dict) else {"detail": f"not an answer: {reply.body[:100]!r}"}

    def _late(self, store: str | None, said: Mapping[str, Any], asked_s: float) -> str | None:
        """Return why an answer is older than one that was there before it was asked for, None if it isn't."""
        if store is None or self._read is not None:
            return None
        given = said.get("positions", {}).values() if "position" not in said else [said["position"]]
        for position in [msgspec.convert(position, Position) for position in given]:
            seen, came_s = self._seen.get((store, position.partition), (position, 0.0))
            # A log that was re-created begins a new history.
            if seen.changelog_id == position.changelog_id and _age(position) < _age(seen):
                # Answers of questions that were on their way together come in any order.
                if came_s < asked_s:
                    return f"the answer is of {position}, an earlier one of {seen}"
            else:
                self._seen[store, position.partition] = position, time.monotonic()
        return None

    async def _route(self, store: str, key: Any) -> str | None:
        """Return the address of a key's owner if it can be told; a wrong one costs a detour."""
        if not self._follows or not isinstance(key, str | bytes):
            return None
        known = self._stores or await self._learn()
        about = known.stores.get(store)
        kind = "base64" if isinstance(key, bytes) else "text"
        if about is None or about["keys"] != kind or about["placement"] != "key":
            return None
        raw = key if isinstance(key, bytes) else key.encode()
        # A function's name tells nothing: then any worker is asked.
        partitioner = PARTITIONERS.get(about["partitioner"])
        if partitioner is None:
            return None
        try:
            address = origin_of(known.routes.get((about["actor"], partitioner.home(raw, about["partitions"])), ""))
        except ValueError:
            return None
        if not is_on(address, self._hosts) or self._shunned.get(address, 0.0) > time.monotonic():
            return None
        # Nothing that was meant to be encrypted goes another way.
        return address if address.startswith("https:") or not self._is_secure else None

    async def _learn(self) -> _Stores:
        _, said = await self._ask("GET", "/actors")
        self._stores = _Stores(
            {about["store"]: about for about in said["stores"]},
            {(one["actor"], one["partition"]): one["address"] for one in said["partitions"] if one["address"]},
        )
        return self._stores


class SyncStateClient:
    """`StateClient` for programs without an event loop; from any thread. Use it in a `with` block."""

    def __init__(self, urls: str | Sequence[str], **options: Any) -> None:
        self.client = StateClient(urls, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="state client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a call of the asyncio client, as in `sync.run(sync.client.ask(…))`, and give its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def get(self, store: str, key: Any, default: Any = None) -> Any:
        """Return a key's value as `StateClient.get` does."""
        return self.run(self.client.get(store, key, default))

    def get_many(self, store: str, keys: Iterable[Any]) -> dict[Any, Any]:
        """Return the values of keys as `StateClient.get_many` does."""
        return self.run(self.client.get_many(store, keys))

    @overload
    def ask(self, actor: BoundQuery[P, R_co], /, *args: P.args, **arguments: P.kwargs) -> R_co: ...

    @overload
    def ask(self, actor: str, query: str, key: Any, /, **arguments: Any) -> Any: ...

    def ask(self, actor: Any, /, *args: Any, **arguments: Any) -> Any:
        """Return a query's answer as `StateClient.ask` does."""
        return self.run(self.client.ask(actor, *args, **arguments))

    def close(self) -> None:
        """Disconnect. May be called twice."""
        if self._loop.is_closed():
            return
        self.run(self.client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _host(url: str) -> str:
    """Return a URL's host.

    Raises:
        StateError: it has none.
    """
    try:
        host = URL(url).host_subcomponent or ""
    except ValueError:
        host = ""
    if not host:
        raise StateError(f"{url!r} isn't the address of a worker, as http://10.0.0.1:6066")
    return host


def _age(position: Position) -> tuple[int, int]:
    return position.epoch, position.changelog_offset


def _base64(key: Any) -> str:
    if not isinstance(key, bytes):
        raise StateError(f"keys that are bytes and keys that aren't, as {key!r}, can't be asked for together")
    return base64.urlsafe_b64encode(key).decode()


def _key_in_url(key: Any) -> tuple[str, str]:
    """Return a key for a URL, and how it is written there."""
    if isinstance(key, bytes):
        return quote(_base64(key), safe=""), "base64"
    return quote(json.dumps(key), safe=""), "json"


def _bound(key: Any, *, is_prefix: bool = False) -> tuple[str | None, str]:
    """Return the end of a range for a URL's parameters, and how it is written there."""
    if key is None:
        return None, "json"
    if isinstance(key, bytes):
        return _base64(key), "base64"
    return (str(key), "text") if is_prefix else (json.dumps(key), "json")


def _query(**given: Any) -> str:
    return urlencode({name: value for name, value in given.items() if value is not None})
