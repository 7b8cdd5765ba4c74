"""Medians, spreads and ratios, and the tables made of them."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from benchmarks.peers.latency import PHASES, SHARES
from benchmarks.peers.scenarios import LATENCY, RESTORE, SCENARIOS, SPARSE_ONES, TAKEOVER, Scenario, Sparse
from benchmarks.peers.systems import (
    FAUST,
    FLINK,
    KAFKA_STREAMS,
    KAFKA_STREAMS_CACHED,
    KAFKA_STREAMS_DIRECT,
    OURS,
    OURS_COMPILED,
    OWN_SYSTEMS,
    QUIX,
    SPARK,
)
from benchmarks.peers.tables import Table

NAMES = {
    OURS: "ours",
    OURS_COMPILED: "ours, compiled engine",
    KAFKA_STREAMS: "Kafka Streams",
    KAFKA_STREAMS_CACHED: "Kafka Streams, caching on",
    KAFKA_STREAMS_DIRECT: "Kafka Streams, stores not transactional",
    QUIX: "Quix Streams",
    FAUST: "faust-streaming",
    SPARK: "PySpark, transformWithStateInPandas",
    FLINK: "PyFlink, KeyedProcessFunction",
}
LATENCY_RATE = 1_000
"""Records per second of the latency in the last line."""
SPARSE_FIGURES = {
    "p50": "p50_ms",
    "p99": "p99_ms",
    "broker_cpu": "broker_cores",
    "rss": "max_rss_mb",
    "connections": "connections",
    "start": "started_s",
}
"""What is compared at a low rate over many partitions, by how the last line calls it."""
WINDOWED_FIGURES = {"cpu": "cpu_s_per_million", "state": "state_mb"}
"""What is compared beside the rate where records are counted in windows, likewise."""

Run = Mapping[str, Any]
"""A measurement: what, scenario, system, round, and its figures."""


def ratios(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """Compare ours with each peer, round by round, and give the median of the rounds' ratios.

    Rates: ours ÷ theirs, more is better. Latencies, CPU and state of windows, all of the sparse scenarios and
    `tasks_1000_takeover` (on the same folder): ours ÷ theirs, less is better. Restores: their seconds ÷ ours, more is
    better; of several sizes the smallest has the plain name.
    """
    peers = {
        "ratio_to_kafka_streams": KAFKA_STREAMS,
        "ratio_to_quix": QUIX,
        "ratio_to_faust": FAUST,
        "ratio_to_spark": SPARK,
        "ratio_to_flink": FLINK,
    }
    compiled = {"compiled_to_kafka_streams": _ratios(OURS_COMPILED, KAFKA_STREAMS, runs)}
    return {name: _ratios(OURS, peer, runs) for name, peer in peers.items()} | compiled


def _ratios(ours: str, peer: str, runs: Sequence[Run]) -> dict[str, float]:
    found: dict[str, float | None] = {}
    for scenario in SCENARIOS:
        found[scenario.name] = _ratio(ours, peer, _compared(scenario, runs), itemgetter("records_per_s"))
        for name, figure in WINDOWED_FIGURES.items() if scenario.span_ms else ():
            found[f"{scenario.name}_{name}"] = _ratio(ours, peer, _of(runs, scenario.name), itemgetter(figure))
    at_rate = [run for run in _of(runs, LATENCY) if run["rate"] == LATENCY_RATE]
    for part in ("p50", "p99"):
        found[f"latency_{part}"] = _ratio(ours, peer, at_rate, itemgetter(f"{part}_ms"))
    for sparse in _sparse_ones():
        for name, figure in SPARSE_FIGURES.items():
            found[f"{sparse.name}_{name}"] = _ratio(ours, peer, _of(runs, sparse.name), itemgetter(figure))
    warm = [run for run in _of(runs, TAKEOVER) if not run["cold"]]
    found[TAKEOVER] = _ratio(ours, peer, warm, itemgetter("all_s"))
    sizes = sorted({run["keys"] for run in _of(runs, RESTORE)})
    for keys in sizes:
        for cold in (True, False):
            some = [run for run in _of(runs, RESTORE) if run["cold"] == cold and run["keys"] == keys]
            name = ("restore_cold" if cold else "restore_warm") + ("" if keys == sizes[0] else f"_{keys}")
            found[name] = _ratio(ours, peer, some, lambda run: 1 / float(run["all_s"]))
    return {name: round(ratio, 3) for name, ratio in found.items() if ratio is not None}


def _ratio(ours: str, peer: str, runs: Iterable[Run], figure: Callable[[Run], float]) -> float | None:
    by_round: dict[int, dict[str, float]] = {}
    for run in runs:
        by_round.setdefault(run["round"], {})[run["system"]] = figure(run)
    found = [figures[ours] / figures[peer] for figures in by_round.values() if {ours, peer} <= figures.keys()]
    return statistics.median(found) if found else None


def tables(runs: Sequence[Run]) -> list[Table]:
    """Make a table of each kind of measurement that there is."""
    made = [_rates(runs), _windows(runs), _latencies(runs), _phases(runs), _sparse(runs), _restores(runs)]
    return [table for table in made if table.rows]


def _rates(runs: Sequence[Run]) -> Table:
    return Table(
        "rates",
        "Run commands of 116 bytes, half of them repeats: put if absent, the first of each is forwarded. One thread a "
        "worker, 4 partitions, commit interval 100 ms, no caching where not said. Records/s by the group's committed "
        "offsets: median (least to most); the ratios are those of ours, exactly once, interpreted and compiled, to "
        "Kafka Streams without caching, of the same round.",
        ["", "records/s", "ratio", "CPU s per million", "max RSS of a worker, MiB", "records"],
        [row for scenario in SCENARIOS if not scenario.span_ms for row, _ in _rate_rows(scenario, runs)],
    )


def _windows(runs: Sequence[Run]) -> Table:
    found = [pair for scenario in SCENARIOS if scenario.span_ms for pair in _rate_rows(scenario, runs)]
    return Table(
        "windows",
        "Counts of events of 116 bytes over 10 minutes of event time, exactly once; each count that changed is sent: "
        "those of a minute by half as many keys as records, those of 6 minutes that begin 10 s after each other, and "
        "sessions with gaps of 30 s. One thread a worker, 4 partitions, commit interval 100 ms, no caching where not "
        "said, a grace period of 10 s, windows kept for an hour. State: tables and write-ahead logs of RocksDB when "
        "stopped.",
        ["", "records/s", "ratio", "CPU s per million", "max RSS, MiB", "records", "state, MiB"],
        [[*row, _spread([run["state_mb"] for run in some], "{:,.0f}")] for row, some in found],
    )


def _rate_rows(scenario: Scenario, runs: Sequence[Run]) -> Iterator[tuple[list[str], list[Run]]]:
    """Return a row for each system, with its runs."""
    for system, some in _by_system(_of(runs, scenario.name)):
        has_ratio = system == KAFKA_STREAMS if scenario.beside else system in OWN_SYSTEMS
        ours = OURS if scenario.beside else system
        ratio = _ratio(ours, KAFKA_STREAMS, _compared(scenario, runs), itemgetter("records_per_s"))
        row = [
            f"{scenario.title}: {NAMES[system]}",
            _spread([run["records_per_s"] for run in some], "{:,.0f}"),
            f"{ratio:.2f}" if has_ratio and ratio is not None else "",
            _spread([run["cpu_s_per_million"] for run in some], "{:.1f}"),
            f"{max(run['max_rss_mb'] for run in some):,.0f}",
            f"{some[0]['records']:,}",
        ]
        yield row, some


def _latencies(runs: Sequence[Run]) -> Table:
    rows = []
    some = _of(runs, LATENCY)
    for rate in sorted({run["rate"] for run in some}):
        for system, same in _by_system([run for run in some if run["rate"] == rate]):
            cells = [_spread([run[name] for run in same], "{:.1f}") for name in SHARES]
            cells += [_spread([run[f"{of}_cores"] for run in same], "{:.2f}") for of in ("worker", "broker")]
            came = min(run["came"] for run in same)
            rows.append([f"{rate:,}/s: {NAMES[system]}", *cells, f"{came:.1%}"])
    return Table(
        "latency",
        "Milliseconds from the producer's send to a read-committed consumer, exactly once, distinct keys, commit "
        "interval 100 ms: median of the runs (least to most). CPU: cores in use.",
        ["", "p50", "p95", "p99", "p99.9", "max", "worker CPU", "broker CPU", "came in time"],
        rows,
    )


def _phases(runs: Sequence[Run]) -> Table:
    rows = []
    some = [run for run in _of(runs, LATENCY) if run["phases"]]
    for rate in sorted({run["rate"] for run in some}):
        same = [run["phases"] for run in some if run["rate"] == rate]
        for name, what in PHASES.items():
            shares = zip(*(run[name] for run in same), strict=True)
            rows.append([f"{rate:,}/s: {what}", *(_spread(share, "{:.1f}") for share in shares)])
    return Table(
        "phases",
        "Where the time goes in ours: milliseconds of each step of a record and of its commit, each from the end of "
        "the one before it.",
        ["", "p50", "p95", "p99", "p99.9", "max"],
        rows,
    )


def _sparse(runs: Sequence[Run]) -> Table:
    forms = {
        "p50_ms": "{:.1f}",
        "p99_ms": "{:.1f}",
        "broker_cores": "{:.2f}",
        "worker_cores": "{:.2f}",
        "max_rss_mb": "{:,.0f}",
        "connections": "{:.0f}",
        "started_s": "{:.1f}",
    }
    rows = []
    for sparse in _sparse_ones():
        for system, some in _by_system(_of(runs, sparse.name)):
            cells = [_spread([run[figure] for run in some], form) for figure, form in forms.items()]
            rows.append([f"{sparse.partitions:,} partitions, {sparse.rate:,}/s: {NAMES[system]}", *cells])
    return Table(
        "sparse",
        "Few records over many partitions, one worker, exactly once, distinct keys, commit interval 100 ms. p50 and "
        "p99: milliseconds from the producer's send to a read-committed consumer. CPU: cores in use; the broker's "
        "include what the measuring clients ask of it, the same for both. Connections: of the worker to the broker. "
        "Start: seconds until an output of every partition. Median of the runs (least to most).",
        ["", "p50", "p99", "broker CPU", "worker CPU", "max RSS, MiB", "connections", "start s"],
        rows,
    )


def _sparse_ones() -> Iterable[Sparse]:
    return itertools.chain.from_iterable(SPARSE_ONES.values())


def _restores(runs: Sequence[Run]) -> Table:
    rows = []
    for scenario, of in ((RESTORE, "{:,} keys"), (TAKEOVER, "1,000 partitions with {:,} keys, busy")):
        for keys in sorted({run["keys"] for run in _of(runs, scenario)}):
            for system, same in _by_system([run for run in _of(runs, scenario) if run["keys"] == keys]):
                for cold in (False, True):
                    takeovers = [run for run in same if run["cold"] == cold]
                    cells = [_spread([run[part] for run in takeovers], "{:.1f}") for part in ("first_s", "all_s")]
                    folder = "empty" if cold else "same"
                    rows.append([f"{of.format(keys)}, {folder} folder: {NAMES[system]}", *cells])
    return Table(
        "restore",
        "Seconds from the start of a worker to its outputs, after its predecessor was killed while idle (so that no "
        "transaction was open) or busy; exactly once, the same static member: median (least to most).",
        ["", "first output", "output of every partition"],
        rows,
    )


def _compared(scenario: Scenario, runs: Sequence[Run]) -> list[Run]:
    """Return a scenario's runs, with those of ours that they are compared with."""
    return [*_of(runs, scenario.name), *(run for run in _of(runs, scenario.beside) if run["system"] == OURS)]


def _of(runs: Iterable[Run], scenario: str) -> list[Run]:
    return [run for run in runs if run["scenario"] == scenario]


def _by_system(runs: Sequence[Run]) -> Iterable[tuple[str, list[Run]]]:
    for system in NAMES:
        some = [run for run in runs if run["system"] == system]
        if some:
            yield system, some


def _spread(values: Sequence[float], form: str) -> str:
    middle = form.format(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({form.format(min(values))} to {form.format(max(values))})"
