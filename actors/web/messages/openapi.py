"""The OpenAPI 3.1 description of the messages of one app; its paths go beside those of queries."""

from __future__ import annotations

from typing import Any

import msgspec

from actors._faust.app import App
from actors.declare.values.codecs import UNTYPED, is_model
from actors.web.messages.kinds import Addressee, MessageKind
from actors.web.messages.sending import MAX_IDEMPOTENCY_CHARS, MAX_WAIT_S, MessageAnswer
from actors.web.problems import CONTENT_TYPE
from actors.web.queries.openapi import Schema, in_path, parameter

REFS = "#/components/schemas/{name}"
PROBLEMS = {
    "400": "The message, its key or a header can't be understood.",
    "409": "The actor rejected the message, for the reason given.",
    "410": "The actor's answer isn't kept any more.",
    "413": "The body or the message is too large.",
    "415": "The body isn't plain JSON.",
    "422": "The Idempotency-Key was used for another message to this key.",
    "500": "The actor failed to handle the message.",
}
PROBLEMS_OF = {
    **{f"message-{status}": text for status, text in PROBLEMS.items()},
    "401": "The caller is unknown.",
    "403": "The caller may not send messages.",
    "404": "There is no such actor or message.",
    "503": "The brokers can't be reached.",
}
MAX_DEPTH = 8
_ANSWERS = {"200": "The actor's answer, after its commit.", "202": "The message waits in the actor's input."}


def description(app: App) -> Schema:
    """Return the document: its paths and components."""
    schemas: Schema = {}
    paths = {
        f"/actors/{actor}/{path}": operation
        for actor, definition in sorted(app.actors.items())
        for path, operation in _of_actor(actor, Addressee.of(definition), schemas)
    }
    content = {CONTENT_TYPE: {"schema": {"$ref": REFS.format(name="ProblemAnswer")}}}
    problems = {f"message-{status}": {"description": text, "content": content} for status, text in PROBLEMS.items()}
    return {"paths": paths, "components": {"schemas": schemas, "responses": problems}}


def _of_actor(actor: str, addressee: Addressee, schemas: Schema) -> list[tuple[str, Schema]]:
    operations: list[tuple[str, Schema]] = []
    for name, kind in sorted(addressee.kinds.items()):
        operations += [
            (f"{{key}}/{name}", {"post": send_operation(actor, kind, schemas)}),
            (f"_sent/{name}/{{id}}/{{key}}", {"get": _status_operation(actor, kind, schemas)}),
        ]
    return operations


def send_operation(actor: str, kind: MessageKind, schemas: Schema) -> Schema:
    """Return the operation that sends a message; the schemas that it refers to are added to `schemas`."""
    text = (getattr(kind.type, "__doc__", None) or "").strip().splitlines()
    return {
        "operationId": f"{actor}.{kind.name}.send",
        "summary": text[0] if text and kind.type not in UNTYPED else f"Send {kind.name} to actor {actor}",
        "parameters": [
            *_key(),
            _header("Idempotency-Key", {"type": "string", "pattern": f"^[ -~]{{1,{MAX_IDEMPOTENCY_CHARS}}}$"})
            | {"description": "A repeat of a message with the same key gets the first answer, and changes nothing."},
            _header("Prefer", {"type": "string", "examples": ["wait=10"]})
            | {"description": f"`wait=` and how long to wait for the answer, up to {MAX_WAIT_S} s (RFC 7240)."},
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _body(kind.type, schemas)}}},
        "responses": {**_answers(schemas), **_problems("400", "409", "413", "415", "422", "500")},
    }


def inlined(schema: Any, schemas: Schema, depth: int = 0) -> Any:
    """Return a part of a description with schemas in the place of references, for a document that lacks them."""
    if isinstance(schema, list):
        return [inlined(part, schemas, depth) for part in schema]
    if not isinstance(schema, dict):
        return schema
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    if name in PROBLEMS_OF:
        return {"description": PROBLEMS_OF[name]}
    if name:
        return inlined(schemas.get(name, {}), schemas, depth + 1) if depth < MAX_DEPTH else {}
    return {key: inlined(part, schemas, depth) for key, part in schema.items()}


def _status_operation(actor: str, kind: MessageKind, schemas: Schema) -> Schema:
    id_ = in_path("id", {"type": "string", "pattern": "^[0-9a-f]{32}$"})
    offset = {"name": "offset", "in": "query", "schema": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}}
    return {
        "operationId": f"{actor}.{kind.name}.status",
        "summary": f"The answer of actor {actor} to {kind.name}",
        "parameters": [id_, *_key(), offset],
        "responses": {**_answers(schemas), **_problems("400", "409", "410", "422", "500"), "421": _ref("421")},
    }


def _answers(schemas: Schema) -> Schema:
    reference = _schema(MessageAnswer, schemas)
    return {
        status: {"description": text, "content": {"application/json": {"schema": reference}}}
        for status, text in _ANSWERS.items()
    }


def _problems(*statuses: str) -> Schema:
    own = {status: _ref(f"message-{status}") for status in statuses}
    return {**own, **{status: _ref(status) for status in ("401", "403", "404", "503")}}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/responses/{name}"}


def _key() -> list[Schema]:
    return [in_path("key", {"type": "string"}, "The actor's key, percent-encoded."), parameter("encoding")]


def _header(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "header", "schema": schema}


def _body(type_: Any, schemas: Schema) -> Schema:
    """Return the schema of a body, which may leave the tag out: the URL names it."""
    schema = _schema(type_, schemas)
    tag = type_.__struct_config__.tag_field if isinstance(type_, type) and issubclass(type_, msgspec.Struct) else None
    if tag is None:
        return schema
    own = schemas[schema["$ref"].rpartition("/")[2]]
    return {**own, "required": [name for name in own.get("required", ()) if name != tag]}


def _schema(type_: Any, schemas: Schema) -> Schema:
    """Return the schema of a type, {} for one that has none; the parts that it refers to are added to `schemas`."""
    if type_ in UNTYPED:
        return {}
    if is_model(type_):
        model: Schema = type_.model_json_schema(ref_template=REFS.replace("{name}", "{model}"))
        schemas.update(model.pop("$defs", {}))
        return model
    try:
        (schema,), parts = msgspec.json.schema_components([type_], ref_template=REFS)
    except (TypeError, NameError):
        return {}
    schemas.update(parts)
    return schema
