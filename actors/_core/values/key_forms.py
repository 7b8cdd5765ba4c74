"""The one form of equal keys, so that each has one partition and one state."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Context, Decimal
from typing import Any

import msgspec

_LARGEST_EXPONENT = 1_000
_FORMED = (Decimal, datetime)


def float_form(key: Any) -> Any:
    """Return the float of a number, 0.0 of -0.0; what is no number, or no float without loss, as it is.

    Raises:
        ValueError: it is NaN.
    """
    if type(key) not in (float, int):
        return key
    if key != key:
        raise ValueError(f"{key!r} can't be a key: it isn't equal to itself")
    try:
        form = float(key) + 0.0
    except OverflowError:
        return key
    return form if form == key else key


def decimal_form(key: Any) -> Any:
    """Return a Decimal without zeros at its end, and without an exponent if it is whole; what is none, as it is.

    Raises:
        ValueError: it isn't finite, or its digits are too many.
    """
    if not isinstance(key, Decimal):
        return key
    if not key.is_finite():
        raise ValueError(f"{key!r} can't be a key: it isn't finite")
    if not key:
        return Decimal(0)
    if abs(key.adjusted()) > _LARGEST_EXPONENT:
        raise ValueError(f"{key!r} can't be a key: its exponent is beyond {_LARGEST_EXPONENT}")
    is_whole = key == key.to_integral_value()
    return Decimal(int(key)) if is_whole else key.normalize(Context(prec=len(key.as_tuple().digits)))


def plain_form(value: Any) -> Any:
    """Return plain data whose equal numbers and times have one form, entries of dicts in the order of keys of text.

    Raises:
        ValueError: a part can't be in a key.
    """
    if isinstance(value, dict):
        entries = {plain_form(key): plain_form(part) for key, part in value.items()}
        is_text = all(isinstance(key, str) for key in entries)
        return {key: entries[key] for key in sorted(entries)} if is_text else entries
    if isinstance(value, list | tuple):
        return [plain_form(part) for part in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.utcoffset() is not None else value
    return value + 0.0 if type(value) is float else decimal_form(value)


def typed_form(key: Any, type_: Any, to_data: Callable[[Any], Any], revive: Callable[[Any, Any], Any]) -> Any:
    """Return a key of a type that msgspec knows with parts as `plain_form` has them; a float's 3 becomes 3.0.

    Raises:
        ValueError: a part can't be in a key.
    """
    data = msgspec.to_builtins(key, builtin_types=_FORMED, enc_hook=to_data)
    return msgspec.convert(plain_form(data), type_, builtin_types=_FORMED, dec_hook=revive)
