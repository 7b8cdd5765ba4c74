"""Reads the value of a setting that was written as text or in TOML."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Set
from datetime import timedelta
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

from faust.types import ProcessingGuarantee
from faust.types.settings import params

from actors._core.logs import text_of
from actors._core.outside import MALFORMED

Read = Callable[[Any], Any]
"""Converts what was written; raises `ValueError` with what to write instead."""

TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
UNITS = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1_000, "ms": 1}
"""In milliseconds, the largest first."""
_SPAN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(d|h|min|s|ms)\s*")


def boolean(given: Any) -> bool:
    """Read true or false."""
    if isinstance(given, bool):
        return given
    if isinstance(given, str) and given.strip().lower() in TRUE + FALSE:
        return given.strip().lower() in TRUE
    raise ValueError("write true or false")


def integer(given: Any) -> int:
    """Read a whole number."""
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    if isinstance(given, str):
        try:
            return int(given)
        except ValueError:
            pass
    raise ValueError("write a whole number, as 1000")


def number(given: Any) -> float:
    """Read a finite number."""
    if isinstance(given, int | float | str) and not isinstance(given, bool):
        try:
            found = float(given)
        except ValueError:
            found = math.nan
        if math.isfinite(found):
            return found
    raise ValueError("write a number, as 2.5")


def span(given: Any) -> timedelta:
    """Read a time span: a number of seconds, or numbers with units as `1h 30min`."""
    wrong = "write a number of seconds, or numbers with the units d, h, min, s and ms, as '1h 30min'"
    if isinstance(given, str) and _SPAN.match(given):
        at, total_ms = 0, 0.0
        while at < len(given):
            part = _SPAN.match(given, at)
            if part is None:
                raise ValueError(wrong)
            total_ms += float(part[1]) * UNITS[part[2]]
            at = part.end()
    else:
        try:
            total_ms = number(given) * 1000
        except ValueError:
            raise ValueError(wrong) from None
    try:
        return timedelta(milliseconds=total_ms)
    except OverflowError:
        raise ValueError("it is longer than any time span") from None


def span_text(given: timedelta) -> str:
    """Return a time span as `span` reads it."""
    left, parts = given // timedelta(milliseconds=1), []
    for unit, size in UNITS.items():
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"


def text(given: Any) -> str:
    """Read a text."""
    if not isinstance(given, str):
        raise ValueError("write a text in quotes")  # noqa: TRY004  the callers name the setting
    return given


def texts(given: Any) -> list[str]:
    """Read several texts: a list of TOML, or one text with commas."""
    if isinstance(given, str):
        return [part.strip() for part in given.split(",") if part.strip()]
    if isinstance(given, list) and all(isinstance(one, str) for one in given):
        return list(given)
    raise ValueError('write a list of texts, as ["a", "b"]; in the environment with commas, as a,b')


def mapping(given: Any) -> Mapping[str, Any]:
    """Read a table of TOML, or a JSON object."""
    found = given
    if isinstance(given, str):
        try:
            found = json.loads(given)
        except MALFORMED:
            found = None
    if not isinstance(found, dict):
        raise ValueError('write a table; in the environment a JSON object, as {"orders": "shop-orders"}')  # noqa: TRY004
    return found


def text_mapping(given: Any) -> Mapping[str, str]:
    """Read a mapping whose values are texts."""
    found = mapping(given)
    if not all(isinstance(one, str) for one in found.values()):
        raise ValueError("each entry has to be a text")
    return found


def _folders(given: Any) -> Any:
    """Read Faust's `autodiscover`."""
    try:
        return boolean(given)
    except ValueError:
        return texts(given)


def _urls(given: Any) -> str:
    return given if isinstance(given, str) else ";".join(texts(given))


def _unwritten(_: Any) -> Any:
    raise ValueError("it can't be written as text: give it as an argument of App(…)")


class Kind(NamedTuple):
    """How a setting of `ActorOptions` is read that is written as text, and the types of its arguments, in words too."""

    read: Read
    types: tuple[Any, ...]
    words: str


LISTS = (list, tuple, Set)
"""Not `Sequence`: a text is one too, of its letters."""
_SECRETS = (str, Path, *LISTS, NoneType)
OWN = {
    "Any": Kind(text, (object,), "what the reference says"),
    "bool": Kind(boolean, (bool,), "True or False"),
    "int": Kind(integer, (int,), "a whole number"),
    "int | None": Kind(integer, (int, NoneType), "a whole number"),
    "timedelta": Kind(span, (timedelta,), "a timedelta"),
    "str": Kind(text, (str,), "a text"),
    "str | None": Kind(text, (str, NoneType), "a text"),
    "Path | str | None": Kind(text, (str, os.PathLike, NoneType), "a path"),
    "Sequence[str]": Kind(texts, LISTS, "a list of texts, as ['a', 'b']"),
    "Mapping[str, str]": Kind(text_mapping, (Mapping,), "a mapping of texts, as {'orders': 'shop-orders'}"),
    # Of secrets: several in one text have commas between them.
    "Sequence[str] | Path | None": Kind(text, _SECRETS, "a list of texts, or the Path of a file"),
    "str | Path | Sequence[str] | None": Kind(text, _SECRETS, "a text, a list of texts, or the Path of a file"),
}
"""By the annotation of a field of `ActorOptions`."""

_FAUSTS: tuple[tuple[type[Any], Read], ...] = (
    (params.Bool, boolean),
    (params.Seconds, lambda given: span(given).total_seconds()),
    (params.Number, integer),
    (params.BrokerList, _urls),
    (params.Dict, mapping),
    (params.Credentials, _unwritten),
    (params.SSLContext, _unwritten),
    (params.LogHandlers, _unwritten),
)
_UNCHECKED = (params.Path, params._Symbol)
"""Faust reads these when it needs them: paths relate to others, and classes would be imported before the app's own."""


def of_faust(param: Any) -> Read:
    """Return the reader of a setting of Faust's."""
    if type(param) is params.Param:
        return _folders
    read = next((found for kind, found in _FAUSTS if isinstance(param, kind)), text)

    def checked(given: Any) -> Any:
        found = read(given)
        if not isinstance(param, _UNCHECKED):
            try:
                param.prepare_set(None, found)
            except Exception as error:
                is_mode = isinstance(param.default, ProcessingGuarantee)
                raise ValueError("write exactly_once" if is_mode else text_of(error)) from error
        return found

    return checked


def path(given: Any) -> Path:
    """Read the path of a file."""
    return Path(text(given))
