"""The worker's metrics for Prometheus and OpenTelemetry, made of its picture when somebody asks.

Nothing is counted for them.

While a worker runs its collector is in prometheus_client's default registry, beside the process's and the user's own
metrics, so that whatever shows that registry shows these too: the page `/metrics` here, and Faust's own, if the app
has set that up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from importlib.metadata import version
from typing import TypeVar

from aiohttp import web
from prometheus_client import REGISTRY, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from actors._core.task.lifecycle import State
from actors._faust.app import App
from actors.runtime.observe.status import ENGINE, HistogramStatus, InputStatus, StoreStatus, TaskStatus, WorkerStatus
from actors.runtime.threads import in_threads
from actors.web.front import Front, Gathered, front_of, gather
from actors.web.telemetry import telemetry
from actors.web.workers import WorkerClient

PAGE = "/metrics"
PREFIX = "faust_actors_"
_TASK = ("actor", "partition")
_INPUT = ("actor", "topic", "partition")
_STORE = ("actor", "store", "partition")
_COPY = ("actor", "store", "partition", "role")

T = TypeVar("T")
Number = float | None
Labels = tuple[str, ...]
Samples = Iterable[tuple[Labels, T]]
_in_own_thread = in_threads(1, "metrics")
"""Not in the loop's default ones, which write the stores: a user's collector may be slow."""
_prepared: ContextVar[WorkerStatus | None] = ContextVar("actors_scraped", default=None)

_COUNTERS: Iterable[tuple[str, str, Callable[[TaskStatus], Number]]] = (
    ("records", "Input records that were handled and are committed.", lambda task: task.records),
    ("outputs", "Records that commits sent to other topics.", lambda task: task.outputs),
    ("changelog_records", "Records that commits wrote to changelogs.", lambda task: task.writes),
    ("misplaced_records", "Records found in another partition than their key's.", lambda task: task.misplaced),
    ("refused_commands", "Admin commands that were ignored.", lambda task: task.refused_commands),
    ("takeovers", "How often the partition was taken over, a new epoch each time.", lambda task: task.takeovers),
    ("restored_records", "Changelog records that restores read.", lambda task: task.restored_records),
)
_GAUGES: Iterable[tuple[str, str, Callable[[TaskStatus], Number]]] = (
    ("queued_records", "Records that wait in memory for the handler.", lambda task: task.queued),
    ("overlay_bytes", "About what is held in memory until the next commit.", lambda task: task.overlay_bytes),
    ("parked_messages", "Messages that are parked.", lambda task: task.parked),
    ("parked_effects", "Effects that were given up, one a key.", lambda task: task.parked_effects),
    ("pending_timers", "About how many timers are set.", lambda task: task.pending_timers),
    ("time_ahead_seconds", "How far the partition's time is ahead of the worker's.", lambda task: task.ahead_ms / 1000),
    ("stream_time_seconds", "Stream time, of actors with window stores.", lambda task: _seconds(task.stream_ms)),
    ("stream_time_held_seconds", "How long one feed has held stream time back.", lambda task: task.held_s),
    ("changelog_retention_seconds", "The shortest retention of the windows' changelogs.", lambda task: task.kept_s),
    ("task_paused", "1 while an operator has paused the partition.", lambda task: float(task.paused_at_ms is not None)),
    ("task_epoch", "The epoch of the partition's ownership.", lambda task: task.epoch or None),
    ("last_commit_timestamp_seconds", "When the newest commit began.", lambda task: _seconds(task.last_commit_at_ms)),
)
_INPUTS: Iterable[tuple[str, str, Callable[[InputStatus], Number]]] = (
    ("consumer_lag_records", "Offsets between what is committed and the input's end.", lambda one: one.lag),
    ("committed_offset", "The input offset up to which all is committed.", lambda one: one.committed_offset),
    ("end_offset", "The input's end as the last fetch or takeover saw it.", lambda one: one.end_offset),
)
_HISTOGRAMS: Iterable[tuple[str, str, Callable[[TaskStatus], HistogramStatus]]] = (
    ("commit_duration_seconds", "How long commits took, the stores' write included.", lambda task: task.commits),
    ("restore_duration_seconds", "How long bringing a store to its changelog's end took.", lambda task: task.restores),
)
_ROCKSDB = (
    ("estimated_keys", "About how many keys there are, expired ones too.", "estimate-num-keys"),
    ("live_sst_files_size_bytes", "Tables that the newest version needs.", "live-sst-files-size"),
    ("total_sst_files_size_bytes", "All tables on disk.", "total-sst-files-size"),
    ("memtables_size_bytes", "Newer writes in memory.", "cur-size-all-mem-tables"),
    ("table_readers_size_bytes", "What open tables take in memory beside the cache.", "estimate-table-readers-mem"),
    ("pending_compaction_bytes", "About what compactions have to rewrite.", "estimate-pending-compaction-bytes"),
    ("running_compactions", "Compactions that run.", "num-running-compactions"),
    ("running_flushes", "Flushes that run.", "num-running-flushes"),
)
_SHARED = (
    ("block_cache_usage_bytes", "What the block cache of all stores holds.", "block-cache-usage"),
    ("block_cache_capacity_bytes", "What the block cache of all stores may hold.", "block-cache-capacity"),
)


class WorkerCollector(Collector):
    """Collects a worker's metrics at the moment of the scrape; call it on the worker's event loop."""

    def __init__(self, app: App) -> None:
        self._app = app

    def show(self) -> None:
        """Show the metrics in prometheus_client's default registry, and to OpenTelemetry if the process uses it."""
        REGISTRY.register(self)
        telemetry.add(self._app, families)

    def hide(self) -> None:
        """Show the metrics no more. May be called twice, and before `show`."""
        telemetry.remove(self._app)
        with suppress(KeyError):
            REGISTRY.unregister(self)

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the registry needn't know the names, and there is no picture before the worker's start."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Return all metrics."""
        return families(_prepared.get() or self._app.worker_status())


def metrics_page(app: App) -> web.Application:
    """Return the part of the web server that shows the default registry."""

    async def scrape(request: web.Request) -> web.Response:
        try:
            encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        except (TypeError, ValueError):
            # It compares versions as they come.
            encode, content_type = choose_encoder("")
        # The picture is of this moment and this thread; to write it down takes longer than the loop should be held.
        _prepared.set(app.worker_status())
        front, setup = front_of(app), app.actor_service.setup
        if front is not None and setup is not None and setup.address and front.is_asked(request):
            body = await _in_own_thread(encode)(await _of_all(app, front, setup.address))
        else:
            body = await _in_own_thread(encode)(REGISTRY)
        return web.Response(body=body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})

    part = web.Application()
    part.router.add_get("", scrape)
    return part


async def _of_all(app: App, front: Front, address: str) -> Gathered:
    own = await _in_own_thread(generate_latest)(REGISTRY)
    workers = WorkerClient(app.extensions["web"].files.hops())
    try:
        return await gather(front, workers, address, own, PAGE)
    finally:
        await workers.close()


def families(seen: WorkerStatus) -> Iterator[Metric]:
    """Return the metrics that a picture makes, each sample with the app's id."""
    for family in _families(seen):
        family.samples = [sample._replace(labels={"app": seen.app, **sample.labels}) for sample in family.samples]
        yield family


def _families(seen: WorkerStatus) -> Iterator[Metric]:
    yield from _of_worker(seen)
    yield from _brokers(seen)
    for name, text, of_task in _COUNTERS:
        yield _counter(name, text, _TASK, ((_labels(task), of_task(task)) for task in seen.tasks))
    for name, text, of_task in _GAUGES:
        yield _gauge(name, text, _TASK, ((_labels(task), of_task(task)) for task in seen.tasks))
    inputs = [((task.actor, one.topic, str(task.partition)), one) for task in seen.tasks for one in task.inputs]
    for name, text, of_input in _INPUTS:
        yield _gauge(name, text, _INPUT, ((labels, of_input(one)) for labels, one in inputs))
    for name, text, timed in _HISTOGRAMS:
        yield _histogram(name, text, _TASK, ((_labels(task), timed(task)) for task in seen.tasks))
    yield from _states(seen)
    yield from _late(seen)
    yield from _feeds(seen)
    yield from _restoring(seen)
    yield from _stores(seen)
    yield from _copies(seen)
    yield from _queries(seen)


def _of_worker(seen: WorkerStatus) -> Iterator[Metric]:
    info = ((seen.worker, version("faust-actors"), ENGINE), 1)
    yield _gauge("worker_info", "The worker.", ("worker", "version", "engine"), [info])
    yield _gauge("worker_start_time_seconds", "When the worker started.", (), [((), _seconds(seen.started_at_ms))])
    yield _counter("rebalances", "How often partitions were assigned.", (), [((), seen.rebalances)])
    text = "How far the machine's clock is ahead of the known time, 0 while it is followed."
    yield _gauge("clock_off_seconds", text, (), [((), seen.clock_off_ms / 1000)])
    counts = (((actor,), count) for actor, count in seen.partitions.items())
    yield _gauge("partitions", "How many partitions the actor has.", ("actor",), counts)
    own = (((actor,), sum(task.actor == actor for task in seen.tasks)) for actor in seen.partitions)
    yield _gauge("assigned_partitions", "How many are this worker's.", ("actor",), own)


def _brokers(seen: WorkerStatus) -> Iterator[Metric]:
    brokers = seen.brokers
    text = "Brokers that were tried within a minute, in vain."
    yield _gauge("unreachable_brokers", text, (), [((), brokers.unreachable)])
    text = "How long the coordinator hasn't answered."
    yield _gauge("group_silence_seconds", text, (), [((), brokers.group_silent_s)])
    text = "The setting broker_commit_interval."
    yield _gauge("commit_interval_seconds", text, (), [((), seen.commit_interval_s)])
    text = "How long quotas held up the worker's connections, summed over them."
    yield _counter("throttled_seconds", text, (), [((), brokers.throttled_s)])


def _states(seen: WorkerStatus) -> Iterator[Metric]:
    states = (
        ((*_labels(task), state.value), float(task.state == state.value)) for task in seen.tasks for state in State
    )
    yield _gauge("task_state", "1 for the state that the task is in.", (*_TASK, "state"), states)
    fences = (((*_labels(task), reason), count) for task in seen.tasks for reason, count in task.fences.items())
    yield _counter("fences", "Work that was dropped, by reason; not only fencing.", (*_TASK, "reason"), fences)


def _late(seen: WorkerStatus) -> Iterator[Metric]:
    late = (
        ((task.actor, store, str(task.partition)), count) for task in seen.tasks for store, count in task.late.items()
    )
    yield _counter("late_records", "Messages that came too late for all windows of the store.", _STORE, late)
    by_clock = (
        ((task.actor, store, str(task.partition)), count)
        for task in seen.tasks
        for store, count in task.late_by_clock.items()
    )
    yield _counter("late_by_clock_records", "Messages that only close_when_idle made too late.", _STORE, by_clock)


def _feeds(seen: WorkerStatus) -> Iterator[Metric]:
    feeds = (
        ((*_labels(task), str(feed), place), (feed.time_ms or 0) / 1000)
        for task in seen.tasks
        for place, feed in (("behind", task.waits_for), ("ahead", task.ahead))
        if feed is not None
    )
    text = "Event time of the feed that holds stream time back, and of the one that is ahead; 0 without a time."
    yield _gauge("feed_time_seconds", text, (*_TASK, "feed", "place"), feeds)


def _restoring(seen: WorkerStatus) -> Iterator[Metric]:
    restores = [((task.actor, one.store, str(task.partition)), one) for task in seen.tasks for one in task.restoring]
    text = "Offsets that a restore has yet to read."
    left = ((labels, one.end - one.position) for labels, one in restores)
    yield _gauge("restore_remaining_records", text, _STORE, left)
    since = ((labels, _seconds(one.started_at_ms)) for labels, one in restores)
    yield _gauge("restore_start_time_seconds", "When a running restore began.", _STORE, since)


def _stores(seen: WorkerStatus) -> Iterator[Metric]:
    stores = [((task.actor, store.name, str(task.partition)), store) for task in seen.tasks for store in task.stores]
    of_stores: Iterable[tuple[str, str, Callable[[StoreStatus], Number]]] = (
        ("store_keys", "About how many keys the store has.", lambda store: store.keys),
        ("store_size_bytes", "What the store takes on disk and in memtables.", lambda store: store.size_bytes),
        ("store_changelog_offset", "The changelog offset that the store is at.", lambda one: one.changelog_offset),
    )
    for name, text, of_store in of_stores:
        yield _gauge(name, text, _STORE, ((labels, of_store(store)) for labels, store in stores))
    for name, text, figure in _ROCKSDB:
        figures = ((labels, store.figures.get(figure)) for labels, store in stores)
        yield _gauge(f"rocksdb_{name}", text, _STORE, figures)
    for name, text, figure in _SHARED:
        shared = max((store.figures[figure] for _, store in stores if figure in store.figures), default=None)
        yield _gauge(f"rocksdb_{name}", text, (), [((), shared)])


def _copies(seen: WorkerStatus) -> Iterator[Metric]:
    followed = seen.followed_copies()
    assigned = [
        ((actor, role), count) for actor, roles in seen.assigned_copies.items() for role, count in roles.items()
    ]
    text = "Partitions that the worker shall keep copies of."
    yield _gauge("assigned_copies", text, ("actor", "role"), assigned)
    follows = ((labels, followed[labels]) for labels, _ in assigned)
    yield _gauge("copies", "Partitions whose copies it follows.", ("actor", "role"), follows)
    copies = [((copy.actor, copy.store, str(copy.partition), copy.role.value), copy) for copy in seen.copies]
    lags = ((labels, copy.lag) for labels, copy in copies)
    yield _gauge("copy_lag_records", "Changelog offsets that the copy lacks.", _COPY, lags)
    text = "All that was committed before is in the copy."
    current = ((labels, _seconds(copy.current_ms)) for labels, copy in copies)
    yield _gauge("copy_current_timestamp_seconds", text, _COPY, current)


def _queries(seen: WorkerStatus) -> Iterator[Metric]:
    codes = (((str(code),), count) for code, count in seen.queries.codes.items())
    yield _counter("queries", "Questions over HTTP that were answered.", ("code",), codes)
    text = "Questions that wait for their answer."
    yield _gauge("queries_in_flight", text, (), [((), seen.queries.in_flight)])
    yield _histogram("query_duration_seconds", "How long answers took.", (), [((), seen.queries.durations)])


def _counter(name: str, text: str, labels: Labels, samples: Samples[Number]) -> Metric:
    return _filled(CounterMetricFamily(PREFIX + name, text, labels=labels), samples)


def _gauge(name: str, text: str, labels: Labels, samples: Samples[Number]) -> Metric:
    return _filled(GaugeMetricFamily(PREFIX + name, text, labels=labels), samples)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, samples: Samples[Number]) -> Metric:
    """Add the samples that are known."""
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, value)
    return family


def _histogram(name: str, text: str, labels: Labels, samples: Samples[HistogramStatus]) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels)
    for of, seen in samples:
        buckets = [(str(bound), float(count)) for bound, count in seen.buckets]
        family.add_metric(of, [*buckets, ("+Inf", float(seen.count))], seen.sum_s)
    return family


def _labels(task: TaskStatus) -> tuple[str, str]:
    return task.actor, str(task.partition)


def _seconds(at_ms: int | None) -> float | None:
    return None if at_ms is None else at_ms / 1000
