"""The shape of a value's bytes, and whether values of one shape can be read and written as another.

A shape is plain JSON data:

    "int", "str", …                            a scalar; "any" is any JSON, "none" is null
    {"object": {name: [shape, required]}}      with "tag" beside it where a tag is written
    {"row": [[shape, required], …]}            fields without names, in their order
    {"list": shape}, {"map": [key, value]}
    {"values": [text, …]}                      an enum or a literal
    {"union": [shape, …]}
    {"up": n}                                  the n-th object around this place: a type within itself
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Shape = Any
ANY = "any"


def union_of(arms: Sequence[Shape]) -> Shape:
    """Return the shape of a union, the same whatever the order of its arms."""
    unique = {json.dumps(arm, sort_keys=True): arm for arm in arms}
    found = [unique[text] for text in sorted(unique)]
    return found[0] if len(found) == 1 else {"union": found}


def misfits(old: Shape, new: Shape, path: str = "") -> list[str]:
    """Say, a text each, what of values of shape `old` would be lost or unreadable in shape `new`; none if it fits.

    A shape may grow: fields with a default, further arms of a union, further values of an enum, anything for any JSON.
    """
    if old == new or new == ANY:
        return []
    if _kind(old) == "union" or _kind(new) == "union":
        return _union_misfits(_arms(old), _arms(new), path)
    kind = _kind(old)
    if kind != _kind(new) or kind == "scalar" or (kind == "object" and old.get("tag") != new.get("tag")):
        return [f"{_at(path)} was {show(old)} and is {show(new)} now"]
    if kind == "object":
        return _object_misfits(old["object"], new["object"], path)
    if kind == "row":
        return _row_misfits(old["row"], new["row"], path)
    if kind == "list":
        return misfits(old["list"], new["list"], f"{path}[]")
    if kind == "map":
        keys = misfits(old["map"][0], new["map"][0], f"{path}{{key}}")
        return keys + misfits(old["map"][1], new["map"][1], f"{path}{{}}")
    if kind == "values":
        gone = [value for value in old["values"] if value not in new["values"]]
        return [f"{_at(path)} can't be {', '.join(gone)} any more"] if gone else []
    return [f"{_at(path)} was {show(old)} and is {show(new)} now"]


def show(shape: Shape) -> str:
    kind = _kind(shape)
    if kind == "scalar":
        return str(shape)
    if kind == "object":
        tag = f"{shape['tag']} " if "tag" in shape else ""
        return f"{tag}{{{', '.join(sorted(shape['object']))}}}"
    if kind == "list":
        return f"list of {show(shape['list'])}"
    if kind == "map":
        return f"map of {show(shape['map'][0])} to {show(shape['map'][1])}"
    if kind == "union":
        return " | ".join(show(arm) for arm in shape["union"])
    if kind == "row":
        return f"({', '.join(show(item) for item, _ in shape['row'])})"
    return " | ".join(shape["values"]) if kind == "values" else "itself"


def _kind(shape: Shape) -> str:
    if isinstance(shape, str):
        return "scalar"
    return next(name for name in ("object", "row", "list", "map", "values", "union", "up") if name in shape)


def _arms(shape: Shape) -> Sequence[Shape]:
    found: Sequence[Shape] = shape["union"] if _kind(shape) == "union" else [shape]
    return found


def _at(path: str) -> str:
    return f"field {path}" if path else "the value"


def _union_misfits(old: Sequence[Shape], new: Sequence[Shape], path: str) -> list[str]:
    found: list[str] = []
    for arm in old:
        tries = [misfits(arm, other, path) for other in new]
        if all(tries):
            alike = [text for text, other in zip(tries, new, strict=True) if _is_alike(arm, other)]
            found += alike[0] if len(alike) == 1 else [f"{_at(path)} can't be {show(arm)} any more"]
    return found


def _is_alike(one: Shape, other: Shape) -> bool:
    is_kin = _kind(one) == _kind(other) != "scalar"
    return is_kin and (_kind(one) != "object" or one.get("tag") == other.get("tag"))


def _object_misfits(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> list[str]:
    found, prefix = [], f"{path}." if path else ""
    for name, (shape, required) in old.items():
        if name not in new:
            found.append(f"field {prefix}{name} ({show(shape)}) is missing")
            continue
        found += misfits(shape, new[name][0], f"{prefix}{name}")
        if new[name][1] and not required:
            found.append(f"field {prefix}{name} has no default any more, and values may lack it")
    for name, (shape, required) in new.items():
        if name not in old and required:
            found.append(f"field {prefix}{name} ({show(shape)}) is new and has no default")
    return found


def _row_misfits(old: Sequence[Any], new: Sequence[Any], path: str) -> list[str]:
    found = [] if len(new) >= len(old) else [f"{_at(path)} had {len(old)} items and has {len(new)} now"]
    for number, ((shape, _), (other, _)) in enumerate(zip(old, new, strict=False)):
        found += misfits(shape, other, f"{path}[{number}]")
    if any(required for _, required in new[len(old) :]):
        found.append(f"{_at(path)} has new items without a default")
    return found
