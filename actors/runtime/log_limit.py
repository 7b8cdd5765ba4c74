"""Log lines that would come again and again: one of a kind in a while."""

from __future__ import annotations


class LogLimit:
    """Tells whether a line is due.

    Args:
        seconds: the least time between two lines of a kind.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._logged_s: dict[str, float] = {}

    def is_due(self, now_s: float, kind: str = "") -> bool:
        """Tell whether no line of this kind was logged lately; if so, it counts as logged now.

        `now_s` is of any clock in seconds, the same one each time.
        """
        for old in [old for old, at_s in self._logged_s.items() if now_s - at_s >= self._seconds]:
            del self._logged_s[old]
        if kind in self._logged_s:
            return False
        self._logged_s[kind] = now_s
        return True
