"""The last 15 minutes as small plots: asks all workers for their samples, adds them, and draws lines.

Workers are asked when somebody looks, and no more often than they take samples. A worker that doesn't answer is
missing in the sums.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from urllib.parse import urlencode

import aiohttp
import msgspec

from actors._core.outside import MALFORMED
from actors.errors import ActorsError
from actors.web.dashboard.group import ClusterStatus
from actors.web.dashboard.history import STEP_S, STEPS, Place, Series
from actors.web.dashboard.rendering import count, rate, took
from actors.web.problems import Problem
from actors.web.workers import Limits, WorkerClient

HISTORY_PATH = "/dashboard/history.json"
ANSWER_S = 1.0
MAX_BYTES = 256 * 1024
MAX_PLACES = 64
"""Of how many places the plots are remembered."""
MOST_LATE_STEPS = 2
"""How many steps the sums wait for a worker's samples."""
HEIGHT = 36.0
_NAMES = tuple(one.name for one in fields(Series) if one.name != "first")

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Plot:
    """A line for a page: `now` and `most` are written out, `path` is SVG's, in a box of `STEPS` times `HEIGHT`."""

    title: str
    now: str
    most: str
    path: str


class Plots:
    """The plots of places that somebody looked at."""

    def __init__(self) -> None:
        self._found: OrderedDict[Place, tuple[float, list[Plot]]] = OrderedDict()
        self._lock = asyncio.Lock()

    async def look(self, workers: WorkerClient, cluster: ClusterStatus, own: Series, place: Place) -> list[Plot]:
        """Return the plots of a place, as they were `STEP_S` ago at most; `own` is what this worker has of it."""
        async with self._lock:
            held = self._found.get(place)
            if held is None or time.monotonic() - held[0] >= STEP_S:
                answering = [seen for seen in cluster.workers if seen.status is not None and seen.address]
                asked = [seen.address for seen in answering if seen.worker != cluster.worker]
                others = await asyncio.gather(*(_ask(workers, address, place) for address in asked))
                held = time.monotonic(), draw([own, *(one for one in others if one is not None)])
                self._found[place] = held
                while len(self._found) > MAX_PLACES:
                    self._found.popitem(last=False)
            self._found.move_to_end(place)
            return held[1]


async def _ask(workers: WorkerClient, address: str, place: Place) -> Series | None:
    given = {"name": place[0], "partition": place[1]}
    query = urlencode({name: value for name, value in given.items() if value is not None})
    try:
        limits = Limits(max_bytes=MAX_BYTES, took=lambda _: None)
        raw = await workers.fetch("GET", address, f"{HISTORY_PATH}?{query}", answer_s=ANSWER_S, limits=limits)
        return read_series(raw)
    except (Problem, TimeoutError, aiohttp.ClientError, ActorsError, OSError, *MALFORMED):
        return None


def read_series(raw: bytes) -> Series:
    """Read another worker's samples.

    Raises:
        One of `MALFORMED`: they aren't samples of `STEPS` steps.
    """
    series = msgspec.json.decode(raw, type=Series)
    values = [getattr(series, name) for name in _NAMES]
    if not 0 <= series.first <= 2**53 or any(len(column) != STEPS for column in values):
        raise ValueError(f"it doesn't have {STEPS} steps from now on")
    if any(value is not None and not 0 <= value <= 2**63 for column in values for value in column):
        raise ValueError("a value is below 0, or above 2^63")
    return series


def draw(found: Sequence[Series]) -> list[Plot]:
    """Add samples of several workers, the first of which is this one, and draw them.

    They end with the newest step that all have: one may take its sample a moment later than another.
    """
    first = min(one.first for one in found if 0 <= found[0].first - one.first <= MOST_LATE_STEPS)
    sums = {name: _added(first, ((one.first, getattr(one, name)) for one in found)) for name in _NAMES}
    commit_ms = [
        None if took_s is None or not commits else took_s / commits * 1000
        for took_s, commits in zip(sums["commit_s"], sums["commits"], strict=True)
    ]
    errors = _last_minute(sums["errors"])
    return [
        Plot("Records/s", *_written(sums["records"], rate), _path(sums["records"])),
        Plot("Lag", *_written(sums["lag"], count), _path(sums["lag"])),
        Plot("Commit", *_written(commit_ms, took), _path(commit_ms)),
        Plot("Errors a minute", *_written(errors, count), _path(errors)),
    ]


def _added(first: int, columns: Iterable[tuple[int, Values]]) -> list[float | None]:
    total: list[float | None] = [None] * STEPS
    for start, values in columns:
        for number, value in enumerate(values, start - first):
            if value is not None and 0 <= number < STEPS:
                total[number] = value + (total[number] or 0.0)
    return total


def _last_minute(values: Values) -> list[float | None]:
    """Return the sum of the minute up to each step."""
    steps, sums = 60 // STEP_S, []
    for end, value in enumerate(values, 1):
        known = [one for one in values[max(0, end - steps) : end] if one is not None]
        sums.append(None if value is None else math.fsum(known))
    return sums


def _written(values: Values, write: Callable[[float | None], str]) -> tuple[str, str]:
    return write(values[-1]), write(max((value for value in values if value is not None), default=None))


def _path(values: Values) -> str:
    """Return the line, with a gap where nothing is known."""
    most = max((value for value in values if value is not None), default=0.0) or 1.0
    steps, is_down = [], False
    for number, value in enumerate(values):
        if value is not None:
            height = HEIGHT - 1 - (HEIGHT - 2) * value / most
            # One that is alone is seen as well: as a line from the step before it.
            steps.append(f"{'' if is_down else f'M{max(number - 1, 0)} {height:.1f}'}L{number} {height:.1f}")
        is_down = value is not None
    return "".join(steps)
