"""The worker's metrics for OpenTelemetry: those of `/metrics`, whenever one of the process's metric readers collects.

They are observable instruments, so nothing is counted for them, and OpenTelemetry is used only if the process has
imported it already: a program that sets up a meter provider has, and `opentelemetry-instrument` does it by the usual
variables (`OTEL_METRICS_EXPORTER`, `OTEL_EXPORTER_OTLP_ENDPOINT`, …).

There are no observable histograms: of a histogram, `_bucket` (by the attribute `le`), `_count` and `_sum` are sums of
their own. They are declared as sums that may go down, because receivers add `_total` to the names of the others, and
the queries of alerts and dashboards wouldn't find them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from threading import Lock, get_ident
from typing import TYPE_CHECKING

from prometheus_client import Metric

from actors._faust.app import App
from actors.runtime.observe.status import WorkerStatus

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

ANSWER_S = 2.0
"""A loop that is held for longer leaves a gap. It is short because a loop may itself wait for a reader's end."""
SCOPE = "faust-actors"

Families = Callable[[WorkerStatus], Iterable[Metric]]
Instrument = tuple[str, str, str]
"""Kind, name and description."""


class Readings:
    """Metrics of the process's workers for the readers of one meter.

    A collection calls each instrument's callback once, so a picture serves until an instrument is asked again.
    """

    def __init__(self, meter: Meter, families: Families) -> None:
        self._meter = meter
        self._families = families
        self._workers: dict[App, _Thread] = {}
        self._created: set[str] = set()
        self._lock = Lock()
        self._unread: dict[str, list[Observation]] = {}

    def add(self, app: App) -> None:
        """Report a worker's metrics from now on; call it on the worker's event loop."""
        for family in self._families(app.worker_status()):
            for instrument in _instruments(family):
                self._create(instrument)
        # Not before: a collection that waits for this loop would hold up what it creates.
        self._workers[app] = _Thread(asyncio.get_running_loop(), get_ident())

    def remove(self, app: App) -> None:
        """Stop reporting a worker's metrics."""
        self._workers.pop(app, None)

    def _create(self, instrument: Instrument) -> None:
        kind, name, text = instrument
        if name in self._created:
            return  # A second worker of the process: a callback tells of all.
        self._created.add(name)
        create = {
            "counter": self._meter.create_observable_counter,
            "gauge": self._meter.create_observable_gauge,
            "sum": self._meter.create_observable_up_down_counter,
        }[kind]

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return self._read(name)

        create(name, callbacks=[observe], description=text)

    def _read(self, name: str) -> list[Observation]:
        with self._lock:
            if name not in self._unread:
                self._unread = self._picture()
            return self._unread.pop(name)

    def _picture(self) -> dict[str, list[Observation]]:
        from opentelemetry.metrics import Observation

        found: dict[str, list[Observation]] = {name: [] for name in list(self._created)}
        for app, thread in list(self._workers.items()):
            for status in _looked_at(app, thread):
                # Prometheus knows a worker by its address; here nothing else tells two of one app apart.
                worker = {"worker": status.worker}
                for family in self._families(status):
                    for sample in family.samples:
                        observed = Observation(sample.value, worker | sample.labels)
                        found[_name(family, sample.name)].append(observed)
        return found


@dataclass(frozen=True, slots=True)
class _Thread:
    """Where a worker runs."""

    loop: asyncio.AbstractEventLoop
    ident: int


def _looked_at(app: App, thread: _Thread) -> list[WorkerStatus]:
    """Return a worker's status from whatever thread; none if its loop doesn't answer."""
    if get_ident() == thread.ident:
        return [app.worker_status()]

    async def look() -> WorkerStatus:
        return app.worker_status()

    looking = look()
    try:
        asked = asyncio.run_coroutine_threadsafe(looking, thread.loop)
    except RuntimeError:  # The loop is closed.
        looking.close()
        return []
    try:
        return [asked.result(ANSWER_S)]
    except (TimeoutError, CancelledError):
        asked.cancel()
        return []


def _instruments(family: Metric) -> list[Instrument]:
    if family.type != "histogram":
        return [(family.type, family.name, family.documentation)]
    return [("sum", f"{family.name}_{part}", family.documentation) for part in ("bucket", "count", "sum")]


def _name(family: Metric, sample: str) -> str:
    return sample if family.type == "histogram" else family.name


class Telemetry:
    """The readings of this process, once there are some."""

    def __init__(self) -> None:
        self._readings: Readings | None = None

    def add(self, app: App, families: Families) -> None:
        """Report a worker's metrics if the process uses OpenTelemetry's; call it on the worker's event loop."""
        if "opentelemetry.metrics" not in sys.modules:
            return
        if self._readings is None:
            from opentelemetry.metrics import get_meter

            self._readings = Readings(get_meter(SCOPE), families)
        self._readings.add(app)

    def remove(self, app: App) -> None:
        """Stop reporting a worker's metrics."""
        if self._readings is not None:
            self._readings.remove(app)


telemetry = Telemetry()
