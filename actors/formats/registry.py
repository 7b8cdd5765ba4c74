"""The client of a schema registry with Confluent's API.

One request is made for each schema and process. Codecs look schemas up without waiting: what isn't here raises
`UnresolvedSchemaError`, whose `fetch` asks the registry. The client runs on aiohttp, which a worker has in any case;
Confluent's own brings a second HTTP client and a second Kafka client.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import quote
from uuid import UUID
from weakref import WeakKeyDictionary

from yarl import URL

from actors._core.backoff import Backoff
from actors._core.logs import Reminders, escaping, text_of
from actors._core.outside import MALFORMED
from actors.errors import ConfigurationError, UnresolvedSchemaError
from actors.http_client import HttpClient

logger = escaping(logging.getLogger(__name__))

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
REQUEST_S = 10.0
"""How long one request may take."""
REMIND_S = 60.0
MAX_ANSWER_BYTES = 8 * 1024 * 1024
MAX_DEPTH = 50
"""Of references."""
MOST_MISSING = 10_000
"""How many ids that the registry lacks are remembered: hostile records may name any."""
UNKNOWN_SUBJECT, UNKNOWN_VERSION, UNKNOWN_SCHEMA = 40401, 40402, 40403
SchemaType = Literal["AVRO", "PROTOBUF", "JSON"]


class RegistryError(Exception):
    """The registry gave no answer that can be used: ask again later.

    Attributes:
        status: of HTTP, 0 if there was no answer.
        code: the registry's own.
    """

    def __init__(self, text: str, *, status: int = 0, code: int = 0) -> None:
        super().__init__(text)
        self.status, self.code = status, code


class MissingSchemaError(Exception):
    """The registry lacks a schema for certain."""


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """A schema that another one uses: its name there, and where it is registered."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as the registry has it.

    Attributes:
        text: the schema.
        type: its kind.
        references: the schemas that it uses.
        resolved: the texts of these and of those that they use, by name; those without uses of their own come first.
        other_text: the same schema as other clients write it, which may be what is registered.
        uses: in the place of `references`, the schemas that are registered under their names ahead of this one.
    """

    text: str
    type: SchemaType = "AVRO"
    references: tuple[SchemaReference, ...] = ()
    resolved: Mapping[str, str] = field(default_factory=dict, compare=False)
    uses: tuple[tuple[str, Schema], ...] = ()
    other_text: str = ""

    def body(self) -> dict[str, Any]:
        """Return what requests say of it."""
        body: dict[str, Any] = {"schema": self.text}
        if self.type != "AVRO":
            body["schemaType"] = self.type
        if self.references:
            body["references"] = [asdict(used) for used in self.references]
        return body


class Transport(Protocol):
    """Sends requests to a registry; `actors.testing.FakeRegistry` is one."""

    async def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status and the JSON of an answer.

        Raises:
            OSError, ValueError: there was none, or it is no JSON.
        """


@dataclass(frozen=True, kw_only=True)
class Registry:
    """Where a registry is, and how it is reached.

    Attributes:
        url: its address; may have user and password.
        token: a bearer token, in the place of these.
        ssl_context: for HTTPS, where the machine's certificates don't do.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    ssl_context: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"Registry({self.shown})"

    @property
    def shown(self) -> str:
        """The address without password."""
        return str(URL(self.url).with_user(None))

    async def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status and the JSON of an answer; see `Transport`."""
        url, headers = URL(self.url), {"Accept": f"{CONTENT_TYPE}, application/json", "Content-Type": CONTENT_TYPE}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        elif url.user is not None:
            pair = base64.b64encode(f"{url.user}:{url.password or ''}".encode()).decode()
            headers["Authorization"] = f"Basic {pair}"
        target, raw = str(url.with_user(None)).rstrip("/"), None if body is None else json.dumps(body).encode()
        options: dict[str, Any] = {"timeout_s": REQUEST_S, "connect_s": REQUEST_S, "max_bytes": MAX_ANSWER_BYTES}
        # Requests are rare: a connection for each leaves nothing open.
        client = HttpClient(tls=self.ssl_context)
        try:
            answer = await client.send(method, f"{target}/{path}", body=raw, headers=headers, redirects=True, **options)
        finally:
            await client.close()
        if not answer.body and answer.status >= 400:
            return answer.status, None
        try:
            return answer.status, json.loads(answer.body)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"its answer, status {answer.status}, is no JSON: {answer.body[:80]!r}") from error


class RegistryClient:
    """A registry's schemas, as far as this process needed them."""

    def __init__(self, transport: Any, *, registers: bool) -> None:
        self._transport: Transport = transport
        self._registers = registers
        self.shown = str(getattr(transport, "shown", type(transport).__name__))
        self._schemas: dict[int | UUID, Schema] = {}
        self._missing: dict[int | UUID, str] = {}
        self._writers: dict[tuple[str, Schema | int | str], tuple[int, UUID | None]] = {}
        self._fetches: dict[Any, asyncio.Task[bool]] = {}
        self._failures = 0
        self._backoff, self._reminders = Backoff(), Reminders(REMIND_S)

    def schema(self, id: int | UUID, kind: SchemaType) -> Schema:
        """Return the schema with an id.

        Raises:
            MissingSchemaError: the registry has none.
            UnresolvedSchemaError: it isn't here yet.
            ValueError: it isn't of this kind.
        """
        schema = self._schemas.get(id)
        if schema is not None:
            if schema.type != kind:
                raise ValueError(f"it is of type {schema.type}, not {kind}")
            return schema
        if id in self._missing:
            raise MissingSchemaError(self._missing[id])
        raise self._unresolved(f"schema {id}", ("schema", id), lambda: self._fetch_schema(id))

    def writer(self, subject: str, schema: Schema) -> tuple[int, UUID | None]:
        """Return the id, and the GUID if the registry has them, under which a subject has a schema.

        Raises:
            UnresolvedSchemaError: it isn't here yet; so it stays while the registry lacks it and nobody registers it.
        """
        ids = self._writers.get((subject, schema))
        if ids is not None:
            return ids
        raise self._unresolved(
            f"subject {subject}", ("writer", subject, schema), lambda: self._fetch_writer(subject, schema)
        )

    def version(self, subject: str, version: int | Literal["latest"]) -> tuple[Schema, int, UUID | None]:
        """Return a version of a subject with its ids; "latest" is the one that it is when it is first asked for.

        Raises:
            UnresolvedSchemaError: it isn't here yet.
        """
        ids = self._writers.get((subject, version))
        if ids is not None:
            return self._schemas[ids[0]], *ids
        raise self._unresolved(
            f"version {version} of subject {subject}",
            ("version", subject, version),
            lambda: self._fetch_version(subject, version),
        )

    def _unresolved(self, what: str, key: Any, fetch: Callable[[], Awaitable[None]]) -> UnresolvedSchemaError:
        async def once() -> bool:
            task = self._fetches.get(key)
            if task is None or task.get_loop() is not asyncio.get_running_loop():
                task = self._fetches[key] = asyncio.ensure_future(self._attempt(what, key, fetch))
            return await asyncio.shield(task)

        return UnresolvedSchemaError(f"{what} of the registry {self.shown} isn't here yet", once)

    async def _attempt(self, what: str, key: Any, fetch: Callable[[], Awaitable[None]]) -> bool:
        try:
            if self._failures:
                await asyncio.sleep(self._backoff.delay_s(self._failures))
            await fetch()
        except Exception as error:
            # Whatever an answer holds: the next one may be a schema.
            self._failures += 1
            reason = text_of(error) or type(error).__name__
            if self._reminders.is_due(asyncio.get_running_loop().time(), f"{what}: {reason}"):
                text = "the registry %s doesn't give %s: %s. What needs it waits; the registry is asked again"
                logger.error(text, self.shown, what, reason)
            return False
        finally:
            del self._fetches[key]
        self._failures = 0
        return True

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        """Return the JSON of an answer.

        Raises:
            RegistryError: the registry refuses.
            OSError, ValueError: there was no answer.
        """
        status, answer = await self._transport.request(method, path, body)
        if 200 <= status < 300:
            return answer
        code = answer.get("error_code") if isinstance(answer, dict) else None
        message = str(answer.get("message", "") if isinstance(answer, dict) else answer)[:500]
        raise RegistryError(f"status {status}: {message}", status=status, code=code if isinstance(code, int) else 0)

    async def _fetch_schema(self, id: int | UUID) -> None:
        path = f"schemas/ids/{id}" if isinstance(id, int) else f"schemas/guids/{id}"
        try:
            answer = await self.request("GET", path)
        except RegistryError as error:
            # A proxy's 404, which has no code of the registry's, says nothing of the schema.
            is_missing = error.status == 404 and error.code in (UNKNOWN_SCHEMA, UNKNOWN_SUBJECT)
            if not is_missing and not (isinstance(id, UUID) and await self._lacks_guids(error)):
                raise
            while len(self._missing) >= MOST_MISSING:
                self._missing.pop(next(iter(self._missing)))
            self._missing[id] = f"the registry {self.shown} has no schema {id}"
            return
        self._schemas[id] = await self._read(answer)

    async def _lacks_guids(self, error: RegistryError) -> bool:
        """Return whether it is a registry that knows no GUIDs: it lacks the page, and has others."""
        return error.status in (404, 405) and isinstance(await self.request("GET", "subjects"), list)

    async def _fetch_writer(self, subject: str, schema: Schema) -> None:
        registers = self._registers or bool(getattr(self._transport, "registers", False))
        answer = await self._registered(subject, schema, registers=registers)
        self._writers[subject, schema] = ids = _ids(answer)
        self._schemas[ids[0]] = schema

    async def _registered(self, subject: str, schema: Schema, *, registers: bool) -> Any:
        body = await self._body(schema, registers=registers)
        path = f"subjects/{quote(subject, safe='')}"
        try:
            return await self._looked_up(path, body, schema.other_text)
        except RegistryError as error:
            if error.code not in (UNKNOWN_SUBJECT, UNKNOWN_SCHEMA):
                raise
            if not registers:
                raise RegistryError(
                    f"subject {subject} lacks the schema that this program writes: register it (`faust -A APP schemas "
                    "register`), or let workers do it (register_schemas=True)",
                    code=UNKNOWN_SCHEMA,
                ) from error
            await self.request("POST", f"{path}/versions", body)
        return await self.request("POST", path, body)

    async def _body(self, schema: Schema, *, registers: bool) -> dict[str, Any]:
        """Return what requests say of a schema, with the versions of those that it uses."""
        uses = [
            (name, (await self._registered(name, used, registers=registers))["version"]) for name, used in schema.uses
        ]
        references = (*schema.references, *(SchemaReference(name, name, version) for name, version in uses))
        return replace(schema, references=references).body()

    async def _looked_up(self, path: str, body: dict[str, Any], other_text: str) -> Any:
        try:
            return await self.request("POST", path, body)
        except RegistryError as error:
            if error.code != UNKNOWN_SCHEMA or not other_text:
                raise
        return await self.request("POST", path, {**body, "schema": other_text})

    async def _fetch_version(self, subject: str, version: int | str) -> None:
        ids, schema = await self.at_version(subject, version)
        self._schemas[ids[0]], self._writers[subject, version] = schema, ids

    async def register(self, subject: str, schema: Schema) -> int:
        """Register a schema under a subject if it lacks it; return its version. Errors as of `request`."""
        return int((await self._registered(subject, schema, registers=True))["version"])

    async def version_of(self, subject: str, schema: Schema) -> int:
        """Return the version under which a subject has a schema, 0 if it hasn't; errors as of `request`."""
        try:
            return int((await self._registered(subject, schema, registers=False))["version"])
        except RegistryError as error:
            if error.code != UNKNOWN_SCHEMA:
                raise
            return 0

    async def versions(self, subject: str) -> list[int]:
        """Return the versions of a subject, none if it is unknown; errors as of `request`."""
        try:
            return list(await self.request("GET", f"subjects/{quote(subject, safe='')}/versions"))
        except RegistryError as error:
            if error.code != UNKNOWN_SUBJECT:
                raise
            return []

    async def at_version(
        self, subject: str, version: int | str, depth: int = 0
    ) -> tuple[tuple[int, UUID | None], Schema]:
        """Return the ids and the schema of a version of a subject, `depth` references deep; errors as of `request`."""
        answer = await self.request("GET", f"subjects/{quote(subject, safe='')}/versions/{version}")
        return _ids(answer), await self._read(answer, depth)

    async def mode(self, subject: str) -> str:
        """Return the compatibility that a subject demands, as `BACKWARD`; errors as of `request`."""
        for path in (f"config/{quote(subject, safe='')}?defaultToGlobal=true", "config"):
            try:
                return str((await self.request("GET", path))["compatibilityLevel"])
            except RegistryError as error:
                if error.status != 404:
                    raise
        return "NONE"

    async def refusal(self, subject: str, schema: Schema) -> str | None:
        """Return why the registry would refuse a further version of a subject, None if it wouldn't.

        It isn't asked where it lacks schemas that this one uses. Errors as of `request`.
        """
        try:
            body = await self._body(schema, registers=False)
        except RegistryError as error:
            if error.code != UNKNOWN_SCHEMA:
                raise
            return None
        path = f"compatibility/subjects/{quote(subject, safe='')}/versions/latest?verbose=true"
        answer = await self.request("POST", path, body)
        return None if answer["is_compatible"] else "; ".join(answer.get("messages") or ()) or "it names no field"

    async def _read(self, answer: Any, depth: int = 0) -> Schema:
        if not isinstance(answer, dict) or not isinstance(answer.get("schema"), str):
            raise RegistryError(f"its answer is no schema: {str(answer)[:80]}")
        references = tuple(
            SchemaReference(str(used["name"]), str(used["subject"]), int(used["version"]))
            for used in answer.get("references") or ()
        )
        resolved: dict[str, str] = {}
        if depth > MAX_DEPTH:
            raise RegistryError(f"references are deeper than {MAX_DEPTH}")
        for used in references:
            if used.name not in resolved:
                _, schema = await self.at_version(used.subject, used.version, depth + 1)
                resolved |= {**schema.resolved, used.name: schema.text}
        return Schema(answer["schema"], answer.get("schemaType") or "AVRO", references, resolved)


def _ids(answer: Any) -> tuple[int, UUID | None]:
    if not isinstance(answer, dict) or not isinstance(answer.get("id"), int):
        raise RegistryError(f"its answer has no id: {str(answer)[:80]}")
    guid = answer.get("guid")
    return answer["id"], UUID(guid) if isinstance(guid, str) else None


_clients: WeakKeyDictionary[Any, tuple[Any, RegistryClient]] = WeakKeyDictionary()


def client_of(app: Any) -> RegistryClient:
    """Return the client of an app's registry.

    Raises:
        ConfigurationError: the app names none.
    """
    registry = app.schema_registry
    former = _clients.get(app)
    if former is not None and former[0] is registry:
        return former[1]
    if registry is None:
        raise ConfigurationError(
            "a format needs a schema registry: write App(..., schema_registry='http://HOST:8081'), or set "
            "SCHEMA_REGISTRY in the environment"
        )
    address = registry.read_text(encoding="utf-8").strip() if isinstance(registry, Path) else registry
    transport = Registry(url=address) if isinstance(address, str) else address
    client = RegistryClient(transport, registers=app.register_schemas)
    _clients[app] = registry, client
    return client


def schema_json(text: str) -> Any:
    """Decode the text of a schema, which may be another program's; `ValueError` if it isn't JSON."""
    try:
        return json.loads(text)
    except MALFORMED as error:
        raise ValueError(f"a schema isn't JSON ({error}): {text[:80]!r}") from error
