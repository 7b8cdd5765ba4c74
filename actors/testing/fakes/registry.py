"""A schema registry in memory, with Confluent's API."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import unquote

_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA = 40401, 40402, 40403


@dataclass(slots=True)
class FakeRegistry:
    """A registry for tests: `App(..., schema_registry=FakeRegistry())`.

    It takes any schema: compatibility isn't checked, for the registry's part.

    Attributes:
        requests: what it was asked so far, as "GET schemas/ids/1".
        is_down: whether it answers nothing.
        registers: whether programs register the schemas that they write with.
        mode: the compatibility that it says all subjects have.

    Examples:
        >>> from actors.testing import FakeRegistry
        >>> registry = FakeRegistry()
        >>> registry.register("orders-value", '{"type": "string"}')
        1
    """

    requests: list[str] = field(default_factory=list)
    is_down: bool = False
    registers: bool = True
    mode: str = "NONE"
    _schemas: list[dict[str, Any]] = field(default_factory=list)
    _subjects: dict[str, list[int]] = field(default_factory=dict)

    shown: ClassVar[str] = "of the test"

    def register(self, subject: str, schema: str, type: str = "AVRO", references: Any = ()) -> int:
        """Register a schema; return its id."""
        schema_type, schema = type, _normal(schema, type)
        body = {"schema": schema, "schemaType": schema_type, "references": list(references)}
        if body not in self._schemas:
            self._schemas.append(body)
        id = self._schemas.index(body) + 1
        versions = self._subjects.setdefault(subject, [])
        if id not in versions:
            versions.append(id)
        return id

    async def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status and the JSON of an answer."""
        self.requests.append(f"{method} {path}")
        if self.is_down:
            raise ConnectionRefusedError("the registry is down")
        parts = [unquote(part) for part in path.partition("?")[0].split("/")]
        match [method, *parts]:
            case ["GET", "schemas", "ids", number]:
                return self._schema(int(number) if number.isdecimal() else 0)
            case ["GET", "schemas", "guids", guid]:
                return self._schema(next((id for id in self._ids() if str(_guid(id)) == guid), 0))
            case ["GET", "subjects"]:
                return 200, sorted(self._subjects)
            case ["GET", "subjects", subject, "versions", *version] if subject in self._subjects:
                return self._version(subject, version[0] if version else "all")
            case ["POST", "subjects", subject, "versions"]:
                id = self.register(subject, *_arguments(body))
                return 200, {"id": id, "guid": str(_guid(id))}
            case ["GET", "config", *_] | ["POST", "compatibility", *_]:
                return 200, {"compatibilityLevel": self.mode, "is_compatible": True}
            case ["POST", "subjects", subject] if subject in self._subjects:
                return self._look_up(subject, *_arguments(body))
            case [_, "subjects", *_]:
                return 404, {"error_code": _NO_SUBJECT, "message": "Subject not found."}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _ids(self) -> range:
        return range(1, len(self._schemas) + 1)

    def _schema(self, id: int) -> tuple[int, Any]:
        if id not in self._ids():
            return 404, {"error_code": _NO_SCHEMA, "message": f"Schema {id} not found"}
        return 200, _shown(self._schemas[id - 1])

    def _version(self, subject: str, version: str) -> tuple[int, Any]:
        versions = self._subjects[subject]
        if version == "all":
            return 200, list(range(1, len(versions) + 1))
        number = len(versions) if version == "latest" else int(version)
        if not 1 <= number <= len(versions):
            return 404, {"error_code": _NO_VERSION, "message": f"Version {version} not found."}
        return 200, self._registered(subject, number)

    def _look_up(self, subject: str, *arguments: Any) -> tuple[int, Any]:
        schema, type_, references = arguments
        body = {"schema": _normal(schema, type_), "schemaType": type_, "references": list(references)}
        for number, id in enumerate(self._subjects[subject], 1):
            if self._schemas[id - 1] == body:
                return 200, self._registered(subject, number)
        return 404, {"error_code": _NO_SCHEMA, "message": "Schema not found"}

    def _registered(self, subject: str, number: int) -> dict[str, Any]:
        id = self._subjects[subject][number - 1]
        own = {"subject": subject, "version": number, "id": id, "guid": str(_guid(id))}
        return own | _shown(self._schemas[id - 1])


def _guid(id: int) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_OID, f"schema {id}")


def _arguments(body: Any) -> tuple[Any, ...]:
    return body["schema"], body.get("schemaType", "AVRO"), body.get("references", ())


def _normal(schema: str, type_: str) -> str:
    return schema if type_ == "PROTOBUF" else json.dumps(json.loads(schema), separators=(",", ":"))


def _shown(body: dict[str, Any]) -> dict[str, Any]:
    hidden = {"schemaType": body["schemaType"] == "AVRO", "references": not body["references"]}
    return {name: part for name, part in body.items() if not hidden.get(name)}
