"""Reports and profiles made by hand, for pages: usual ones, none, many partitions, nasty text."""

from __future__ import annotations

import random

from spark_replay.comparison.invariants import CHECKS, Finding
from spark_replay.comparison.report import KINDS, Example, Report
from spark_replay.report.html import Made, render_report
from spark_replay.report.profile import Age, Epoch, Key, Partition, Profile, Slot

NOW_MS = 1_760_000_000_000
DAY_MS = 86_400_000
NASTY = "<script>alert('$x^2$')</script>&amp;{{ 7*7 }}\"><img src=http://127.0.0.1:1/x onerror=alert(1)>"
MADE = Made(
    command="python -m spark_replay validate --brokers 127.0.0.1:9092 --changelog shop-spent-changelog",
    source="topic shop-spent-changelog of 127.0.0.1:9092",
    at_ms=NOW_MS,
    version="0.1.0",
)
_AGES_MS = tuple(minutes * 60_000 for minutes in (1, 10, 60, 360, 1440, 10_080, 43_200, 129_600, 525_600))


def make_profile(partitions: int, *, seed: int = 3, key: str = "customer-") -> Profile:
    """A log of that many partitions with skewed keys and some takeovers; of none it is empty."""
    chance = random.Random(seed)
    parts = []
    for number in range(partitions):
        keys = int(chance.paretovariate(2.5) * 1000)
        records = keys * 3 + chance.randrange(500)
        parts.append(
            Partition(
                partition=number,
                start=chance.randrange(100),
                end=records + 200,
                records=records,
                tombstones=records // 7,
                log_bytes=records * 60,
                keys=keys,
                key_bytes=keys * 12,
                value_bytes=keys * chance.randrange(30, 90),
                expired=keys // 20,
                deleted=keys // 9,
            )
        )
    return Profile(
        changelog="shop-spent-changelog",
        source=MADE.source,
        at_ms=NOW_MS,
        partitions=parts,
        most_written=_keys(chance, key, partitions),
        largest=_keys(chance, key, partitions),
        ages=_ages(chance, sum(part.keys for part in parts)),
        slot_ms=DAY_MS // 12,
        slots=[
            Slot(
                start_ms=NOW_MS - (84 - at) * DAY_MS // 12, records=records, tombstones=records // 8, log_bytes=records
            )
            for at in range(84 if partitions else 0)
            for records in [int(4000 + 3000 * chance.random() + (9000 if at == 50 else 0))]
        ],
        epochs=[epoch for number in range(partitions) for epoch in _epochs(chance, number)],
        owners=partitions * 4,
        seconds=12.5,
    )


def _ages(chance: random.Random, keys: int) -> list[Age]:
    cuts = sorted(chance.randrange(keys + 1) for _ in _AGES_MS)
    counts = [until - since for since, until in zip([0, *cuts], [*cuts, keys], strict=True)]
    return [
        Age(below_ms=below, keys=count, live_bytes=count * 70)
        for below, count in zip((*_AGES_MS, None), counts, strict=True)
    ]


def _keys(chance: random.Random, key: str, partitions: int) -> list[Key]:
    return [
        Key(partition=chance.randrange(partitions), key=f"{key}{rank}", records=9000 // rank, log_bytes=800_000 // rank)
        for rank in range(1, 21 if partitions else 1)
    ]


def _epochs(chance: random.Random, number: int) -> list[Epoch]:
    found, since, offset = [], NOW_MS - 7 * DAY_MS, 0
    for epoch in range(1, 5):
        until = since + int(chance.uniform(0.5, 2) * DAY_MS)
        found.append(
            Epoch(
                partition=number,
                epoch=epoch,
                records=900,
                first_offset=offset,
                last_offset=offset + 999,
                first_ms=since,
                last_ms=until,
                overlaps=number == 1 and epoch == 3,
            )
        )
        since, offset = until + 60_000, offset + 1000
    return found


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
        changelog="shop-spent-changelog",
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
    nasty = make_report(3, causes={"a_new_cause": 2, NASTY: 1}, key=NASTY)
    return {
        "damaged": render_report(make_report(12, causes=causes, findings=True), made=MADE, profile=make_profile(12)),
        "many": render_report(make_report(512, causes=causes), made=MADE, profile=make_profile(512)),
        "empty": render_report(make_report(0), made=MADE, profile=make_profile(0)),
        "nasty": render_report(nasty, made=MADE, profile=make_profile(3, key=NASTY)),
    }
