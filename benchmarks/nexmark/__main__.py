"""Nexmark's queries, ours beside Kafka Streams: records/s and CPU a record. The last line is JSON.

    python -m benchmarks.nexmark

Each query's records lie on the broker before a worker starts. When all are handled, last events let everything close
that is open; the rows that are there then are compared with those of SQL over all events. The command fails if one is
wrong.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from benchmarks.nexmark.run import INPUTS, Backlog, QueryJob, Result, measure, span_s
from benchmarks.peers.broker import start_cluster
from benchmarks.peers.summary import NAMES
from benchmarks.peers.systems import KAFKA_STREAMS, OURS, prepare, versions
from benchmarks.peers.tables import Table, write_readme

FLINK_PER_CORE = {
    "q3": 152_120,
    "q4": 34_330,
    "q5": 22_140,
    "q7": 12_330,
    "q8": 146_140,
    "q11": 39_700,
    "q18": 53_700,
    "q20": 18_980,
}
"""Events per second and core of Flink 1.13, by the README of github.com/nexmark/nexmark."""
_COMMAND = ".venv/bin/python -m benchmarks.nexmark"
_SYSTEMS = (OURS, KAFKA_STREAMS)
_WARM_RECORDS, _QUICK_RECORDS, _MAX_RECORDS = 50_000, 50_000, 2_000_000
Results = dict[str, dict[str, Result]]


@click.command()
@click.option("--queries", default=",".join(INPUTS), show_default=True, help="Separated by commas.")
@click.option("--records", default=500_000, show_default=True, type=click.IntRange(1_000, _MAX_RECORDS))
@click.option("--system", "systems", default=",".join(_SYSTEMS), show_default=True, help="Who takes part.")
@click.option("--grace-s", type=float, help="Of windows and of the join of Q4; by default as long as the backlog.")
@click.option("--quick", is_flag=True, help=f"{_QUICK_RECORDS:,} records, to see that it works.")
@click.option("--write", is_flag=True, help="Put the table into benchmarks/README.md.")
def main(queries: str, records: int, systems: str, grace_s: float | None, quick: bool, write: bool) -> None:
    """Measure queries of Nexmark, ours beside Kafka Streams."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    os.environ.setdefault("KAFKA_VERSION", "4.4.0")
    for names, choices in ((queries, INPUTS), (systems, _SYSTEMS)):
        if unknown := [name for name in names.split(",") if name not in choices]:
            raise click.BadParameter(f"{', '.join(unknown)}: none of {', '.join(choices)}")
    taking_part = systems.split(",")
    for system in taking_part:
        prepare(system)
    _say(", ".join(f"{name} {version}" for name, version in versions(taking_part).items()))
    records = _QUICK_RECORDS if quick else records
    folder = Path(tempfile.mkdtemp(prefix="nexmark-"))
    results: Results = {system: {} for system in taking_part}
    try:
        with start_cluster(folder) as cluster:
            bench = _Bench(cluster.bootstrap, folder, span_s(records) if grace_s is None else grace_s)
            is_complete = asyncio.run(bench.run(queries.split(","), records, results, warm=not quick))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table = _table(results, records)
    table.show()
    if write:
        write_readme(table, _COMMAND)
    figures = {name: {query: asdict(run) for query, run in runs.items()} for name, runs in results.items()}
    click.echo(json.dumps(figures))
    if not is_complete:
        sys.exit(1)


class _Bench:
    def __init__(self, brokers: str, folder: Path, grace_s: float) -> None:
        self._brokers = brokers
        self._folder = folder
        self._grace_s = grace_s
        self._number = 0

    async def run(self, queries: list[str], records: int, results: Results, *, warm: bool) -> bool:
        """Fill the results; return whether all are there and right."""
        if warm:
            # A new broker compiles its code, which takes more CPU than its work.
            _say("a run that isn't counted …")
            await self._measure("q20", next(iter(results)), Backlog(_WARM_RECORDS, self._folder / "warm", bids=True))
        is_complete = True
        # A group with bids and one without, so that the events of one group only are in memory.
        for bids in (False, True):
            chosen = [query for query in queries if ("bids" in INPUTS[query]) == bids]
            if not chosen:
                continue
            _say(f"making {records:,} events …")
            backlog = Backlog(records, self._folder / f"events-{bids}", bids=bids)
            for place, query in enumerate(chosen):
                # In turns, so that none always has the broker fresh from the other one.
                for system in list(results)[:: -1 if place % 2 else 1]:
                    try:
                        result = results[system][query] = await self._measure(query, system, backlog)
                    except (RuntimeError, TimeoutError) as error:
                        _say(f"{query}, {system}: no figure: {error!r}")
                        is_complete = False
                        continue
                    is_complete &= not result.wrong
                    _say(f"{query}, {system}: {result}")
        return is_complete

    async def _measure(self, query: str, system: str, backlog: Backlog) -> Result:
        self._number += 1
        job = QueryJob.of(query, system, self._brokers, self._number, self._grace_s)
        return await measure(job, self._folder / job.app, backlog)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _table(results: Results, records: int) -> Table:
    columns = ["query"]
    for figure in ("records/s", "CPU µs a record", "results", "wrong"):
        columns += [f"{NAMES[system]}: {figure}" for system in results]
    columns += ["Flink, published: CPU µs an event"]
    rows = []
    for query in INPUTS:
        runs = [system_runs.get(query) for system_runs in results.values()]
        if any(runs):
            forms = ("{0.records_per_s:,}", "{0.cpu_us_per_record:.1f}", "{0.results:,}", "{0.wrong:,}")
            cells = ["" if run is None else form.format(run) for form in forms for run in runs]
            rows.append([query, *cells, f"{1e6 / FLINK_PER_CORE[query]:.1f}"])
    title = (
        f"Queries of Nexmark over a backlog of about {records:,} records on 4 partitions, exactly once, one thread a "
        "worker: records per second from the first commit until the last result is committed, and the worker's CPU "
        "for each. Results: the rows that there are in the end; wrong: those that SQL over all events hasn't, or that "
        "are missing."
    )
    return Table("nexmark", title, columns, rows)


if __name__ == "__main__":
    main()
