"""The OpenAPI 3.1 description of the queries of one app."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from actors._faust.app import App
from actors.runtime.windows.joins import JoinStore
from actors.runtime.windows.store import WindowStore
from actors.web.problems import CONTENT_TYPE, ProblemAnswer
from actors.web.queries.answers import (
    AskAnswer,
    CountAnswer,
    ManyAnswer,
    Overview,
    PageAnswer,
    ValueAnswer,
)
from actors.web.queries.coding import DEFAULT_LIMIT, ENCODINGS, MAX_LIMIT, READS, ManyBody
from actors.web.queries.rows import RowsAnswer
from actors.web.queries.windows import WindowsAnswer

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}


def description(app: App) -> Schema:
    """Return the document."""
    held = [store for actor in app.actors.values() for store in actor.windows]
    windows = sorted(store.name for store in held if isinstance(store, WindowStore))
    rows = sorted(store.name for store in app.stores.values() if store.below is not None)
    joins = {store.name for store in held if isinstance(store, JoinStore)}
    stores = sorted({store.name for actor in app.actors.values() for store in actor.stores} - joins)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"State of {app.conf.id}",
            "version": "1",
            "description": "Committed state of the app's actors. Any worker answers for any key.",
        },
        "paths": {**_paths(stores), **_windows(windows), **_rows(rows), **_queries(app)},
        "components": {
            "schemas": _schemas(),
            "responses": _problems(),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "One of the workers' query_tokens."},
                "certificate": {"type": "mutualTLS"},
            },
        },
        # Which of them a worker asks for, or none, is up to its settings.
        "security": [{"token": []}, {"certificate": []}, {}],
    }


def merged(documents: Iterable[Schema]) -> Schema:
    """Return the first document with the paths and components of all."""
    first, *others = documents
    for document in others:
        first["paths"] |= document["paths"]
        for kind, components in document["components"].items():
            first["components"].setdefault(kind, {}).update(components)
    return first


def _paths(stores: list[str]) -> Schema:
    store = in_path("store", {"type": "string", "enum": stores} if stores else {"type": "string"})
    key = in_path("key", _TEXT, "The key, percent-encoded.")
    of_keys = [parameter("encoding"), parameter("partition")]
    common = [parameter("read"), *of_keys]
    bounds = [parameter("prefix"), parameter("from"), parameter("to")]
    return {
        "/actors": {"get": _operation("overview", "Stores, actors, and who owns which partition", [], Overview)},
        "/actors/{store}": {
            "get": _operation(
                "range",
                "Keys and values in byte order of the stored keys",
                [store, *bounds, *map(parameter, ("limit", "cursor", "as_of", "raw")), *common],
                PageAnswer,
                "421",
            )
        },
        "/actors/{store}/_count": {
            "get": _operation(
                "count", "How many keys there are", [store, *bounds, parameter("exact"), *of_keys], CountAnswer, "421"
            )
        },
        "/actors/{store}/_many": {
            "post": {
                **_operation("many", "The values of many keys", [store], ManyAnswer, "413", "421"),
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ManyBody"}}},
                },
            }
        },
        "/actors/{store}/{key}": {
            "get": _operation(
                "one",
                "The value of a key",
                [store, key, parameter("as_of"), parameter("raw"), *common],
                ValueAnswer,
                "421",
            )
        },
    }


def _windows(stores: list[str]) -> Schema:
    key = in_path("key", _TEXT, "The key, percent-encoded.")
    names = ("from_ms", "to_ms", "raw", "read", "encoding", "partition")
    common = [parameter(name) for name in names]
    return {
        f"/actors/{store}/{{key}}": {
            "get": _operation(f"{store}.windows", "The windows of a key", [key, *common], WindowsAnswer, "421")
        }
        for store in stores
    }


def _rows(stores: list[str]) -> Schema:
    key = in_path("key", _TEXT, "The key, percent-encoded.")
    names = ("prefix", "from", "to", "reverse", "limit", "cursor", "raw", "read", "encoding", "partition")
    common = [parameter(name) for name in names]
    return {
        f"/actors/{store}/{{key}}": {
            "get": _operation(f"{store}.rows", "The rows below a key", [key, *common], RowsAnswer, "421")
        }
        for store in stores
    }


def _queries(app: App) -> Schema:
    key = in_path("key", {"type": "string"}, "The actor's key, percent-encoded.")
    found: Schema = {}
    for name, definition in sorted(app.actors.items()):
        for query in sorted(definition.queries.values(), key=lambda query: query.name):
            given = [
                {"name": field.name, "in": "query", "required": field.required, "schema": {}}
                for field in msgspec.structs.fields(query.arguments)
                # In a URL these are the question's own.
                if field.name not in ("encoding", "read")
            ]
            what = (query.function.__doc__ or f"Query {query.name} of actor {name}").strip().splitlines()[0]
            arguments = {"application/json": {"schema": {"type": "object"}}}
            identity = f"{name}.{query.name}"
            common = [parameter("encoding"), parameter("read")]
            found[f"/actors/{name}/_ask/{query.name}/{{key}}"] = {
                "get": _operation(f"{identity}.get", what, [key, *given, *common], AskAnswer, "421", "422"),
                "post": {
                    **_operation(f"{identity}.post", what, [key, *common], AskAnswer, "413", "421", "422"),
                    "requestBody": {"content": arguments},
                },
            }
    return found


def _operation(name: str, summary: str, parameters: list[Schema], answer: type, *more: str) -> Schema:
    problems = ("400", "401", "403", "404", "503", *more)
    return {
        "operationId": name,
        "summary": summary,
        "parameters": parameters,
        "responses": {
            "200": {
                "description": summary,
                "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{answer.__name__}"}}},
            },
            **{status: {"$ref": f"#/components/responses/{status}"} for status in problems},
        },
    }


def in_path(name: str, schema: Schema, text: str = "") -> Schema:
    """Return a parameter that is a part of the path."""
    return {"name": name, "in": "path", "required": True, "schema": schema, **({"description": text} if text else {})}


def parameter(name: str) -> Schema:
    """Return a parameter of the query; the same name means the same everywhere."""
    text = _TEXT
    time: Schema = {"type": "integer", "minimum": 0}
    flag: Schema = {"type": "boolean", "default": False}
    schemas: dict[str, tuple[Schema, str]] = {
        "read": ({"type": "string", "enum": list(READS), "default": "committed"}, "Which copy answers."),
        "encoding": (
            {"type": "string", "enum": list(ENCODINGS)},
            "How keys are written; base64 is of their stored bytes, and the default where keys are bytes.",
        ),
        "partition": ({"type": "integer", "minimum": 0}, "Only this partition; needed where a key may be in any."),
        "prefix": (text, "Keys whose stored bytes begin so."),
        "from": (text, "The first key."),
        "to": (text, "The end, which isn't included."),
        "from_ms": (time, "The first start of windows, Unix milliseconds."),
        "to_ms": (time, "The last start of windows, Unix milliseconds."),
        "as_of": (time, "Of a table with a history: values as of that time, Unix milliseconds."),
        "limit": ({"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}, "Keys in a page."),
        "cursor": (text, "`next` of the page before."),
        "reverse": (flag, "The last row first."),
        "raw": (flag, "Values as base64 of their stored bytes."),
        "exact": (flag, "Count each key; else it is an estimate, which has expired keys too."),
    }
    schema, description = schemas[name]
    return {"name": name.removesuffix("_ms"), "in": "query", "schema": schema, "description": description}


def _schemas() -> Schema:
    """Return the schemas of answers and bodies, made from their types."""
    kinds = (
        *(ValueAnswer, ManyAnswer, PageAnswer, CountAnswer, AskAnswer, WindowsAnswer, RowsAnswer, Overview),
        *(ManyBody, ProblemAnswer),
    )
    _, found = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    return found


def _problems() -> Schema:
    texts = {
        "400": "The request can't be understood.",
        "401": "The caller is unknown: a token or a certificate is needed.",
        "403": "The request isn't allowed.",
        "404": "There is no such store, actor, query or key.",
        "413": "The body is too large; ask for fewer keys at once.",
        "421": "Another worker passed the request on, and this one doesn't own the partition.",
        "422": "The query was rejected, for the reason given.",
        "503": "The state can't be read now, for the reason given; ask again after Retry-After.",
    }
    content = {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemAnswer"}}}
    found: Schema = {status: {"description": text, "content": content} for status, text in texts.items()}
    found["503"]["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    return found
