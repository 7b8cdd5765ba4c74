"""Locks of ours, of ZooKeeper and of etcd: acquire+release per second, and how long an acquire takes.

All servers are up at the same time and take turns: in each round each scenario is measured on each system before the
next. The clients' layout is the same: `--processes` of them, each with its part of the clients. The last line is JSON.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from actors.local_kafka.errors import LocalKafkaError
from benchmarks.locks.plan import SCENARIOS, Job, Result, Scenario, Took
from benchmarks.locks.servers import SYSTEMS, Running, System, missing, running
from benchmarks.peers.tables import Table, write_readme
from dev import REPOSITORY

START_S = 0.1
"""Between the order to begin and the beginning, so that all processes begin at the same time."""
_COMMAND = ".venv/bin/python -m benchmarks.locks"
_progress = Console(stderr=True)

Runs = dict[tuple[str, str], list[Result]]
"""The results of all rounds, by scenario and system."""


@click.command()
@click.option("--seconds", default=2.0, show_default=True, help="Measured of each scenario, system and round.")
@click.option("--repeat", default=3, show_default=True, help="Rounds; the figures are medians.")
@click.option("--processes", default=2, show_default=True, help="That the clients are in.")
@click.option("--systems", default=",".join(one.name for one in SYSTEMS), show_default=True)
@click.option("--scenarios", default=",".join(one.name for one in SCENARIOS), show_default=True)
@click.option("--brokers", default=None, help="A cluster for ours, instead of one of its own.")
@click.option("--profile", type=click.Path(file_okay=False), default=None, help="Keep logs and data in this folder.")
@click.option("--write", is_flag=True, help="Put the table into benchmarks/README.md.")
def main(
    seconds: float,
    repeat: int,
    processes: int,
    systems: str,
    scenarios: str,
    brokers: str | None,
    profile: str | None,
    write: bool,
) -> None:
    """Measure locks."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    load = os.getloadavg()[0]
    folder = Path(tempfile.mkdtemp(prefix="locks-")) if profile is None else Path(profile)
    folder.mkdir(parents=True, exist_ok=True)
    plans = [one for one in SCENARIOS if one.name in scenarios.split(",")]
    try:
        sync_ms = _sync_ms(folder)
        with contextlib.ExitStack() as stack:
            there = [
                (one, clients)
                for one in SYSTEMS
                if one.name in systems.split(",")
                and (clients := _started(stack, one, folder, brokers, processes)) is not None
            ]
            runs = _measure(there, plans, seconds, repeat)
    finally:
        if profile is None:
            shutil.rmtree(folder, ignore_errors=True)
    table = _table([one for one, _ in there], plans, runs, sync_ms, seconds)
    table.show()
    if write:
        write_readme(table, _COMMAND)
    report = {"load_at_start": round(load, 2), "sync_ms": round(sync_ms, 3), "figures": _figures(runs)}
    click.echo(json.dumps(report))


class Clients:
    """The processes with the clients of one system."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]], server: Running) -> None:
        self._processes = processes
        self._server = server

    def measure(self, plan: Scenario, seconds: float) -> Result:
        """Measure a scenario once."""
        begun_s = self._server.cpu_s
        took = self._use(plan, seconds)
        turns = sum(len(one.counted_s) + len(one.others_s) for one in took)
        cpu_ms = (self._server.cpu_s - begun_s) / max(1, turns) * 1000
        return Result.of([acquire_s for one in took for acquire_s in one.counted_s], seconds, cpu_ms)

    def prepare(self, plan: Scenario) -> None:
        """Take and release each lock once."""
        self._use(plan, 0.0)

    def _use(self, plan: Scenario, seconds: float) -> list[Took]:
        begin_s, count = time.monotonic() + START_S, len(self._processes)
        used = self._processes[: plan.clients]
        for number, process in enumerate(used):
            clients = list(range(number, plan.clients, count))
            job = Job(scenario=plan.name, clients=clients, begin_s=begin_s, seconds=seconds)
            _tell(process, json.dumps(asdict(job)))
        return [Took(*json.loads(_hear(process))) for process in used]


@contextlib.contextmanager
def _clients(system: System, server: Running, count: int, folder: Path) -> Iterator[Clients]:
    command = [sys.executable, "-m", "benchmarks.locks.client", system.client, server.address]
    with contextlib.ExitStack() as stack:
        processes = []
        for number in range(count):
            log = stack.enter_context((folder / f"client-{system.name}-{number}.log").open("wb"))
            process = subprocess.Popen(
                command, cwd=REPOSITORY, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
            stack.callback(_end, process)
            processes.append(process)
        for process in processes:
            _hear(process)
        yield Clients(processes, server)


def _tell(process: subprocess.Popen[str], line: str) -> None:
    if process.stdin is None:
        raise AssertionError("it was started with a pipe")
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def _hear(process: subprocess.Popen[str]) -> str:
    if process.stdout is None:
        raise AssertionError("it was started with a pipe")
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended: see its log with --profile FOLDER")
    return line


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def _started(
    stack: contextlib.ExitStack, system: System, folder: Path, brokers: str | None, processes: int
) -> Clients | None:
    """Start a system and its clients; say so and give None if it can't be had here."""
    lacks = missing(system)
    try:
        if lacks is None:
            server = stack.enter_context(running(system, folder, brokers))
            return stack.enter_context(_clients(system, server, processes, folder))
    except LocalKafkaError as error:
        lacks = str(error)
    _progress.print(f"{system.title} is left out: {lacks}", markup=False)
    return None


def _measure(systems: Sequence[tuple[System, Clients]], plans: Sequence[Scenario], seconds: float, repeat: int) -> Runs:
    runs: Runs = {}
    for plan in {plan.locks: plan for plan in plans}.values():
        for _, clients in systems:
            clients.prepare(plan)
    for number in range(repeat):
        for plan in plans:
            for system, clients in systems:
                result = clients.measure(plan, seconds)
                runs.setdefault((plan.name, system.name), []).append(result)
                said = f"{result.pairs_per_s:,.0f}/s, {result.p50_ms:.2f} and {result.p99_ms:.2f} ms"
                _progress.print(f"round {number + 1}, {plan.title}, {system.title}: {said}", highlight=False)
    return runs


def _sync_ms(folder: Path) -> float:
    """Return what one write to disk takes here: where that is next to nothing, syncing costs nobody anything."""
    took = []
    with (folder / "sync").open("wb", buffering=0) as file:
        for _ in range(200):
            file.write(b"x" * 200)
            begin_s = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - begin_s)
    return statistics.median(took) * 1000


def _table(systems: Sequence[System], plans: Sequence[Scenario], runs: Runs, sync_ms: float, seconds: float) -> Table:
    title = (
        "Locks: acquire+release per second of all clients, and how long an acquire took, with the time that others "
        f"held it: medians of rounds of {seconds:g} s (least to most). One server of each system, leases of 30 s, the "
        "clients in two processes. Synced: each write is on disk before it is answered, which takes "
        f"{sync_ms:.2f} ms here. CPU: of the servers, for one acquire+release."
    )
    rows = []
    for plan in plans:
        for system in systems:
            found = runs[plan.name, system.name]
            rates, middle = [one.pairs_per_s for one in found], Result.median(found)
            rows.append(
                (
                    f"{plan.title}: {system.title}",
                    "yes" if system.is_synced else "no",
                    f"{middle.pairs_per_s:,.0f} ({min(rates):,.0f} to {max(rates):,.0f})",
                    f"{middle.p50_ms:.2f}",
                    f"{middle.p99_ms:.2f}",
                    f"{middle.cpu_ms:.2f}",
                )
            )
    return Table("locks", title, ("", "synced", "acquire+release/s", "p50, ms", "p99, ms", "CPU, ms"), rows)


def _figures(runs: Runs) -> dict[str, dict[str, dict[str, float]]]:
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for (plan, system), found in runs.items():
        middle = asdict(Result.median(found))
        figures.setdefault(plan, {})[system] = {name: round(value, 2) for name, value in middle.items()}
    return figures


if __name__ == "__main__":
    main()
