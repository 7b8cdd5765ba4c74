"""Prints what a validation found as tables and lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from spark_replay.comparison.report import KINDS, Report
from spark_replay.printing import EXAMPLES, new_table, say, side_line
from stores._core.printable import counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def show(found: Report, console: Console) -> None:
    """Print a report as tables a person reads."""
    if found.against:
        console.print(_table(found, f"{found.changelog} against the {found.against}", KINDS, found.by_partition))
    if found.causes:
        console.print(_table(found, "causes", tuple(found.causes), found.causes_by_partition))
    for line in _lines(found):
        say(console, line)
    for finding in found.findings:
        verdict = "holds" if not finding.count else f"broken by {counted(finding.count, 'record')}"
        lines = [f"{finding.check}: {finding.means}: {verdict}"]
        lines += [f"    {text}" for text in (*finding.examples[:EXAMPLES], *finding.notes)]
        for line in lines:
            say(console, line)


def _table(found: Report, title: str, names: Sequence[str], counts: Mapping[int, Mapping[str, int]]) -> Table:
    table = new_table(title, "partition", "position", *names)
    numbers = {*counts, *found.positions} if names is KINDS else set(counts)
    for number in sorted(numbers):
        row = counts.get(number, {})
        position = str(found.positions.get(number, "not held"))
        table.add_row(str(number), position, *(f"{row.get(name, 0):,}" for name in names))
    table.add_section()
    total = sum((Counter(row) for row in counts.values()), Counter())
    table.add_row("all", "", *(f"{total[name]:,}" for name in names))
    return table


def _lines(found: Report) -> list[str]:
    lines = [
        f"partition {number} has keys in the log, and the compared state lacks the partition"
        for number in found.partitions_without_export
    ]
    lines += [f"not compared: partition {number}: {reason}" for number, reason in sorted(found.unanswered.items())]
    lines += [f"stale copy, not compared: {copy}" for copy in found.stale_copies]
    lines += found.notes
    if found.over:
        lines.append(f"{counted(found.over, 'expired key')} not removed yet; no mismatch")
    for kind, examples in found.examples.items():
        for example in examples:
            lines.append(f"{kind}: partition {example.partition} key {example.key}: {example.cause}: {example.seen}")
            lines += [f"    log: {side_line(example.log)}", f"    export: {side_line(example.export)}"]
    return lines
