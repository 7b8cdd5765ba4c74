"""Results of checks."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Level(enum.Enum):
    """How much a result matters: a worker can't run; something may be lost later; nobody knows; good to know."""

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"
    NOTE = "note"


LEVELS = list(Level)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a check.

    Attributes:
        check: the check's name.
        level: how much it matters.
        what: what was found.
        remedy: what to do about it; a note may have none.
    """

    check: str
    level: Level
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.level.value}: {self.check}: {self.what}{f'. {self.remedy}' if self.remedy else ''}"


def sort(results: Iterable[Result]) -> list[Result]:
    """Return the results, the worst first."""
    return sorted(results, key=lambda one: LEVELS.index(one.level))


def exit_code(results: Iterable[Result]) -> int:
    """Return 0 if there is no finding, 1 if there is one, 2 if a check couldn't be made: then there may be more."""
    levels = {one.level for one in results}
    if Level.UNKNOWN in levels:
        return 2
    return 1 if levels & {Level.ERROR, Level.WARNING} else 0
