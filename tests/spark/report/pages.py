"""Reports made by hand, for pages: usual ones, none, many partitions, nasty text."""

from __future__ import annotations

from dataclasses import replace

from spark_replay.comparison.invariants import CHECKS, Finding
from spark_replay.comparison.report import KINDS, Example, Report
from spark_replay.report.html import Made, render_report

NOW_MS = 1_760_000_000_000
NASTY = "<script>alert('$x^2$')</script>&amp;{{ 7*7 }}\"><img src=http://127.0.0.1:1/x onerror=alert(1)>"
MADE = Made(
    command="python -m spark_replay validate --brokers 127.0.0.1:9092 --changelog shop--spent-changelog",
    source="topic shop--spent-changelog of 127.0.0.1:9092",
    at_ms=NOW_MS,
    version="0.1.0",
)


def make_report(
    partitions: int, *, causes: dict[str, int] | None = None, key: str = "customer-17", findings: bool = False
) -> Report:
    """A report with these mismatches, all of kind `different`, spread over the first three partitions."""
    causes = causes or {}
    wrong = sum(causes.values())
    by_partition = {number: dict.fromkeys(KINDS, 0) | {"equal": 1000 + number} for number in range(partitions)}
    for number in range(wrong):
        by_partition[number % 3]["different"] += 1
    counts = {kind: sum(row[kind] for row in by_partition.values()) for kind in KINDS}
    log = {
        "value": f'{{"spent": 12, "note": "{key}"}}',
        "source_offset": 41,
        "epoch": 6,
        "expires_at_ms": 0,
        "offset": 99,
    }
    held = {**log, "epoch": 5}
    del held["offset"]
    return Report(
        changelog="shop--spent-changelog",
        app="shop",
        store="spent",
        counts=counts,
        by_partition=by_partition,
        keys=counts["equal"] + wrong,
        records=4 * counts["equal"],
        seconds=31.25,
        positions={number: 5000 + number for number in range(partitions)},
        ends=[6000 + number for number in range(partitions)],
        against="exports in /var/backup/exports",
        causes=causes,
        causes_by_partition={0: causes} if causes else {},
        findings=_findings(wrong) if findings else (),
        stale_copies=["partition 1 of worker worker-3 (epoch 7, position 12)"] if wrong else (),
        partitions_without_export=[2] if wrong else (),
        examples={"different": [_example(cause, key, log, held) for cause in causes]} if causes else {},
    )


def _example(cause: str, key: str, log: dict[str, object], held: dict[str, object]) -> Example:
    return Example(partition=0, key=key, cause=cause, seen="epoch differs", log=log, export=held)


def _findings(count: int) -> tuple[Finding, ...]:
    examples = ("partition 1: epoch 3 at offset 77 behind epoch 4",) if count else ()
    found = {check: count if check == "epochs" else 0 for check in CHECKS}
    return tuple(
        Finding(check=check, means=CHECKS[check], count=number, examples=examples if number else ())
        for check, number in found.items()
    )


def pages() -> dict[str, str]:
    """The pages that are worth a look, by name."""
    causes = {"record_without_metadata": 1, "stale_owner": 4, "never_committed": 13}
    nasty = make_report(3, causes={"unknown": 2}, key=NASTY)
    unanswered = {
        number: f"/var/backup/exports/worker-1/partition-0000{number}.parquet can't be read" for number in (1, 2)
    }
    log = replace(make_report(3), against="", counts=dict.fromkeys(KINDS, 0), by_partition={}, positions={}, keys=0)
    return {
        "partly": render_report(replace(make_report(3), unanswered=unanswered), made=MADE),
        "log": render_report(replace(log, findings=_findings(0)), made=MADE),
        "damaged": render_report(make_report(12, causes=causes, findings=True), made=MADE),
        "many": render_report(make_report(512, causes=causes), made=MADE),
        "empty": render_report(make_report(0), made=MADE),
        "nasty": render_report(nasty, made=MADE),
    }
