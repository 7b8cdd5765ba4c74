"""Values of a type as plain data, which Avro takes, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from actors._core.values.key_forms import plain_form
from actors._core.values.read_back import is_finite, unfit
from actors.declare.values.codecs import UNTYPED, classes_of, is_model, is_record, kinds_of
from actors.errors import ConfigurationError

NATIVE = (bytes, bytearray, datetime, date, time, Decimal, UUID)
"""The types that stay as they are in plain data."""
_NATIVE_KINDS = (
    *("BytesType", "ByteArrayType", "MemoryViewType", "DateTimeType", "DateType", "TimeType", "DecimalType"),
    *("UUIDType", "AnyType", "CustomType"),
)
"""The types that have such values, or may have, by their names in msgspec."""


@dataclass(frozen=True, slots=True)
class PlainData:
    """How values of a type become dicts, lists, and the types in `NATIVE`, and are made of them."""

    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


def plain_data(type_: Any, *, is_key: bool) -> PlainData:
    """Return the conversion of a type; equal keys have one form.

    Raises:
        ConfigurationError: it isn't a type that can be converted.
    """
    dump, load = _conversion(type_)
    kinds = "AnyType(" if type_ in UNTYPED or is_model(type_) or is_record(type_) else kinds_of(type_)
    holds_any = "AnyType(" in kinds
    holds_float, holds_time = holds_any or "FloatType(" in kinds, holds_any or "DateTimeType(" in kinds
    has_numbers = _finite_test(type_)

    def checked(value: Any) -> Any:
        data = dump(value)
        if holds_float and not has_numbers(data):
            raise ValueError(unfit(data))
        if holds_time and (place := _naive(data, "$")) is not None:
            raise ValueError(f"{place} has no time zone, and would be another time elsewhere")
        return plain_form(data) if is_key else data

    def fit(data: Any) -> Any:
        if not has_numbers(data):
            raise ValueError(unfit(data))
        return load(data)

    return PlainData(checked if holds_float or holds_time or is_key else dump, fit if holds_float else load)


def _finite_test(type_: Any) -> Callable[[Any], bool]:
    """Return `is_finite` for data of a type: of one with fields it looks at those that may hold floats."""
    try:
        info: Any = msgspec.inspect.type_info(type_)
    except (TypeError, NameError):
        return is_finite
    if not hasattr(info, "fields") or getattr(info, "array_like", False):
        return is_finite
    kinds = {field.encode_name: repr(field.type) for field in info.fields}
    names = [name for name, kind in kinds.items() if "FloatType(" in kind or "AnyType(" in kind]

    def are_finite(data: Any) -> bool:
        if type(data) is not dict:
            return is_finite(data)
        for name in names:  # noqa: SIM110  a generator costs as much as the test
            if not is_finite(data.get(name)):
                return False
        return True

    return are_finite


def _conversion(type_: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    if type_ in UNTYPED:
        return _as_it_is, _as_it_is
    if is_record(type_) or is_model(type_):
        return lambda value: _dump_model(_of(value, type_)), lambda data: load_model(type_, data)
    try:
        msgspec.convert({}, type_, dec_hook=load_model)
    except msgspec.ValidationError:
        pass
    except (TypeError, NameError) as error:
        raise ConfigurationError(f"{type_} can't be converted: {error}") from error

    kinds = kinds_of(type_)
    # Naming them takes longer than the conversion of a small value.
    options: dict[str, Any] = {}
    if not kinds or any(f"{kind}(" in kinds for kind in _NATIVE_KINDS):
        options["builtin_types"] = NATIVE
    loading, dumping = dict(options), dict(options)
    if "CustomType(" in kinds:
        loading["dec_hook"], dumping["enc_hook"] = load_model, _dump_model

    def load(data: Any) -> Any:
        return msgspec.convert(data, type_, **loading)

    classes, name = classes_of(type_), getattr(type_, "__name__", str(type_))
    # Equal messages have equal bytes in every process; only sets have an order of its own in each.
    has_order = bool(kinds) and not any(f"{kind}(" in kinds for kind in ("SetType", "AnyType", "CustomType"))
    order: Any = None if has_order else "deterministic"

    def dump(value: Any) -> Any:
        if not isinstance(value, classes):
            raise TypeError(f"expected {name}, got {type(value).__name__}")
        data = msgspec.to_builtins(value, order=order, **dumping)
        # A field of another type would be read back as another value, or not at all.
        msgspec.convert(data, type_, **loading)
        return data

    return dump, load


def load_model(type_: Any, data: Any) -> Any:
    """Return a record of Faust's, or a model of Pydantic's, of plain data."""
    if is_record(type_):
        return type_.from_data(data, preferred_type=type_)
    if is_model(type_):
        return type_.model_validate(data)
    raise TypeError(f"{type_} is unknown to msgspec")


def _dump_model(value: Any) -> Any:
    if is_record(type(value)):
        return value.asdict()
    if is_model(type(value)):
        return value.model_dump(by_alias=True)
    raise TypeError(f"{type(value)} is unknown to msgspec")


def _of(value: Any, type_: Any) -> Any:
    if not isinstance(value, type_):
        raise TypeError(f"expected {type_.__name__}, got {type(value).__name__}")
    return value


def _as_it_is(value: Any) -> Any:
    return value


def _naive(data: Any, place: str) -> str | None:
    if isinstance(data, datetime):
        return place if data.utcoffset() is None else None
    parts = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list | tuple) else ()
    return next((inner for name, part in parts if (inner := _naive(part, f"{place}.{name}")) is not None), None)
