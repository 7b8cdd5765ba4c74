"""How many requests are under way at a time, all together and of one client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from actors.web.problems import Problem


class Places:
    """A number of places, of which one client may take a share.

    Args:
        what: what takes them, for the refusal.
        total: how many there are.
        share: how many of them one client may take.
    """

    def __init__(self, what: str, total: int, share: int) -> None:
        self._what = what
        self._total = total
        self._share = share
        self._taken: Counter[str] = Counter()

    @contextmanager
    def place(self, client: str) -> Iterator[None]:
        """Take a place for as long as the block runs.

        Raises:
            Problem: 503, all are taken, or the client's share is.
        """
        if self._taken.total() >= self._total:
            raise _busy(f"{self._total} {self._what} are under way")
        if self._taken[client] >= self._share:
            raise _busy(f"{self._share} {self._what} of {client} are under way")
        self._taken[client] += 1
        try:
            yield
        finally:
            self._taken[client] -= 1
            if not self._taken[client]:
                del self._taken[client]


def _busy(detail: str) -> Problem:
    return Problem(503, "busy", "Too many questions at once", detail, retry_after_ms=1000)
