"""`python -m benchmarks.peers`: ours beside its peers on one broker. The last line is JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.faults import takeover
from benchmarks.peers import latency, rate
from benchmarks.peers.broker import delete_topics, load, make_topics, start_cluster
from benchmarks.peers.scenarios import FAST_ONES, LATENCY, NAMES, RESTORE, SCENARIOS, Scenario
from benchmarks.peers.summary import ratios, tables
from benchmarks.peers.systems import EXACTLY_ONCE, FAUST, KAFKA_STREAMS, OURS, QUIX, SYSTEMS, Job, prepare
from benchmarks.peers.tables import machine, write_readme

RESULTS = Path(__file__).resolve().parents[1] / "results" / "peers.json"
LATENCY_RATES = {
    OURS: (100, 1_000, 10_000),
    KAFKA_STREAMS: (100, 1_000, 10_000),
    QUIX: (100, 1_000),
    FAUST: (100, 1_000),
}
_COMMAND = ".venv/bin/python -m benchmarks.peers"
_TIMEOUT_S = 900.0
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
    restore_keys: tuple[int, ...]
    latency_s: float
    commit_s: float

    def count(self, scenario: Scenario, system: str) -> int:
        """How many records a system gets: the slow ones fewer."""
        if system == QUIX:
            return min(self.quix_records, self.records)
        if system == FAUST:
            return min(self.faust_records, self.records)
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
@click.option("--restore-keys", default="1000000", show_default=True, help="Sizes, separated by commas.")
@click.option("--latency-seconds", default=20.0, show_default=True, help="At each rate; the first third warms up.")
@click.option("--commit-interval-ms", default=100, show_default=True, help="Of every system.")
@click.option("--quick", is_flag=True, help="Small counts and one round, to see that it works.")
@click.option("--write", is_flag=True, help="Put the tables of all stored results into benchmarks/README.md.")
@click.option("--keep", is_flag=True, help="Leave the folder with the workers' logs.")
def main(quick: bool, write: bool, keep: bool, **options: Any) -> None:
    """Measure all systems side by side."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    plan = _plan(options)
    if quick:
        plan = replace(plan, repeat=1, records=200_000, distinct=200_000, quix_records=50_000, faust_records=20_000)
        plan = replace(plan, restore_keys=(50_000,), latency_s=4.5)
    for system in plan.systems:
        prepare(system)
    folder = Path(tempfile.mkdtemp(prefix="peers-"))
    runs: list[dict[str, Any]] = []
    try:
        with start_cluster(folder) as cluster:
            asyncio.run(_Bench(cluster.bootstrap, folder, plan, runs).run())
    finally:
        if runs and not quick:
            _store(plan, runs)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    for table in tables(runs):
        table.show()
    if write:
        for table in tables(json.loads(RESULTS.read_text(encoding="utf-8"))["runs"]):
            write_readme(table, _COMMAND)
    click.echo(json.dumps(ratios(runs)))


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
        restore_keys=tuple(int(keys) for keys in options["restore_keys"].split(",")),
        latency_s=options["latency_seconds"],
        commit_s=options["commit_interval_ms"] / 1000,
    )


def _store(plan: Plan, runs: Sequence[dict[str, Any]]) -> None:
    """Keep the runs; those of scenarios that weren't measured this time stay as they were."""
    RESULTS.parent.mkdir(exist_ok=True)
    measured = {run["scenario"] for run in runs}
    held = json.loads(RESULTS.read_text(encoding="utf-8"))["runs"] if RESULTS.exists() else []
    merged = [*(run for run in held if run["scenario"] not in measured), *runs]
    lines = ",\n".join(json.dumps(run) for run in merged)
    head = json.dumps({"machine": machine(), "last_plan": asdict(plan), "ratios": ratios(merged)})
    RESULTS.write_text(f'{head[:-1]}, "runs": [\n{lines}\n]}}\n', encoding="utf-8")


class _Bench:
    """Everything that is chosen, one measurement after the other, on one broker."""

    def __init__(self, brokers: str, folder: Path, plan: Plan, runs: list[dict[str, Any]]) -> None:
        self._brokers = brokers
        self._folder = folder
        self._plan = plan
        self._runs = runs
        self._loaded: set[str] = set()
        self._number = 0

    async def run(self) -> None:
        """Fill the list of runs."""
        for scenario in SCENARIOS:
            if self._plan.wants(scenario.name):
                await self._rates(scenario)
        if self._plan.wants(LATENCY):
            await self._latencies()
        if self._plan.wants(RESTORE):
            await self._restores()

    async def _rates(self, scenario: Scenario) -> None:
        systems = [system for system in scenario.systems if system in self._plan.systems]
        for system in systems:
            await self._load(scenario, self._plan.count(scenario, system))
        for round_ in range(self._plan.repeat):
            # Each round begins with another system, so that none always has the broker fresh from the last one.
            for system in systems[round_ % len(systems) :] + systems[: round_ % len(systems)]:
                count = self._plan.count(scenario, system)
                job = self._job(system, scenario.work, scenario.guarantee, scenario.topic(count))
                job = replace(job, values=scenario.values, partitions=scenario.partitions)
                try:
                    found = await rate.measure(job, self._folder / job.app, scenario.workers, timeout_s=_TIMEOUT_S)
                    self._note(scenario.name, system, round_, {"records": count, **asdict(found)})
                except (RuntimeError, TimeoutError) as error:
                    # One that can't keep up, or breaks, must not cost the figures of all others.
                    _progress.print(f"{scenario.name}, {system}, round {round_}: no figure: {error!r}", markup=False)
                await delete_topics(self._brokers, job.target, job.changelog)

    async def _load(self, scenario: Scenario, count: int) -> None:
        topic = scenario.topic(count)
        if topic not in self._loaded:
            self._loaded.add(topic)
            await make_topics(self._brokers, topic, partitions=scenario.partitions)
            await load(self._brokers, topic, scenario.partitions, scenario.records(count))

    async def _latencies(self) -> None:
        for round_ in range(self._plan.repeat):
            for system, rates in LATENCY_RATES.items():
                if system not in self._plan.systems:
                    continue
                job = self._job(system, "dedupe", EXACTLY_ONCE, "")
                job = replace(job, source=f"{job.app}-in")
                for found in await latency.measure(job, self._folder / job.app, rates, seconds=self._plan.latency_s):
                    self._note(LATENCY, system, round_, asdict(found))

    async def _restores(self) -> None:
        for keys in self._plan.restore_keys:
            for system in FAST_ONES:
                if system not in self._plan.systems:
                    continue
                job = self._job(system, "dedupe", EXACTLY_ONCE, "")
                job = replace(job, source=f"{job.app}-in", instance=f"{job.app}-1")
                takeovers = await takeover.run(job, self._folder / job.app, keys, self._plan.repeat, busy=False)
                for number, found in enumerate(takeovers):
                    self._note(RESTORE, system, number // 2, {"keys": keys, **asdict(found)})
                await delete_topics(self._brokers, job.source, job.target, job.changelog)

    def _job(self, system: str, work: str, guarantee: str, source: str) -> Job:
        self._number += 1
        app = f"{system}-{self._number}".replace("_", "-")
        return Job(system, work, guarantee, self._brokers, app, source, f"{app}-out", commit_s=self._plan.commit_s)

    def _note(self, scenario: str, system: str, round_: int, figures: dict[str, Any]) -> None:
        rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()}
        self._runs.append({"scenario": scenario, "system": system, "round": round_, **rounded})
        _progress.print(self._runs[-1])


main()
