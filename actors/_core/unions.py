"""Types that are several."""

from __future__ import annotations

import types
import typing
from typing import Any, Union


def is_union(type_: Any) -> bool:
    """Tell whether it is a union, however it was written."""
    return typing.get_origin(type_) in (Union, types.UnionType)


def arms_of(type_: Any) -> tuple[Any, ...]:
    """Return the types that a union has, or the one type that it is."""
    return typing.get_args(type_) if is_union(type_) else (type_,)
