"""`python -m benchmarks.faults`: who loses, who doubles, and how long it takes. The last line is JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.faults import takeover
from benchmarks.faults.increments import Workload, run
from benchmarks.faults.report import flushed_table, increments_table, takeover_table
from benchmarks.peers.broker import start_cluster
from benchmarks.peers.systems import AT_LEAST_ONCE, EXACTLY_ONCE, FAUST, KAFKA_STREAMS, OURS, Job, prepare
from benchmarks.peers.tables import write_readme

INCREMENTS = (
    (OURS, EXACTLY_ONCE),
    (KAFKA_STREAMS, EXACTLY_ONCE),
    (FAUST, EXACTLY_ONCE),
    (FAUST, AT_LEAST_ONCE),
)
FLUSHED = ((OURS, EXACTLY_ONCE), (KAFKA_STREAMS, EXACTLY_ONCE))
FLUSHED_KILLS = 8
TAKEOVERS = (OURS, KAFKA_STREAMS)
PARTS = ("increments", "flushed", "takeover")
_COMMAND = ".venv/bin/python -m benchmarks.faults"
_progress = Console(stderr=True)


@click.command()
@click.option("--part", type=click.Choice(PARTS), multiple=True, help="Only this; all.")
@click.option("--system", type=click.Choice([OURS, KAFKA_STREAMS, FAUST]), multiple=True, help="Only this; all.")
@click.option("--inputs", default=60_000, show_default=True, help="Increments; the kills move with their number.")
@click.option("--flushed-inputs", default=400_000, show_default=True, help="Increments of large keys.")
@click.option("--bound", default=120.0, show_default=True, help="Seconds after which a run has never finished.")
@click.option("--keys", default=1_000_000, show_default=True, help="Keys in the state that is taken over.")
@click.option("--repeat", default=3, show_default=True, help="How often each takeover is measured.")
@click.option("--quick", is_flag=True, help="Small counts, to see that it works.")
@click.option("--write", is_flag=True, help="Put the tables into benchmarks/README.md.")
@click.option("--keep", is_flag=True, help="Leave the folder with the workers' logs.")
def main(
    part: tuple[str, ...],
    system: tuple[str, ...],
    inputs: int,
    flushed_inputs: int,
    bound: float,
    keys: int,
    repeat: int,
    quick: bool,
    write: bool,
    keep: bool,
) -> None:
    """Kill workers of each system and count."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    if quick:
        inputs, flushed_inputs, bound, keys, repeat = 12_000, 40_000, min(bound, 60.0), 50_000, 1
    systems = system or (OURS, KAFKA_STREAMS, FAUST)
    parts = part or PARTS
    for name in systems:
        prepare(name)
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    tables, report = [], {}
    try:
        with start_cluster(folder) as cluster:
            runs = _Runs(cluster.bootstrap, folder, systems)
            if "increments" in parts:
                report["increments"] = asyncio.run(runs.increments(inputs, bound))
                tables.append(increments_table(report["increments"]))
            if "flushed" in parts:
                report["flushed"] = asyncio.run(runs.flushed(flushed_inputs, bound * 3))
                tables.append(flushed_table(report["flushed"], FLUSHED_KILLS))
            if "takeover" in parts:
                report["takeover"] = asyncio.run(runs.takeovers(keys, repeat))
                tables.append(takeover_table(report["takeover"], keys))
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    for table in tables:
        table.show()
        if write:
            write_readme(table, _COMMAND)
    click.echo(json.dumps(report))


class _Runs:
    """Everything on one broker, with topics of its own for each run."""

    def __init__(self, brokers: str, folder: Path, systems: tuple[str, ...]) -> None:
        self._brokers = brokers
        self._folder = folder
        self._systems = systems

    async def increments(self, inputs: int, bound_s: float) -> list[dict[str, Any]]:
        """Small keys, and kills as soon as a commit was seen."""
        workload = Workload(inputs=inputs, kill_after=[inputs * share // 12 for share in (1, 5, 9)], bound_s=bound_s)
        return [await self._count("increments", who, workload, 0.1) for who in INCREMENTS if who[0] in self._systems]

    async def flushed(self, inputs: int, bound_s: float) -> list[dict[str, Any]]:
        """So much state that RocksDB writes it to disk in the middle of transactions that the kills abort."""
        kill_after = [inputs * (2 * number + 1) // (2 * FLUSHED_KILLS + 2) for number in range(FLUSHED_KILLS)]
        workload = Workload(
            inputs=inputs,
            keys=inputs // 2,
            key_bytes=1_000,
            kill_after=kill_after,
            kill_delay_s=0.7,
            bound_s=bound_s,
        )
        return [await self._count("flushed", who, workload, 1.0) for who in FLUSHED if who[0] in self._systems]

    async def takeovers(self, keys: int, repeat: int) -> list[dict[str, Any]]:
        """A killed worker with much state."""
        found = []
        for system in TAKEOVERS:
            if system in self._systems:
                job = self._job("takeover", system, EXACTLY_ONCE)
                job = replace(job, work="dedupe")
                for takeover_ in await takeover.run(job, self._folder / job.app, keys, repeat, busy=True):
                    found.append({"system": system, **asdict(takeover_)})
                    _progress.print(found[-1])
        return found

    async def _count(self, kind: str, who: tuple[str, str], workload: Workload, commit_s: float) -> dict[str, Any]:
        system, guarantee = who
        job = replace(self._job(kind, system, guarantee), commit_s=commit_s)
        found = {"system": system, "guarantee": guarantee, **asdict(await run(job, self._folder / job.app, workload))}
        _progress.print(found)
        return found

    def _job(self, kind: str, system: str, guarantee: str) -> Job:
        name = f"{kind}-{system}-{guarantee}".replace("_", "-")
        source, target = f"{name}-in", f"{name}-out"
        return Job(system, "counter", guarantee, self._brokers, name, source, target, instance=f"{name}-1")


main()
