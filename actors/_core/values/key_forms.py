"""The one form of equal keys, so that each has one partition and one state."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any

_LARGEST_EXPONENT = 1_000


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


def ordered(value: Any) -> Any:
    """Return plain data with the entries of its dicts in the order of their keys, which are text."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: ordered(value[key]) for key in sorted(value)}
    return [ordered(part) for part in value] if isinstance(value, list | tuple) else value
