"""Union types."""

from __future__ import annotations

import types
import typing
from typing import Any, Union


def is_union(type_: Any) -> bool:
    """Return whether a type is a union, in either notation."""
    return typing.get_origin(type_) in (Union, types.UnionType)


def allows_none(type_: Any) -> bool:
    return is_union(type_) and types.NoneType in typing.get_args(type_)


def arms_of(type_: Any) -> tuple[Any, ...]:
    """Return the types of a union, or a type that is none by itself."""
    return typing.get_args(type_) if is_union(type_) else (type_,)
