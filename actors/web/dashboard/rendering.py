"""Templates, and how numbers, times and keys are written."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from functools import cached_property
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup, escape

from actors.admin.parked.reader import shown
from stores._core.printable import moment, printable

PACKAGE = "actors.web.dashboard"
UNKNOWN = Markup('<span class="soft" title="not known">&ndash;</span>')
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
MOST_S = 1_000 * 86_400
_PARTS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


class Pages:
    """The templates, and the files that pages need."""

    def __init__(self) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.PackageLoader(PACKAGE, "templates"),
            autoescape=True,
            finalize=_fit,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            count=count,
            keys=keys,
            rate=rate,
            took=took,
            size=size,
            ago=ago,
            until=until,
            at=at,
            span=span,
            key=shown,
            param=param,
            percent=percent,
            clock=moment,
            exact=escape,
        )
        self._environment.globals["version"] = self.version

    def render(self, template: str, **content: Any) -> str:
        """Return a page."""
        return self._environment.get_template(template).render(**content)

    def file(self, name: str) -> bytes:
        """Return the style sheet, or the script."""
        return self._files[name]

    @cached_property
    def _files(self) -> dict[str, bytes]:
        folder = resources.files(PACKAGE) / "static"
        return {name: (folder / name).read_bytes() for name in ("dashboard.css", "dashboard.js")}

    @cached_property
    def version(self) -> str:
        """A hash of the files, so that browsers may cache them."""
        return hashlib.sha256(b"".join(self._files.values())).hexdigest()[:12]


def count(value: float | None) -> str:
    """Write a whole number."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def keys(row: Any) -> str:
    """Write how many keys a row's stores have, with a mark where that is an estimate."""
    return count(row.keys) if row.keys is None or row.keys_exact else f"about {count(row.keys)}"


def rate(value: float | None) -> str:
    """Write a number per second."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def took(value_ms: float | None) -> str:
    """Write how long something took."""
    if value_ms is None:
        return UNKNOWN
    if value_ms < 1000:
        return f"{value_ms:.1f} ms" if value_ms < 10 else f"{value_ms:.0f} ms"
    return f"{value_ms / 1000:.1f} s"


def size(value: float | None) -> str:
    """Write a number of bytes."""
    if value is None:
        return UNKNOWN
    unit = 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.0f} {_UNITS[unit]}" if unit == 0 or value >= 100 else f"{value:.1f} {_UNITS[unit]}"


def percent(done: float, total: float) -> str:
    """Write a share."""
    return f"{100 * done / total:.0f} %" if total > 0 else "0 %"


def ago(then_ms: int | None, now_ms: int) -> str:
    """Write how long something has lasted, with the time itself behind it."""
    return UNKNOWN if then_ms is None else _time(then_ms, _duration((now_ms - then_ms) / 1000))


def until(then_ms: int | None, now_ms: int) -> str:
    """Write when something will be."""
    if then_ms is None:
        return UNKNOWN
    left_s = (then_ms - now_ms) / 1000
    return _time(then_ms, f"in {_duration(left_s)}" if left_s > 0 else "now")


def at(then_ms: int | None) -> str:
    """Write a time of messages, which has nothing to do with now."""
    return UNKNOWN if then_ms is None else moment(then_ms)


def span(span_ms: int) -> str:
    """Write a length of time."""
    return took(span_ms) if 0 < span_ms < 1000 else _duration(span_ms / 1000)


def param(raw: bytes) -> str:
    """Write a key for a URL or a form."""
    return urlsafe_b64encode(raw).decode()


def _duration(seconds: float) -> str:
    if seconds > MOST_S:
        return "over 1,000 d"
    whole = max(0, int(seconds))
    for least, word, lower, lower_word in _PARTS:
        if whole >= least:
            return f"{whole // least} {word} {whole % least // lower} {lower_word}"
    return f"{whole} s"


def _fit(value: Any) -> Any:
    """Escape what a page has no use for: direction marks and control characters, wherever a template shows a text."""
    return printable(value, keep="\n\t") if type(value) is str else value


def _time(at_ms: int, text: str) -> Markup:
    return Markup('<time title="{}">{}</time>').format(moment(at_ms), text)
