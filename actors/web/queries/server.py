"""The routes under `/actors`."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from aiohttp import web

from actors._core.logs import text_of
from actors._core.outside import MALFORMED
from actors._faust.app import App
from actors.errors import ReadOnlyQueryError, Rejected, UnresolvedSchemaError
from actors.ports import TopicPartition
from actors.runtime.handlers.actor import Actor
from actors.runtime.handlers.query_methods import Query
from actors.runtime.handlers.query_methods import QueryTarget as AskedActor
from actors.runtime.message.store import Store
from actors.runtime.message.unresolved import resolved
from actors.runtime.outbox.calls import QueriedOutbox
from actors.runtime.queries.histories import read_as_of
from actors.runtime.queries.queries import Bounds, read
from actors.runtime.rows.stores import RowStore
from actors.runtime.spec import ActorSpec
from actors.runtime.windows.joins import JoinStore
from actors.runtime.windows.store import WindowStore
from actors.web.access import Level, needs, protect
from actors.web.access.guard import RESERVATION
from actors.web.access.limits import JSON_GROWTH, LARGE_BYTES
from actors.web.access.signature import HOP
from actors.web.problems import JSON_HEADERS, Handler, Problem, bad_request, not_ready
from actors.web.queries import answers
from actors.web.queries.answers import (
    AskAnswer,
    CountAnswer,
    KeyAnswer,
    ManyAnswer,
    Overview,
    Positions,
    StoredKey,
    Value,
    ValueAnswer,
    decoded,
)
from actors.web.queries.coding import (
    COMMON,
    DEFAULT_LIMIT,
    MAX_LIMIT,
    KeyCoding,
    ManyBody,
    Parameters,
    StoreCoding,
    arguments,
    as_json,
    json_body,
    json_bytes,
    json_key,
    key_in_path,
    many_body,
)
from actors.web.queries.digests import digests, digests_body
from actors.web.queries.histories import as_of_in
from actors.web.queries.openapi import description, merged
from actors.web.queries.routing import Owners, Router, answer_bytes, wanted
from actors.web.queries.rows import RowCoding, range_of
from actors.web.queries.rows import answer as rows_answer
from actors.web.queries.service import QueryService, service_of
from actors.web.queries.windows import WindowCoding, span_of
from actors.web.queries.windows import answer as windows_answer
from actors.web.workers import ANSWER_S, Limits
from stores._core.overlay import after_prefix

PREFIX = "/actors"
KEY_PARAMETERS = COMMON | {"encoding", "raw", "partition"}
VALUE_PARAMETERS = KEY_PARAMETERS | {"as_of"}
RANGE_PARAMETERS = VALUE_PARAMETERS | {"prefix", "from", "to", "limit", "cursor"}
WINDOW_PARAMETERS = KEY_PARAMETERS | {"from", "to"}
ROW_PARAMETERS = WINDOW_PARAMETERS | {"prefix", "limit", "cursor", "reverse"}
COUNT_PARAMETERS = COMMON | {"encoding", "partition", "prefix", "from", "to", "exact"}
EXACT_COUNT_S = 120.0


class QueryRoutes:
    """Answers requests; one per web server.

    Args:
        app: the app, of which the declarations are known.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._codings: dict[str, StoreCoding] = {}
        self._windows: dict[str, WindowCoding | None] = {}
        self._keys: dict[str, KeyCoding] = {}
        self._description: bytes | None = None
        self.descriptions: list[Callable[[App], dict[str, Any]]] = [description]
        """Return OpenAPI documents, whose paths and components are shown as one."""

    def application(self) -> web.Application:
        """Return the part of the web server that is mounted under `/actors`."""
        routes = web.Application(middlewares=[self.resolved])
        # The router tries one after the other: the most frequent first.
        routes.router.add_get(r"/{store}/{key:(?!_count$|_ask/|_sent/)[\s\S]*}", self.one)
        routes.router.add_get("", self.overview)
        routes.router.add_get("/", self.overview)
        routes.router.add_get("/openapi.json", self.openapi)
        routes.router.add_get("/{store}", self.range)
        routes.router.add_get("/{store}/_count", self.count)
        routes.router.add_post("/{store}/_many", self.many)
        routes.router.add_post("/{store}/_digests", self.digests)
        routes.router.add_get(r"/{actor}/_ask/{query}/{key:[\s\S]*}", self.ask)
        routes.router.add_post(r"/{actor}/_ask/{query}/{key:[\s\S]*}", self.ask)
        return routes

    @web.middleware
    async def resolved(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer when the schemas of values are here, which the registry is asked for once each."""
        try:
            answer: web.StreamResponse = await resolved(lambda: handler(request), is_patient=False)
        except UnresolvedSchemaError as error:
            raise not_ready(str(error)) from error
        return answer

    @web.middleware
    async def measured(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count requests, and how long their answers take."""
        meters, began_s, code = self._app.actor_service.meters.queries, time.monotonic(), 500
        meters.in_flight += 1
        try:
            answer = await handler(request)
            code = answer.status
        finally:
            meters.in_flight -= 1
            meters.answered(code, time.monotonic() - began_s)
        return answer

    async def one(self, request: web.Request) -> web.StreamResponse:
        """Return the value of a key, of a table also as of a time, or the windows or rows of a key."""
        spec, coding = self._store(request.match_info["store"])
        windows = self._windows[coding.store.name]
        if windows is not None:
            return await self._parts_of(request, spec, windows)
        if isinstance(coding.store.below, RowStore):
            return await self._parts_of(request, spec, RowCoding(coding.store.below, coding))
        parameters = Parameters(request, VALUE_PARAMETERS)
        key, is_raw = coding.key_of_url(key_in_path(request, 3), parameters.encoding()), parameters.flag("raw")
        as_of = as_of_in(parameters, coding.store)
        named = parameters.number("partition", 0, spec.partition_count - 1)
        partition = _partition(spec, coding.store, key, named)
        router = self._router(parameters.read)

        async def here(_: list[int]) -> web.StreamResponse:
            (task,) = await router.reader.hold(spec, (partition,))
            held = task.of(coding.store.name)
            if as_of is None:
                found = read(held, key)
            else:
                with router.reader.pace.charged(), as_of.explained():
                    found = read_as_of(as_of.table, task, key, as_of.at_ms)
            if found.value is None:
                raise _absent(answers.one_value(coding, held, key, found, is_raw=is_raw))
            if len(found.value) <= LARGE_BYTES:
                return reply(answers.one_value(coding, held, key, found, is_raw=is_raw))
            # As it is stored, and as JSON.
            request[RESERVATION].take(2 * len(found.value))
            async with router.reader.pace.turn():
                return reply(answers.one_value(coding, held, key, found, is_raw=is_raw))

        return await self.at_the_owner(router, request, spec, partition, here, None)

    async def _parts_of(
        self, request: web.Request, spec: ActorSpec, coding: WindowCoding | RowCoding
    ) -> web.StreamResponse:
        """Return the windows, or the rows, of a key."""
        parameters = Parameters(request, WINDOW_PARAMETERS if isinstance(coding, WindowCoding) else ROW_PARAMETERS)
        key, is_raw = coding.key_of_url(key_in_path(request, 3), parameters.encoding()), parameters.flag("raw")
        named = parameters.number("partition", 0, spec.partition_count - 1)
        answer: Callable[..., Awaitable[KeyAnswer]]
        if isinstance(coding, WindowCoding):
            answer = functools.partial(windows_answer, coding=coding, span=span_of(parameters))
        else:
            answer = functools.partial(rows_answer, coding=coding, rows=range_of(parameters, coding))
        partition = _partition(spec, coding.store.rows, key, named)
        router, took = self._router(parameters.read), request[RESERVATION].take

        async def here(_: list[int]) -> web.StreamResponse:
            place: dict[str, Any] = {"key": key, "partition": partition, "is_raw": is_raw}
            return reply(await answer(router.reader, spec, **place, max_bytes=answer_bytes(request), took=took))

        return await self.at_the_owner(router, request, spec, partition, here, None)

    def _without_parts(self, coding: StoreCoding, what: str) -> None:
        """Refuse what needs keys of a store's rows; `Problem` for a window store, or one with rows below keys."""
        name = coding.store.name
        parts = "windows" if self._windows[name] is not None else "rows below each key" if coding.store.below else None
        if parts is not None:
            text = f"store {name} has {parts}, and {what}: ask for one key's, {PREFIX}/{name}/KEY?from=&to="
            raise bad_request("has-windows" if parts == "windows" else "has-rows", text)

    @needs(Level.READ)
    async def many(self, request: web.Request) -> web.StreamResponse:
        """Return the values of many keys."""
        spec, coding = self._store(request.match_info["store"])
        Parameters(request, frozenset())
        self._without_parts(coding, "several keys can't be asked for at once")
        body = many_body(await json_body(request))
        if body.partition is not None and not 0 <= body.partition < spec.partition_count:
            raise bad_request("bad-body", f"partition {body.partition} of {spec.partition_count}")
        router, took, max_bytes = self._router(body.read), request[RESERVATION].take, answer_bytes(request)
        # Equal keys are looked up once.
        numbers: dict[StoredKey, int] = {}
        places = await router.reader.pace.run(
            numbers.setdefault(one, len(numbers)) for one in _asked(spec, coding, body)
        )
        by_partition: dict[int, list[StoredKey]] = {}
        for one in numbers:
            by_partition.setdefault(one.partition, []).append(one)

        def share(partitions: list[int]) -> tuple[list[StoredKey], int]:
            theirs = sorted((one for number in partitions for one in by_partition[number]), key=numbers.__getitem__)
            return theirs, max_bytes * len(theirs) // len(numbers)

        async def here(partitions: list[int]) -> tuple[list[StoredKey], Sequence[Value], Positions]:
            theirs, most = share(partitions)
            found = await answers.many_values(
                router.reader, spec, coding, theirs, is_raw=body.raw, max_bytes=most, took=took
            )
            return theirs, *found

        async def there(address: str, partitions: list[int]) -> tuple[list[StoredKey], Sequence[Value], Positions]:
            theirs, most = share(partitions)
            content: dict[str, Any] = {"encoding": "base64", "raw": body.raw, "read": body.read}
            content["keys"] = [one.key for one in theirs]
            if body.partition is not None:
                content["partition"] = body.partition
            path = f"{PREFIX}/{coding.store.name}/_many"
            limits = Limits(answer_bytes=most, took=took)
            raw = await router.workers.fetch(
                "POST", address, path, body=msgspec.json.encode(content), partitions=partitions, limits=limits
            )
            answer = decoded(raw, ManyAnswer, address)
            return theirs, answer.results, answer.positions

        parts = await router.scatter(request, spec, by_partition, here=here, there=there)
        found = {numbers[one]: value for theirs, values, _ in parts for one, value in zip(theirs, values, strict=False)}
        positions = {number: position for _, _, those in parts for number, position in those.items()}
        answer = answers.as_values(coding.store.name, body.keys, places, found, positions, max_bytes=max_bytes)
        return reply(answer)

    async def range(self, request: web.Request) -> web.StreamResponse:
        """Return keys and values in byte order of the keys, a page at a time, of a table also as of a time."""
        spec, coding = self._store(request.match_info["store"])
        parameters = Parameters(request, RANGE_PARAMETERS)
        as_of = as_of_in(parameters, coding.store)
        bounds, after = self._bounds(coding, parameters), parameters.cursor()
        limit = parameters.number("limit", 1, MAX_LIMIT) or DEFAULT_LIMIT
        is_raw, router = parameters.flag("raw"), self._router(parameters.read)

        took, max_bytes = request[RESERVATION].take, answer_bytes(request)
        partitions = _partitions(request, spec, parameters)

        async def here(mine: list[int]) -> Any:
            most = max_bytes * len(mine) // len(partitions)
            return await answers.page(
                router.reader,
                spec,
                coding,
                mine,
                bounds=bounds,
                after=after,
                limit=limit,
                as_of=as_of,
                is_raw=is_raw,
                max_bytes=most,
                took=took,
            )

        async def there(address: str, theirs: list[int]) -> Any:
            limits = Limits(answer_bytes=max_bytes * len(theirs) // len(partitions), took=took)
            raw = await router.workers.fetch(
                "GET", address, request.rel_url.raw_path_qs, partitions=theirs, limits=limits
            )
            return answers.part_of(raw, address)

        parts = await router.scatter(request, spec, partitions, here=here, there=there)
        is_hop = HOP in request.headers
        return reply(answers.as_page(coding.store.name, parts, limit, max_bytes=max_bytes, with_places=is_hop))

    async def count(self, request: web.Request) -> web.StreamResponse:
        """Count keys: about, or exactly."""
        spec, coding = self._store(request.match_info["store"])
        parameters = Parameters(request, COUNT_PARAMETERS)
        bounds = self._bounds(coding, parameters)
        if parameters.read != "committed":
            raise bad_request("bad-parameter", "keys are counted by their owners only: leave read out")
        is_exact = parameters.flag("exact") or bounds != Bounds()
        router = self._router()

        async def here(partitions: list[int]) -> int:
            exact = bounds if is_exact else None
            return await answers.count(router.reader, spec, coding.store.name, partitions, bounds=exact)

        async def there(address: str, partitions: list[int]) -> int:
            path, answer_s = request.rel_url.raw_path_qs, EXACT_COUNT_S if is_exact else ANSWER_S
            raw = await router.workers.fetch("GET", address, path, partitions=partitions, answer_s=answer_s)
            return decoded(raw, CountAnswer, address).count

        partitions = _partitions(request, spec, parameters)
        counts = await router.scatter(request, spec, partitions, here=here, there=there)
        return reply(CountAnswer(coding.store.name, sum(counts), is_exact))

    @needs(Level.READ)
    async def digests(self, request: web.Request) -> web.StreamResponse:
        """Return the digests of a partition's rows, or the rows of some buckets, for `spark_replay watch`."""
        name = request.match_info["store"]
        spec = self._spec(name)
        Parameters(request, frozenset())
        raw = await json_body(request)
        body, router, took = digests_body(raw), self._router(), request[RESERVATION].take
        if body.partition >= spec.partition_count:
            raise bad_request("bad-body", f"partition {body.partition} of {spec.partition_count}")

        async def here(_: list[int]) -> web.StreamResponse:
            return reply(await digests(router.reader, spec, name, body, took=took))

        async def there(address: str, theirs: list[int]) -> web.StreamResponse:
            path, limits = f"{PREFIX}/{name}/_digests", Limits(took=took)
            answer = await router.workers.fetch(
                "POST", address, path, body=raw, partitions=theirs, answer_s=EXACT_COUNT_S, limits=limits
            )
            return web.Response(body=answer, headers=JSON_HEADERS)

        (answer,) = await router.scatter(request, spec, (body.partition,), here=here, there=there)
        return answer

    @needs(Level.READ)
    async def ask(self, request: web.Request) -> web.StreamResponse:
        """Return the result of an actor's query of a key."""
        spec, query = self._query(request.match_info["actor"], request.match_info["query"])
        keys = self.keys_of(spec)
        is_post = request.method == "POST"
        parameters = Parameters(request, COMMON | {"encoding", *(() if is_post else query.arguments.__struct_fields__)})
        body = await json_body(request) if is_post else None
        request[RESERVATION].take(JSON_GROWTH * len(body or b""))
        given = arguments(body) if body is not None else _texts(parameters, query)
        key = keys.key_of_url(key_in_path(request, 5), parameters.encoding())
        partition = spec.partitioner.home(key, spec.partition_count)
        own_key = keys.key(key)
        try:
            bound = query.bind(given, is_text=not is_post)
        except MALFORMED as error:
            raise bad_request("bad-argument", f"query {query.name}: {error}") from error
        router = self._router(parameters.read)

        async def here(_: list[int]) -> web.StreamResponse:
            (held,) = await router.reader.hold(spec, (partition,))
            asked = AskedActor(
                actor=spec.name,
                source=TopicPartition(spec.topic, partition),
                partition_count=spec.partition_count,
                key=own_key,
                raw_key=key,
                now_ms=held.now_ms,
                stores={store: held.stores[store.name] for store in spec.stores},
                windows=[store for store in spec.windows if isinstance(store, WindowStore)],
                effects=None if spec.effects is None else QueriedOutbox(spec.effects),
            )
            answer = _answer(asked, query, bound, self._app.actors[spec.name].declared)
            positions = {store.name: answers.position_of(held.of(store.name)) for store in spec.stores}
            what: dict[str, Any] = {"actor": spec.name, "query": query.name, "key": keys.plain_key(key)}
            age = answers.freshness(positions.values())
            return reply(AskAnswer(**what, value=answer, partition=partition, positions=positions, **age))

        return await self.at_the_owner(router, request, spec, partition, here, body)

    async def overview(self, request: web.Request) -> web.StreamResponse:
        """Return the stores, the actors, and the owners of partitions."""
        Parameters(request, frozenset())
        service, router = service_of(self._app), self._router()
        owners = await router.directory.owners(since_s=time.monotonic())
        async with router.reader.pace.turn():
            return reply(self._overview(service, owners))

    def _overview(self, service: QueryService, owners: Owners) -> Overview:
        return Overview(
            app=self._app.conf.id,
            worker=service.worker,
            address=service.address,
            stores=[
                {
                    "store": name,
                    "actor": spec.name,
                    "placement": self._app.stores[name].placement,
                    "partitions": spec.partition_count,
                    "partitioner": spec.partitioner.name,
                    "keys": self._kind_of_keys(name),
                }
                for name, spec in service.stores.items()
                if not _has_join(spec, name)
            ],
            actors=[
                {
                    "actor": name,
                    "topic": spec.topic,
                    "partitions": spec.partition_count,
                    "queries": sorted(self._app.actors[name].queries),
                }
                for name, spec in service.actors.items()
            ],
            partitions=[
                {
                    "actor": name,
                    "partition": partition,
                    "worker": owner.worker if owner else None,
                    "address": owner.address if owner else None,
                    "epoch": owner.epoch if owner else None,
                    "state": service.router.reader.state_of(spec, partition),
                }
                for name, spec in service.actors.items()
                for partition in range(spec.partition_count)
                for owner in (owners.get((name, partition)),)
            ],
            copies=[asdict(copy) for copy in self._app.actor_service.copies],
        )

    async def openapi(self, _: web.Request) -> web.StreamResponse:
        """Return the OpenAPI description."""
        if self._description is None:
            self._description = json_bytes(merged(describe(self._app) for describe in self.descriptions))
        return web.Response(body=self._description, headers=JSON_HEADERS)

    async def at_the_owner(
        self,
        router: Router,
        request: web.Request,
        spec: ActorSpec,
        partition: int,
        here: Callable[[list[int]], Awaitable[web.StreamResponse]],
        body: bytes | None,
    ) -> web.StreamResponse:
        """Return the answer of the owner of a partition, or of another worker that the router may ask."""
        if router.reader.has(spec, partition):
            with contextlib.suppress(*router.elsewhere):
                return await here([partition])

        async def there(address: str, _: list[int]) -> web.StreamResponse:
            path, took = request.rel_url.raw_path_qs, request[RESERVATION].take
            return await router.workers.relay(request.method, path, address, body, took)

        (answer,) = await router.scatter(request, spec, (partition,), here=here, there=there)
        return answer

    def _router(self, read: str = "committed") -> Router:
        service = service_of(self._app)
        return service.standby_router if read == "standby" else service.router

    def _spec(self, name: str) -> ActorSpec:
        stores = service_of(self._app).stores
        if name not in stores:
            known = ", ".join(sorted(stores)) or "none"
            raise Problem(404, "unknown-store", "There is no such store", f"store {name!r} isn't one of: {known}")
        return stores[name]

    def _store(self, name: str) -> tuple[ActorSpec, StoreCoding]:
        spec = self._spec(name)
        if _has_join(spec, name):
            text = f"store {name} has the records that join {spec.name} may still match, and can't be asked"
            raise bad_request(
                "has-a-join", f"{text}: send what the join makes of them to a topic, or keep it in a store"
            )
        if name not in self._codings:
            self._codings[name] = StoreCoding(self._app.stores[name])
            held = (store for store in spec.windows if store.name == name and isinstance(store, WindowStore))
            self._windows[name] = next((WindowCoding(store) for store in held), None)
        return spec, self._codings[name]

    def _bounds(self, coding: StoreCoding, parameters: Parameters) -> Bounds:
        """Return the range of a request."""
        if any(parameters.raw(name) is not None for name in ("prefix", "from", "to")):
            self._without_parts(coding, "prefix, from and to are of plain stores' keys")
        return _bounds(coding, parameters)

    def _kind_of_keys(self, store: str) -> str:
        _, coding = self._store(store)
        if isinstance(coding.store.below, RowStore):
            return RowCoding(coding.store.below, coding).kind
        return (self._windows[store] or coding).kind

    def _query(self, actor: str, name: str) -> tuple[ActorSpec, Query]:
        spec = service_of(self._app).actor(actor)
        queries = self._app.actors[actor].queries
        if name not in queries:
            known = ", ".join(sorted(queries)) or "none"
            detail = f"actor {actor} has no query {name!r}; it has: {known}"
            raise Problem(404, "unknown-query", "There is no such query", detail)
        return spec, queries[name]

    def keys_of(self, spec: ActorSpec) -> KeyCoding:
        """Return how the keys of an actor are written."""
        keys = self._keys.get(spec.name)
        if keys is None:
            keys = self._keys[spec.name] = KeyCoding.of_actor(self._app, spec.name)
        return keys


def mount(app: App, web_app: web.Application, add: Callable[[QueryRoutes, web.Application], None]) -> None:
    """Add the routes to a web server; `add` adds further ones to the same part."""
    routes = QueryRoutes(app)
    part = routes.application()
    add(routes, part)
    protect(app, web_app, PREFIX, part, watch=routes.measured)


def reply(content: msgspec.Struct) -> web.Response:
    """Return an answer."""
    return web.Response(body=json_bytes(content), headers=JSON_HEADERS)


def _absent(answer: ValueAnswer) -> Problem:
    key = msgspec.json.decode(json_bytes(answer.key))
    more = {name: getattr(answer, name) for name in ("partition", "position", "read", "staleness_ms")}
    return Problem(404, "no-such-key", "Key not found", f"store {answer.store} has no key {key!r}", key=key, **more)


def _partition(spec: ActorSpec, store: Store[Any, Any], key: bytes, given: int | None) -> int:
    """Return the partition of a key; `Problem` if it may be in any, and none was named."""
    if given is not None:
        return given
    if store.placement == "task":
        raise bad_request(
            "no-partition",
            f"keys of store {store.name} are kept where they were written: say which partition, 0 to "
            f"{spec.partition_count - 1}",
        )
    return spec.partitioner.home(key, spec.partition_count)


def _partitions(request: web.Request, spec: ActorSpec, parameters: Parameters) -> list[int]:
    given = parameters.number("partition", 0, spec.partition_count - 1)
    return wanted(request, spec.partition_count) if given is None else [given]


def _has_join(spec: ActorSpec, store: str) -> bool:
    """Return whether a store has the records of a join."""
    return any(one.name == store and isinstance(one, JoinStore) for one in spec.windows)


def _bounds(coding: StoreCoding, parameters: Parameters) -> Bounds:
    encoding = parameters.encoding()
    prefix, start, end = parameters.raw("prefix"), parameters.raw("from"), parameters.raw("to")
    if prefix is not None:
        if start is not None or end is not None:
            raise bad_request("bad-parameter", "prefix doesn't go together with from and to")
        raw = coding.prefix_of_url(prefix, encoding)
        return Bounds(raw, after_prefix(raw)) if raw else Bounds()
    return Bounds(
        None if start is None else coding.key_of_url(start, encoding),
        None if end is None else coding.key_of_url(end, encoding),
    )


def _asked(spec: ActorSpec, coding: StoreCoding, body: ManyBody) -> Iterator[StoredKey]:
    for given in body.keys:
        key = coding.key_of_json(json_key(given), body.encoding)
        yield StoredKey(_partition(spec, coding.store, key, body.partition), key)


def _texts(parameters: Parameters, query: Query) -> dict[str, Any]:
    found = {
        name: parameters.text(name) for name in query.arguments.__struct_fields__ if name not in ("read", "encoding")
    }
    return {name: text for name, text in found.items() if text is not None}


def _answer(asked: AskedActor, query: Query, bound: dict[str, Any], declared: Any) -> msgspec.Raw:
    is_class = isinstance(declared, type) and issubclass(declared, Actor)
    try:
        return as_json(asked.answer(query, bound, declared if is_class else None))
    except Rejected as error:
        raise Problem(422, "rejected", "The query was rejected", text_of(error)) from error
    except ReadOnlyQueryError as error:
        raise Problem(500, "read-only", "The query tried to do more than read", str(error)) from error
