"""What must be true of a run, from what is in Kafka alone: independent of the code under test."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Record(NamedTuple):
    """A committed record of a topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int = 0


@dataclass(slots=True)
class Findings:
    """How often something was wrong, and the first examples in words."""

    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0
    wrong_running_values: int = 0
    wrong_state: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing was wrong."""
        return not (self.lost or self.doubled or self.out_of_order or self.wrong_running_values or self.wrong_state)

    def note(self, text: str) -> None:
        """Keep an example."""
        if len(self.examples) < 20:
            self.examples.append(text)


def check_run(inputs: Iterable[Record], echoes: Iterable[Record], changelog: Iterable[Record]) -> Findings:
    """Compare the echo with the input record by record, every running value with a refold, the state with the fold."""
    findings = Findings()
    wanted = _by_partition(inputs)
    got = _by_partition(echoes)
    for partition in sorted(wanted.keys() | got.keys()):
        _check_partition(partition, wanted.get(partition, []), got.get(partition, []), findings)
    _check_state(wanted, changelog, findings)
    return findings


def _by_partition(records: Iterable[Record]) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = {}
    for record in sorted(records, key=lambda record: (record.partition, record.offset)):
        found.setdefault(record.partition, []).append(record)
    return found


def _check_partition(partition: int, inputs: Sequence[Record], echoes: Sequence[Record], findings: Findings) -> None:
    by_offset = {record.offset: record for record in inputs}
    seen: set[int] = set()
    last = -1
    fold: dict[bytes | None, dict[str, int]] = {}
    for echo in echoes:
        said = json.loads(echo.value or b"{}")
        offset = said["offset"]
        if offset in seen:
            findings.doubled += 1
            findings.note(f"partition {partition}: input {offset} was echoed again at {echo.offset}")
            continue
        seen.add(offset)
        source = by_offset.get(offset)
        if source is None or source.key != echo.key or int(source.value or b"0") != said["value"]:
            findings.wrong_running_values += 1
            findings.note(f"partition {partition}: echo {echo.offset} tells of input {offset}, which isn't so")
            continue
        if offset < last:
            findings.out_of_order += 1
            findings.note(f"partition {partition}: input {offset} was echoed after {last}")
        last = max(last, offset)
        fold[echo.key] = _folded(fold.get(echo.key), said["value"])
        if said["stats"] != fold[echo.key]:
            findings.wrong_running_values += 1
            findings.note(f"partition {partition}: input {offset} left {said['stats']}, a refold {fold[echo.key]}")
    missing = sorted(by_offset.keys() - seen)
    findings.lost += len(missing)
    if missing:
        findings.note(f"partition {partition}: {len(missing)} inputs were never echoed, the first is {missing[0]}")


def _folded(held: Mapping[str, int] | None, value: int) -> dict[str, int]:
    if held is None:
        return {"count": 1, "sum": value, "min": value, "max": value}
    return {
        "count": held["count"] + 1,
        "sum": held["sum"] + value,
        "min": min(held["min"], value),
        "max": max(held["max"], value),
    }


def _check_state(inputs: Mapping[int, Sequence[Record]], changelog: Iterable[Record], findings: Findings) -> None:
    """The last committed write of each key is the fold of all its inputs, in its input's partition."""
    wanted: dict[tuple[int, bytes | None], dict[str, int]] = {}
    for partition, records in inputs.items():
        for record in records:
            where = (partition, record.key)
            wanted[where] = _folded(wanted.get(where), int(record.value or b"0"))
    state: dict[tuple[int, bytes | None], object] = {}
    for record in sorted(changelog, key=lambda record: (record.partition, record.offset)):
        state[record.partition, record.key] = None if record.value is None else json.loads(record.value)
    for where in wanted.keys() | state.keys():
        if wanted.get(where) != state.get(where):
            findings.wrong_state += 1
            findings.note(f"key {where[1]!r} of partition {where[0]}: {state.get(where)}, the fold {wanted.get(where)}")
