"""The worker's metrics for Prometheus, made of its picture when somebody scrapes: nothing is counted for them.

While a worker runs its collector is in prometheus_client's default registry, beside the process's and the user's own
metrics, so that whatever shows that registry shows these too: the page `/metrics` here, and Faust's own, if the app
has set that up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from importlib.metadata import version
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import REGISTRY, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from actors._core.task.lifecycle import State
from actors._faust.status import status
from actors.runtime.observe.status import HistogramStatus, StoreStatus, TaskStatus, WorkerStatus
from actors.runtime.threads import in_threads

if TYPE_CHECKING:
    from actors._faust.app import App

PAGE = "/metrics"
PREFIX = "faust_actors_"
_TASK = ("actor", "partition")
_STORE = ("actor", "store", "partition")
_COPY = ("actor", "store", "partition", "role")

Number = float | None
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
    ("consumer_lag_records", "Offsets between what is committed and the input's end.", lambda task: task.lag),
    ("committed_offset", "The input offset up to which all is committed.", lambda task: task.committed_offset),
    ("end_offset", "The input's end as the last fetch or takeover saw it.", lambda task: task.end_offset),
    ("queued_records", "Records that wait in memory for the handler.", lambda task: task.queued),
    ("overlay_bytes", "About what is held in memory until the next commit.", lambda task: task.overlay_bytes),
    ("parked_messages", "Messages that were put aside.", lambda task: task.parked),
    ("parked_effects", "Effects that were given up, one a key.", lambda task: task.parked_effects),
    ("pending_timers", "About how many timers are set.", lambda task: task.pending_timers),
    ("time_ahead_seconds", "How far the partition's time is ahead of the worker's.", lambda task: task.ahead_ms / 1000),
    ("task_epoch", "The epoch of the partition's ownership.", lambda task: task.epoch or None),
    ("last_commit_timestamp_seconds", "When the newest commit began.", lambda task: _seconds(task.last_commit_at_ms)),
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
    """Gives a worker's metrics, of the moment of the scrape; call it on the worker's event loop."""

    def __init__(self, app: App) -> None:
        self._app = app

    def describe(self) -> Iterable[Metric]:
        """Give nothing: the registry needn't know the names, and there is no picture before the worker's start."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Give all metrics."""
        return families(_prepared.get() or status(self._app))


def metrics_page(app: App) -> web.Application:
    """Give the part of the web server that shows the default registry."""

    async def scrape(request: web.Request) -> web.Response:
        try:
            encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        except (TypeError, ValueError):
            # It compares versions as they come.
            encode, content_type = choose_encoder("")
        # The picture is of this moment and this thread; to write it down takes longer than the loop should be held.
        _prepared.set(status(app))
        body = await _in_own_thread(encode)(REGISTRY)
        return web.Response(body=body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})

    part = web.Application()
    part.router.add_get("", scrape)
    return part


def families(seen: WorkerStatus) -> Iterator[Metric]:
    """Give the metrics that a picture makes, each sample with the app's id."""
    for family in _families(seen):
        family.samples = [sample._replace(labels={"app": seen.app, **sample.labels}) for sample in family.samples]
        yield family


def _families(seen: WorkerStatus) -> Iterator[Metric]:
    yield from _of_worker(seen)
    yield from _brokers(seen)
    for name, text, of_task in _COUNTERS:
        yield _each(CounterMetricFamily(PREFIX + name, text, labels=_TASK), seen, of_task)
    for name, text, of_task in _GAUGES:
        yield _each(GaugeMetricFamily(PREFIX + name, text, labels=_TASK), seen, of_task)
    for name, text, timed in _HISTOGRAMS:
        family = HistogramMetricFamily(PREFIX + name, text, labels=_TASK)
        for task in seen.tasks:
            _add(family, _labels(task), timed(task))
        yield family
    yield from _states(seen)
    yield from _restoring(seen)
    yield from _stores(seen)
    yield from _copies(seen)
    yield from _queries(seen)


def _of_worker(seen: WorkerStatus) -> Iterator[Metric]:
    info = GaugeMetricFamily(PREFIX + "worker_info", "The worker.", labels=("worker", "version"))
    info.add_metric((seen.worker, version("faust-actors")), 1)
    yield info
    started = GaugeMetricFamily(PREFIX + "worker_start_time_seconds", "When the worker started.", labels=())
    if seen.started_at_ms is not None:
        started.add_metric((), seen.started_at_ms / 1000)
    yield started
    rebalances = CounterMetricFamily(PREFIX + "rebalances", "How often partitions were assigned.", labels=())
    rebalances.add_metric((), seen.rebalances)
    yield rebalances
    text = "How far the machine's clock is ahead of the known time, 0 while it is followed."
    off = GaugeMetricFamily(PREFIX + "clock_off_seconds", text, labels=())
    off.add_metric((), seen.clock_off_ms / 1000)
    yield off
    partitions = GaugeMetricFamily(PREFIX + "partitions", "How many partitions the actor has.", labels=("actor",))
    assigned = GaugeMetricFamily(PREFIX + "assigned_partitions", "How many are this worker's.", labels=("actor",))
    for actor, count in seen.partitions.items():
        partitions.add_metric((actor,), count)
        assigned.add_metric((actor,), sum(task.actor == actor for task in seen.tasks))
    yield from (partitions, assigned)


def _brokers(seen: WorkerStatus) -> Iterator[Metric]:
    brokers = seen.brokers
    for name, text, value in (
        ("unreachable_brokers", "Brokers that were tried within a minute, in vain.", brokers.unreachable),
        ("group_silence_seconds", "How long the coordinator hasn't answered.", brokers.group_silent_s),
        ("commit_interval_seconds", "The setting broker_commit_interval.", seen.commit_interval_s),
    ):
        family = GaugeMetricFamily(PREFIX + name, text, labels=())
        if value is not None:
            family.add_metric((), value)
        yield family
    text = "How long quotas held up the worker's connections, summed over them."
    throttled = CounterMetricFamily(PREFIX + "throttled_seconds", text, labels=())
    throttled.add_metric((), brokers.throttled_s)
    yield throttled


def _states(seen: WorkerStatus) -> Iterator[Metric]:
    states = GaugeMetricFamily(PREFIX + "task_state", "1 for the state that the task is in.", labels=(*_TASK, "state"))
    fences = CounterMetricFamily(
        PREFIX + "fences", "How often the task dropped its work in hand.", labels=(*_TASK, "reason")
    )
    for task in seen.tasks:
        for state in State:
            states.add_metric((*_labels(task), state.value), float(task.state == state.value))
        for reason, count in task.fences.items():
            fences.add_metric((*_labels(task), reason), count)
    yield from (states, fences)


def _restoring(seen: WorkerStatus) -> Iterator[Metric]:
    left = GaugeMetricFamily(
        PREFIX + "restore_remaining_records", "Offsets that a restore has yet to read.", labels=_STORE
    )
    since = GaugeMetricFamily(PREFIX + "restore_start_time_seconds", "When a running restore began.", labels=_STORE)
    for task in seen.tasks:
        for one in task.restoring:
            labels = (task.actor, one.store, str(task.partition))
            left.add_metric(labels, one.end - one.position)
            since.add_metric(labels, one.started_at_ms / 1000)
    yield from (left, since)


def _stores(seen: WorkerStatus) -> Iterator[Metric]:
    stores = [(task, store) for task in seen.tasks for store in task.stores]
    for name, text, of_store in (
        ("store_keys", "About how many keys the store has.", lambda store: store.keys),
        ("store_size_bytes", "What the store takes on disk and in memtables.", lambda store: store.size_bytes),
        (
            "store_changelog_offset",
            "Up to where of its changelog the store goes.",
            lambda store: store.changelog_offset,
        ),
    ):
        yield _each_store(GaugeMetricFamily(PREFIX + name, text, labels=_STORE), stores, of_store)
    for name, text, figure in _ROCKSDB:
        family = GaugeMetricFamily(f"{PREFIX}rocksdb_{name}", text, labels=_STORE)
        yield _each_store(family, stores, _figure(figure))
    for name, text, figure in _SHARED:
        found = [store.figures[figure] for _, store in stores if figure in store.figures]
        family = GaugeMetricFamily(f"{PREFIX}rocksdb_{name}", text, labels=())
        if found:
            family.add_metric((), max(found))
        yield family


def _copies(seen: WorkerStatus) -> Iterator[Metric]:
    shall = GaugeMetricFamily(
        PREFIX + "assigned_copies", "Partitions that the worker shall keep copies of.", labels=("actor", "role")
    )
    does = GaugeMetricFamily(PREFIX + "copies", "Partitions whose copies it follows.", labels=("actor", "role"))
    followed = seen.followed_copies()
    for actor, roles in seen.assigned_copies.items():
        for role, count in roles.items():
            shall.add_metric((actor, role), count)
            does.add_metric((actor, role), followed[actor, role])
    yield from (shall, does)
    lag = GaugeMetricFamily(PREFIX + "copy_lag_records", "Changelog offsets that the copy lacks.", labels=_COPY)
    since = GaugeMetricFamily(
        PREFIX + "copy_current_timestamp_seconds", "All that was committed before is in the copy.", labels=_COPY
    )
    for copy in seen.copies:
        labels = copy.actor, copy.store, str(copy.partition), copy.role.value
        if copy.lag is not None:
            lag.add_metric(labels, copy.lag)
        if copy.current_ms is not None:
            since.add_metric(labels, copy.current_ms / 1000)
    yield from (lag, since)


def _queries(seen: WorkerStatus) -> Iterator[Metric]:
    queries = CounterMetricFamily(PREFIX + "queries", "Questions over HTTP that were answered.", labels=("code",))
    for code, count in seen.queries.codes.items():
        queries.add_metric((str(code),), count)
    yield queries
    under_way = GaugeMetricFamily(PREFIX + "queries_in_flight", "Questions that wait for their answer.", labels=())
    under_way.add_metric((), seen.queries.in_flight)
    yield under_way
    durations = HistogramMetricFamily(PREFIX + "query_duration_seconds", "How long answers took.", labels=())
    _add(durations, (), seen.queries.durations)
    yield durations


def _figure(name: str) -> Callable[[StoreStatus], Number]:
    return lambda store: store.figures.get(name)


def _each(
    family: CounterMetricFamily | GaugeMetricFamily, seen: WorkerStatus, of_task: Callable[[TaskStatus], Number]
) -> Metric:
    for task in seen.tasks:
        value = of_task(task)
        if value is not None:
            family.add_metric(_labels(task), value)
    return family


def _each_store(
    family: GaugeMetricFamily,
    stores: Iterable[tuple[TaskStatus, StoreStatus]],
    of_store: Callable[[StoreStatus], Number],
) -> Metric:
    for task, store in stores:
        value = of_store(store)
        if value is not None:
            family.add_metric((task.actor, store.name, str(task.partition)), value)
    return family


def _add(family: HistogramMetricFamily, labels: tuple[str, ...], seen: HistogramStatus) -> None:
    buckets = [(str(bound), float(count)) for bound, count in seen.buckets]
    family.add_metric(labels, [*buckets, ("+Inf", float(seen.count))], seen.sum_s)


def _labels(task: TaskStatus) -> tuple[str, str]:
    return task.actor, str(task.partition)


def _seconds(at_ms: int | None) -> float | None:
    return None if at_ms is None else at_ms / 1000
