"""The two tables of `benchmarks.faults`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.systems import FAUST, KAFKA_STREAMS, OURS
from benchmarks.peers.tables import Table

NAMES = {OURS: "ours", KAFKA_STREAMS: "Kafka Streams 4.4", FAUST: "faust-streaming 0.15.3"}
GUARANTEES = {"exactly_once": "exactly once", "at_least_once": "at least once"}

_COLUMNS = (
    "system",
    "expected",
    "counted",
    "lost",
    "doubled",
    "wrong counts",
    "state",
    "wrong keys",
    "kills",
    "to next output",
    "done in",
)


def increments_table(runs: Sequence[dict[str, Any]]) -> Table:
    """Make the table of lost and doubled increments."""
    return Table(
        "increments",
        "Increments with the only worker killed (`kill -9`) at 1/12, 5/12 and 9/12 of the outputs and started again "
        "at once on its folder; seen by a read-committed reader. Lost: increments that no output tells of. Doubled: "
        "outputs that tell of one again. Wrong counts: increments told with another running count than theirs. State: "
        "the sum of the folded changelog; wrong keys: those with another count than was sent. To next output: seconds "
        "from a kill, the slowest of the three. All systems: 1,000 keys, 4 partitions, one thread, commit interval "
        "100 ms, static membership, session timeout 10 s.",
        _COLUMNS,
        [_increments_row(run) for run in runs],
    )


def flushed_table(runs: Sequence[dict[str, Any]], kills: int) -> Table:
    """Make the same table of the run with large keys."""
    return Table(
        "flushed",
        f"The same with keys of 1,000 bytes, each incremented twice, a commit interval of 1 s, and {kills} kills 0.7 s "
        "after an output was seen: RocksDB has written a part of the transaction that the kill aborts to disk.",
        _COLUMNS,
        [_increments_row(run) for run in runs],
    )


def _increments_row(run: dict[str, Any]) -> list[str]:
    verdict = run["verdict"]
    return [
        f"{NAMES[run['system']]}, {GUARANTEES[run['guarantee']]}",
        f"{verdict['expected']:,}",
        f"{verdict['counted']:,}",
        f"{verdict['lost']:,}",
        f"{verdict['doubled']:,}",
        f"{verdict['wrong_counts']:,}",
        "not to be read" if verdict["state"] is None else f"{verdict['state']:,}",
        "" if verdict["wrong_keys"] is None else f"{verdict['wrong_keys']:,}",
        str(run["kills"]),
        _seconds(run["slowest_s"], "never came"),
        _seconds(run["finished_s"], "never finished") + _ended(run["ended_itself"]),
    ]


def takeover_table(takeovers: Sequence[dict[str, Any]], keys: int) -> Table:
    """Make the table of takeover times: medians, and the least and most."""
    rows = []
    for system in dict.fromkeys(run["system"] for run in takeovers):
        for cold in (False, True):
            runs = [run for run in takeovers if run["system"] == system and run["cold"] == cold]
            if runs:
                cells = [_spread([run[part] for run in runs]) for part in ("first_s", "all_s", "kill_to_first_s")]
                rows.append([f"{NAMES[system]}, {'empty folder' if cold else 'same folder'}", *cells])
    return Table(
        "takeover",
        f"A busy worker with {keys:,} keys (116 bytes each, 4 partitions) killed by `kill -9`, exactly once. The "
        "process that follows has the same static member id, so that nobody waits for a session to end. Seconds until "
        "a read-committed reader has its outputs: median (least to most).",
        ["system", "start to first output", "start to output of every partition", "kill to first output"],
        rows,
    )


def _seconds(value: float | None, otherwise: str) -> str:
    return otherwise if value is None else f"{value:.1f} s"


def _ended(times: int) -> str:
    return f", ended by itself {times} times" if times else ""


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"
