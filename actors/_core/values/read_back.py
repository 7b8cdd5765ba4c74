"""Why a value can't be read back as it is from what its codec wrote.

An encoder takes more than its decoder returns: JSON has no NaN and its keys are text, msgspec encodes a field whatever
its type says. A row of such a value could never be read again, so that the write is refused.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from actors._core.unions import arms_of

_PLAIN = (str, int, float, bool, type(None))
_LONGEST_TEXT = 80
_AS_TEXT = {
    datetime: "2026-01-02T03:04:05Z",
    Decimal: "1.5",
    UUID: str(UUID(int=1)),
    date: "2026-01-02",
    time: "03:04:05",
    bytes: "a",
}
"""By type, a value as JSON has it."""
_TEXT = frozenset((str,))
_WITHOUT_PARTS = frozenset((*_PLAIN, bytes, date, datetime, time, Decimal, UUID))
_SAME = frozenset(_PLAIN)
"""Classes of plain values that are read back as they are: what JSON has no number for isn't written."""
_UNTYPED = (None, Any, object)
_NONE = msgspec.inspect.type_info(None)
_KEPT = [(msgspec.inspect.type_info(kind), kind) for kind in (str, int, bool, float, bytes, Decimal, UUID)]
"""Types all of whose values msgspec reads back as they are, save for floats that aren't finite."""
_ANY_TEXT = (msgspec.inspect.StrType, msgspec.inspect.BytesType, msgspec.inspect.DecimalType)
"""Types whose texts in JSON may be those of another one's values."""
_TOLD_APART = frozenset((str, int, bool))
"""Those that JSON tells apart; any other may be beside None only."""


def unfit(value: Any) -> str | None:
    """Return the part of a value that JSON can't hold, None if there is none: NaN, infinity, a key that isn't text."""
    for path, part in _walk(value, "$"):
        if isinstance(part, float) and not math.isfinite(part):
            return f"{path} is {part!r}, which JSON can't hold"
    return None


def is_finite(value: Any) -> bool:
    """Return whether a value, of plain data or an object of fields, holds neither NaN nor infinity; see `unfit`."""
    kind = type(value)
    if kind is float:
        return math.isfinite(value)
    if kind in _WITHOUT_PARTS:
        return True
    if kind is dict:
        return all(map(is_finite, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(is_finite, value))
    return all(map(is_finite, getattr(value, "__dict__", {}).values()))


def has_nan(value: Any) -> bool:
    """Return whether a value is NaN or has a part that is: it is neither smaller nor larger than any other."""
    return any(isinstance(part, float | Decimal) and Decimal(part).is_nan() for _, part in _walk(value, "$"))


def no_text_key(value: Any) -> str | None:
    """Return the place of a key that isn't text in a value, None if there is none."""
    for path, part in _walk(value, "$"):
        for key in part if isinstance(part, Mapping) else ():
            if not isinstance(key, str):
                return (
                    f"{path} has the key {_shown(key)}, and it would be read back as text: use text, or declare the "
                    "type, as in dict[int, str]"
                )
    return None


def lost_field(record: Any) -> str | None:
    """Return the field of a `faust.Record` that Faust would read back as text, None if there is none."""
    for name, field in record._options.descriptors.items():
        # What containers hold is read back at each write.
        kinds = [kind for kind in arms_of(field.type) if kind in _AS_TEXT]
        if kinds and not isinstance(field.to_python(_AS_TEXT[kinds[0]]), kinds[0]):
            return (
                f"{record.__name__}.{name}, a {kinds[0].__name__}, would be read back as text: declare the Record with "
                "isodates=True or decimals=True, or make it a dataclass"
            )
        nested = (lost_field(model) for model in field.related_models if model is not record)
        text = next((text for text in nested if text is not None), None)
        if text is not None:
            return text
    return None


def difference(value: Any, back: Any, path: str = "$") -> str | None:
    """Return the place where `back` differs from `value`, None if they are the same.

    A list is the same as a tuple of the same values, and an object as one of a parent class with the same fields.
    """
    ours, theirs = _parts(value), _parts(back)
    if ours is None or theirs is None or ours[0] != theirs[0]:
        is_same = _is_equal(value, back) if ours is None or theirs is None else False
        return None if is_same else f"{path} is {_shown(value)} and would be read back as {_shown(back)}"
    kind, parts = ours
    for key, part in parts.items():
        place = _place(path, kind, key)
        if key not in theirs[1]:
            return f"{place} would be lost: it is read back as {_shown(back)}"
        text = difference(part, theirs[1][key], place)
        if text is not None:
            return text
    return None if len(parts) == len(theirs[1]) else f"{path} would be read back with more than it has"


def kept_test(type_: Any) -> Callable[[Any], bool] | None:
    """Return a test whether a value written as JSON is read back as it is; None for most types.

    It goes by the classes of a value's parts, which is quicker than to read it back. False says nothing.
    """
    if type_ in _UNTYPED:
        return is_kept
    try:
        info = msgspec.inspect.type_info(type_)
    except (TypeError, NameError):
        return None
    return _fields_test(info, ()) if isinstance(info, msgspec.inspect.StructType) else None


def is_kept(value: Any) -> bool:
    """Return whether plain data that JSON takes is read back as it is. False says nothing."""
    kind = type(value)
    if kind is dict:
        # Of this key Faust makes a model.
        if "__faust" in value or not _TEXT.issuperset(map(type, value)):
            return False
        parts = value.values()
    elif kind is list or kind is tuple:
        parts = value
    else:
        return kind in _SAME
    # Hot: most parts are plain, and a set looks at all of them at once.
    if not _SAME.issuperset(map(type, parts)):
        for part in parts:
            if type(part) not in _SAME and not is_kept(part):
                return False
    return True


def _fields_test(info: msgspec.inspect.StructType, outer: tuple[type, ...]) -> Callable[[Any], bool] | None:
    """Return a test of the fields' classes, in one expression: it is made once, and called at each write."""
    # Of a generic one, such as Page[int], the class of its values.
    own = getattr(info.cls, "__origin__", info.cls)
    if info.cls in outer or hasattr(own, "__post_init__") or own.__struct_config__.omit_defaults:
        return None
    names: dict[str, Any] = {"own": own, "isfinite": math.isfinite}
    tests = ["type(value) is own"]
    for field in info.fields:
        arms = field.type.types if isinstance(field.type, msgspec.inspect.UnionType) else (field.type,)
        place, classes = f"value.{field.name}", list[type]()
        choices = [f"{place} is None"] if _NONE in arms else []
        for arm in arms:
            kind = next((kind for known, kind in _KEPT if known == arm), None)
            if kind is not None:
                classes.append(kind)
                names[kind.__name__] = kind
                choices.append(f"type({place}) is {kind.__name__}" + f" and isfinite({place})" * (kind is float))
            elif isinstance(arm, msgspec.inspect.StructType):
                classes.append(arm.cls)
                names[f"test_{field.name}"] = test = _fields_test(arm, (*outer, info.cls))
                choices += [f"test_{field.name}({place})"] if test is not None else []
        is_clear = len(classes) == 1 or _TOLD_APART.issuperset(classes)
        if len(choices) < len(arms) or not is_clear:
            return None
        tests.append(f"({' or '.join(choices)})")
    test_all: Callable[[Any], bool] = eval(f"lambda value: {' and '.join(tests)}", names)
    return test_all


def is_told_by_equality(type_: Any) -> bool:
    """Return whether equal values of a type, as msgspec knows it, are the same in each of their fields.

    They needn't be where a dataclass compares some fields only, or a class has an equality of its own.
    """
    if hasattr(type_, "__is_model__"):
        return _compares(type_, list(type_._options.fields))
    try:
        return all(map(_is_told, _types_in(type_)))
    except (TypeError, NameError):
        return False


def _is_told(info: msgspec.inspect.Type) -> bool:
    if isinstance(info, msgspec.inspect.StructType):
        return info.cls.__eq__ is msgspec.Struct.__eq__
    if isinstance(info, msgspec.inspect.NamedTupleType):
        own: Any = info.cls
        return own.__eq__ is tuple.__eq__
    if isinstance(info, msgspec.inspect.DataclassType):
        return _compares(info.cls, [field.name for field in info.fields])
    return not isinstance(info, msgspec.inspect.CustomType)


def merged_keys(type_: Any) -> bool:
    """Return whether dicts in a type that msgspec knows may have two keys that are one text in JSON, as 1 and "1"."""
    try:
        keys = [info.key_type for info in _types_in(type_) if isinstance(info, msgspec.inspect.DictType)]
    except (TypeError, NameError):
        return False
    return any(isinstance(part, _ANY_TEXT) for key in keys for part in getattr(key, "types", ()))


def _types_in(type_: Any) -> Iterator[msgspec.inspect.Type]:
    """Return the parts of a type that msgspec knows, each once."""
    waiting: list[Any] = [msgspec.inspect.type_info(type_)]
    ids: set[int] = set()
    while waiting:
        part = waiting.pop()
        if id(part) in ids:
            continue
        ids.add(id(part))
        if isinstance(part, msgspec.inspect.Type):
            yield part
        for value in msgspec.structs.astuple(part):
            inner = value if isinstance(value, tuple) else (value,)
            waiting += [kind for kind in inner if isinstance(kind, msgspec.inspect.Type | msgspec.inspect.Field)]


def _compares(type_: Any, names: Sequence[str]) -> bool:
    """Return whether two objects of a class are unequal if one of their fields differs, whichever that is."""
    same = object()
    try:
        for changed in names:
            one, other = object.__new__(type_), object.__new__(type_)
            for name in names:
                object.__setattr__(one, name, same)
                object.__setattr__(other, name, object() if name == changed else same)
            if one == other:
                return False
    except Exception:
        return False
    return True


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Return a value and all its parts with their places."""
    yield path, value
    parts = _parts(value)
    if parts is not None:
        for key, part in parts[1].items():
            yield from _walk(part, _place(path, parts[0], key))
    elif isinstance(value, set | frozenset):
        for part in value:
            yield f"{path}[…]", part


def _parts(value: Any) -> tuple[str, dict[Any, Any]] | None:
    """Return the parts of a value and the kind of container that it is; None of what has none, and of a set."""
    if isinstance(value, Mapping):
        return "object", dict(value)
    if isinstance(value, list | tuple):
        return "array", dict(enumerate(value))
    names: Any = ()
    if hasattr(value, "__is_model__"):
        # A faust.Record.
        names = value._options.fields
    elif isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
    elif hasattr(value, "__attrs_attrs__"):
        names = [field.name for field in value.__attrs_attrs__]
    else:
        return None
    return "fields", {name: getattr(value, name, None) for name in names}


def _place(path: str, kind: str, key: Any) -> str:
    return f"{path}.{key}" if kind == "fields" else f"{path}[{_shown(key)}]"


def _is_equal(value: Any, back: Any) -> bool:
    """Return whether two values without parts are the same; NaN, which Decimal keeps, isn't equal to itself."""
    try:
        return bool(value == back) or bool(value != value and back != back)
    except Exception:
        return type(value) is type(back) and str(value) == str(back)


def _shown(value: Any) -> str:
    """Return a plain value as text, and of another one its type: its own text may raise."""
    if type(value) not in _PLAIN:
        return f"a {type(value).__name__}"
    return repr(value[:_LONGEST_TEXT]) if isinstance(value, str) else repr(value)[:_LONGEST_TEXT]
