"""Windows and joins behind a backlog: records late, results wrong, seconds. The last line is JSON.

    python -m benchmarks.backlog

Each row's records lie on the broker, in the order of time in each partition, before a worker starts; in the live row
they are sent while it runs. When everything is handled, records of a later hour let all windows close. Results are
compared, each by its id, with an oracle that has all records at once. `…_killed` are runs in which the worker is killed
(`kill -9`) at 1/5 and 3/5 of the input, and started again at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from benchmarks.backlog.rows import EXAMPLE, LIVE, ROWS
from benchmarks.backlog.run import KAFKA_STREAMS_IDLE, SYSTEMS, Result, job, measure
from benchmarks.peers.broker import start_cluster
from benchmarks.peers.systems import KAFKA_STREAMS, OURS, prepare
from benchmarks.peers.tables import Table, write_readme

_COMMAND = ".venv/bin/python -m benchmarks.backlog"
_KILLED = "_killed"
_SYSTEM_TITLES = {OURS: "ours", KAFKA_STREAMS: "Kafka Streams", KAFKA_STREAMS_IDLE: "Kafka Streams, 5 s"}
Results = dict[str, dict[str, Result]]


@click.command()
@click.option("--records", default=40_000, show_default=True, help="Of a row, over all inputs.")
@click.option("--only", default="", help=f"Some of: {', '.join(ROWS)}; separated by commas.")
@click.option("--no-peers", is_flag=True, help="Ours only.")
@click.option("--write", is_flag=True, help="Put the table into benchmarks/README.md.")
def main(records: int, only: str, no_peers: bool, write: bool) -> None:
    """Measure rows of ours beside Kafka Streams."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    os.environ.setdefault("KAFKA_VERSION", "4.4.0")
    chosen = only.split(",") if only else list(ROWS)
    if unknown := [name for name in chosen if name not in ROWS]:
        raise click.BadParameter(f"{', '.join(unknown)}: none of {', '.join(ROWS)}")
    systems = (OURS,) if no_peers else SYSTEMS
    if not no_peers:
        prepare(KAFKA_STREAMS)
    results: Results = {system: {} for system in systems}
    # The example's topics have fixed names, so that its second run needs another broker.
    for killed in (False, True):
        folder = Path(tempfile.mkdtemp(prefix="backlog-"))
        try:
            with start_cluster(folder) as cluster:
                asyncio.run(_run(cluster.bootstrap, folder, chosen, records, killed, results))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    table = _table(results, records)
    table.show()
    if write:
        write_readme(table, _COMMAND)
    click.echo(
        json.dumps({name: {row: asdict(result) for row, result in rows.items()} for name, rows in results.items()})
    )


async def _run(brokers: str, folder: Path, chosen: Sequence[str], records: int, killed: bool, results: Results) -> None:
    for name in chosen:
        if name == LIVE and killed:
            continue
        for system in results:
            if name == EXAMPLE and system != OURS:
                continue
            app = f"{name}-{system}".replace("_", "-")
            row = name + _KILLED * killed
            try:
                result = await measure(job(name, system, brokers, app), folder / app, records, killed=killed)
            except TimeoutError as error:
                if system == OURS:
                    raise
                click.echo(f"{row}: not measured, {error}", err=True)
                continue
            results[system][row] = result
            click.echo(f"{row}, {system}: {result}", err=True)


def _table(results: Results, records: int) -> Table:
    names = [name + suffix for name in ROWS for suffix in ("", _KILLED) if name + suffix in results[OURS]]
    rows = []
    for name in names:
        title = ROWS[name.removesuffix(_KILLED)].title + (", killed twice" if name.endswith(_KILLED) else "")
        cells = []
        for rows_of_system in results.values():
            result = rows_of_system.get(name)
            cells += ["", "", ""] if result is None else [f"{result.late:,}", f"{result.wrong:,}", f"{result.seconds}"]
        rows.append([title, *cells])
    columns = ["what"]
    columns += [f"{_SYSTEM_TITLES[system]}: {figure}" for system in results for figure in ("late", "wrong", "s")]
    title = (
        f"Windows and joins behind a backlog of {records:,} records on 4 partitions, each input in the order of time: "
        "records counted as late, results that are not those of the oracle, and seconds from the worker's start until "
        "all is handled."
    )
    return Table("backlog", title, columns, rows)


if __name__ == "__main__":
    main()
