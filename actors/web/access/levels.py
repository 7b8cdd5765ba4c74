"""Access levels: of requests, and of their callers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from actors._faust.settings.secrets import Level

NEEDED = "__actors_level__"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request.

    Attributes:
        name: for logs and pages: which token, whose certificate, which address; never a secret.
        level: the most that is allowed.
        is_known: a token or a certificate says who it is.
        is_worker: another worker passed the request on.
        sends_itself: a browser would send it for any page that asks: a password, a certificate, the machine itself.
        is_browser: the token came as a password, as browsers send it.
    """

    name: str
    level: Level
    is_known: bool = False
    is_worker: bool = False
    sends_itself: bool = True
    is_browser: bool = False


def needs(level: Level) -> Callable[[Decorated], Decorated]:
    """Say what a handler needs, whatever its method."""

    def mark(handler: Decorated) -> Decorated:
        setattr(handler, NEEDED, level)
        return handler

    return mark
