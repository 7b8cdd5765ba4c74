"""`python -m benchmarks.peers`: ours beside its peers on one broker. The last line is JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.faults import takeover
from benchmarks.peers import latency, rate
from benchmarks.peers.broker import delete_topics, load, make_topics, start_cluster
from benchmarks.peers.scenarios import (
    FAST_ONES,
    LATENCY,
    NAMES,
    RESTORE,
    SCENARIOS,
    SPARSE_ONES,
    TAKEOVER,
    TASKS,
    Scenario,
)
from benchmarks.peers.summary import ratios, tables
from benchmarks.peers.systems import (
    EXACTLY_ONCE,
    FAUST,
    FLINK,
    KAFKA_STREAMS,
    OURS,
    OURS_COMPILED,
    QUIX,
    SPARK,
    SYSTEMS,
    Job,
    prepare,
    versions,
)
from benchmarks.peers.tables import machine, write_readme
from dev.kafka import Cluster

RESULTS = Path(__file__).resolve().parents[1] / "results" / "peers.json"
LATENCY_RATES = {
    OURS: (100, 1_000, 10_000),
    OURS_COMPILED: (100, 1_000, 10_000),
    KAFKA_STREAMS: (100, 1_000, 10_000),
    QUIX: (100, 1_000),
    FAUST: (100, 1_000),
    SPARK: (100,),
    FLINK: (100,),
}
_COMMAND = ".venv/bin/python -m benchmarks.peers"
COMMIT_INTERVAL_MS = 100
_TIMEOUT_S = 900.0
_COLD = -1
_EVENTS_AGO_MS = 3_600_000
_KEYS_OF_TASKS = 100_000
_progress = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything."""

    only: tuple[str, ...]
    systems: tuple[str, ...]
    repeat: int
    records: int
    distinct: int
    quix_records: int
    faust_records: int
    spark_records: int
    flink_records: int
    restore_keys: tuple[int, ...]
    latency_s: float
    commit_s: float
    phases: bool

    def count(self, scenario: Scenario, system: str) -> int:
        """How many records a system gets: the slow ones fewer."""
        slow = {
            QUIX: self.quix_records,
            FAUST: self.faust_records,
            SPARK: self.spark_records,
            FLINK: self.flink_records,
        }
        if system in slow:
            return min(slow[system], self.records)
        return self.distinct if scenario.name == "distinct" else self.records

    def wants(self, name: str) -> bool:
        """Whether a scenario was chosen."""
        return not self.only or name in self.only


@click.command()
@click.option("--only", default="", help=f"Some of: {', '.join(NAMES)}; separated by commas.")
@click.option("--system", "systems", default=",".join(SYSTEMS), show_default=True, help="Who takes part.")
@click.option("--repeat", default=3, show_default=True, help="Rounds; in each, the systems take turns.")
@click.option("--records", default=2_000_000, show_default=True)
@click.option("--distinct", default=10_000_000, show_default=True, help="Records where no key comes twice.")
@click.option("--quix-records", default=100_000, show_default=True)
@click.option("--faust-records", default=60_000, show_default=True)
@click.option("--spark-records", default=60_000, show_default=True)
@click.option("--flink-records", default=60_000, show_default=True)
@click.option("--restore-keys", default="1000000", show_default=True, help="Sizes, separated by commas.")
@click.option("--latency-seconds", default=20.0, show_default=True, help="At each rate; the first third warms up.")
@click.option("--commit-interval-ms", default=COMMIT_INTERVAL_MS, show_default=True, help="Of every system.")
@click.option("--phases", is_flag=True, help="With latency: of a record's and a commit's steps in ours as well.")
@click.option("--quick", is_flag=True, help="Small counts and one round, to see that it works.")
@click.option("--write", is_flag=True, help="Put the tables of all stored results into benchmarks/README.md.")
@click.option("--keep", is_flag=True, help="Leave the folder with the workers' logs.")
def main(quick: bool, write: bool, keep: bool, **options: Any) -> None:
    """Measure all systems side by side."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    plan = _plan(options)
    if quick:
        plan = replace(plan, repeat=1, records=200_000, distinct=200_000, quix_records=50_000, faust_records=20_000)
        plan = replace(plan, spark_records=30_000, flink_records=20_000, restore_keys=(50_000,), latency_s=4.5)
    for system in plan.systems:
        prepare(system)
    taking_part = versions(plan.systems)
    click.echo(", ".join(f"{name} {version}" for name, version in taking_part.items()))
    folder = Path(tempfile.mkdtemp(prefix="peers-"))
    runs: list[dict[str, Any]] = []
    try:
        with start_cluster(folder) as cluster:
            asyncio.run(_Bench(cluster, folder, plan, runs).run())
    finally:
        # The tables say one commit interval for all.
        if runs and not quick and options["commit_interval_ms"] == COMMIT_INTERVAL_MS:
            _store(plan, taking_part, runs)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    for table in tables(runs):
        table.show()
    if write:
        for table in tables(json.loads(RESULTS.read_text(encoding="utf-8"))["runs"]):
            write_readme(table, _COMMAND)
    click.echo(json.dumps({"versions": taking_part, **ratios(runs)}))


def _plan(options: dict[str, Any]) -> Plan:
    only = tuple(name for name in options["only"].split(",") if name)
    systems = tuple(options["systems"].split(","))
    for name, known in [*((name, NAMES) for name in only), *((name, SYSTEMS) for name in systems)]:
        if name not in known:
            raise click.BadParameter(f"{name} is none of {', '.join(known)}")
    return Plan(
        only=only,
        systems=systems,
        repeat=options["repeat"],
        records=options["records"],
        distinct=options["distinct"],
        quix_records=options["quix_records"],
        faust_records=options["faust_records"],
        spark_records=options["spark_records"],
        flink_records=options["flink_records"],
        restore_keys=tuple(int(keys) for keys in options["restore_keys"].split(",")),
        latency_s=options["latency_seconds"],
        commit_s=options["commit_interval_ms"] / 1000,
        phases=options["phases"],
    )


def _store(plan: Plan, taking_part: Mapping[str, str], runs: Sequence[dict[str, Any]]) -> None:
    """Keep the runs; those of a scenario and system that weren't measured this time stay as they were."""
    RESULTS.parent.mkdir(exist_ok=True)
    measured = {(run["scenario"], run["system"]) for run in runs}
    held = json.loads(RESULTS.read_text(encoding="utf-8"))["runs"] if RESULTS.exists() else []
    merged = [*(run for run in held if (run["scenario"], run["system"]) not in measured), *runs]
    lines = ",\n".join(json.dumps(run) for run in merged)
    head = json.dumps(
        {"machine": machine(), "versions": taking_part, "last_plan": asdict(plan), "ratios": ratios(merged)}
    )
    RESULTS.write_text(f'{head[:-1]}, "runs": [\n{lines}\n]}}\n', encoding="utf-8")


class _Bench:
    """Everything that is chosen, one measurement after the other, on one broker."""

    def __init__(self, cluster: Cluster, folder: Path, plan: Plan, runs: list[dict[str, Any]]) -> None:
        self._cluster = cluster
        self._brokers = cluster.bootstrap
        self._folder = folder
        self._plan = plan
        self._runs = runs
        self._loaded: set[str] = set()
        self._number = 0
        # Not long ago, so that retention leaves the records where they are.
        self._event_time_ms = int(time.time()) // 60 * 60_000 - _EVENTS_AGO_MS

    async def run(self) -> None:
        """Fill the list of runs."""
        for scenario in SCENARIOS:
            if self._plan.wants(scenario.name):
                await self._rates(scenario)
        if self._plan.wants(LATENCY):
            await self._latencies(LATENCY, LATENCY_RATES)
        for chosen, scenarios in SPARSE_ONES.items():
            for sparse in scenarios if self._plan.wants(chosen) else ():
                rates = dict.fromkeys(FAST_ONES, (sparse.rate,))
                await self._latencies(sparse.name, rates, partitions=sparse.partitions)
        if self._plan.wants(TASKS):
            (tasks,) = SPARSE_ONES[TASKS]
            await self._takeovers(TAKEOVER, _KEYS_OF_TASKS, partitions=tasks.partitions, busy=True)
        for keys in self._plan.restore_keys if self._plan.wants(RESTORE) else ():
            await self._takeovers(RESTORE, keys)

    async def _rates(self, scenario: Scenario) -> None:
        systems = [system for system in scenario.systems if system in self._plan.systems]
        for system in systems:
            await self._load(scenario, self._plan.count(scenario, system))
        for round_, system in self._turns(systems):
            count = self._plan.count(scenario, system)
            job = self._job(system, scenario.work, scenario.guarantee, scenario.topic(count))
            job = replace(job, values=scenario.values, partitions=scenario.partitions)
            if scenario.other is not None:
                job = replace(job, other=f"{job.source}-other")
            with _no_figure(scenario.name, job, round_):
                found = await rate.measure(
                    job,
                    self._folder / job.app,
                    scenario.workers,
                    timeout_s=_TIMEOUT_S,
                    weighs_state=scenario.span_ms > 0,
                )
                self._note(scenario.name, system, round_, {"records": count, **asdict(found)})
            await delete_topics(self._brokers, job.target, job.changelog)

    async def _load(self, scenario: Scenario, count: int) -> None:
        topic = scenario.topic(count)
        if topic not in self._loaded:
            self._loaded.add(topic)
            await make_topics(self._brokers, topic, partitions=scenario.partitions)
            at_ms = partial(scenario.at_ms, self._event_time_ms, count) if scenario.span_ms else None
            records = scenario.records(count)
            await load(self._brokers, topic, scenario.partitions, records, timestamp_ms=at_ms)
            if scenario.other is not None:
                at_ms = partial(scenario.at_ms, self._event_time_ms + scenario.other_after_ms, count)
                others = scenario.other(count)
                await make_topics(self._brokers, f"{topic}-other", partitions=scenario.partitions)
                await load(self._brokers, f"{topic}-other", scenario.partitions, others, timestamp_ms=at_ms)

    def _turns(self, systems: Sequence[str]) -> Iterator[tuple[int, str]]:
        """Begin each round with another system, so that none always has the broker fresh from the last one."""
        for round_ in range(self._plan.repeat):
            first = round_ % max(1, len(systems))
            for system in [*systems[first:], *systems[:first]]:
                yield round_, system

    async def _latencies(self, name: str, rates: Mapping[str, Sequence[int]], *, partitions: int = 4) -> None:
        broker_pid = self._cluster.pid(self._cluster.broker_ids[0])
        if broker_pid is None:
            raise RuntimeError("the broker ended")
        systems = [system for system in rates if system in self._plan.systems]
        # A new broker compiles its code, which takes more CPU than its work: a first round isn't counted.
        cold = [] if self._runs else [(_COLD, system) for system in systems]
        for round_, system in [*cold, *self._turns(systems)]:
            job = self._own_input(system, partitions)
            if self._plan.phases and system == OURS:
                job = replace(job, phases=str(self._folder / f"{job.app}.phases"))
            with _no_figure(name, job, round_):
                for found in await latency.measure(
                    job, self._folder / job.app, rates[system], seconds=self._plan.latency_s, broker_pid=broker_pid
                ):
                    if round_ != _COLD:
                        self._note(name, system, round_, asdict(found))
            await delete_topics(self._brokers, job.source, job.target, job.changelog)

    async def _takeovers(self, name: str, keys: int, *, partitions: int = 4, busy: bool = False) -> None:
        for system in FAST_ONES:
            if system in self._plan.systems:
                job = self._own_input(system, partitions)
                job = replace(job, instance=f"{job.app}-1")
                takeovers = await takeover.run(job, self._folder / job.app, keys, self._plan.repeat, busy=busy)
                for number, found in enumerate(takeovers):
                    self._note(name, system, number // 2, {"keys": keys, **asdict(found)})
                await delete_topics(self._brokers, job.source, job.target, job.changelog)

    def _own_input(self, system: str, partitions: int) -> Job:
        job = self._job(system, "dedupe", EXACTLY_ONCE, "")
        return replace(job, source=f"{job.app}-in", partitions=partitions)

    def _job(self, system: str, work: str, guarantee: str, source: str) -> Job:
        self._number += 1
        app = f"{system}-{self._number}".replace("_", "-")
        return Job(system, work, guarantee, self._brokers, app, source, f"{app}-out", commit_s=self._plan.commit_s)

    def _note(self, scenario: str, system: str, round_: int, figures: dict[str, Any]) -> None:
        rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()}
        self._runs.append({"scenario": scenario, "system": system, "round": round_, **rounded})
        _progress.print(self._runs[-1])


@contextlib.contextmanager
def _no_figure(name: str, job: Job, round_: int) -> Iterator[None]:
    """Go on without the figure of a system that can't keep up or breaks: it must not cost those of all others."""
    try:
        yield
    except (RuntimeError, TimeoutError) as error:
        _progress.print(f"{name}, {job.system}, round {round_}: no figure: {error!r}", markup=False)


if __name__ == "__main__":
    main()
