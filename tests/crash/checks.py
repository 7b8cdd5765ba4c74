"""What must be true of a run, from what is in Kafka alone: independent of the code under test."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, field
from typing import NamedTuple, TypeAlias

BALANCE_MODULUS = 1_000_003


class Record(NamedTuple):
    """A committed record of a topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int = 0


def in_order(records: Iterable[Record]) -> list[Record]:
    """Return records by partition and offset."""
    return sorted(records, key=lambda record: (record.partition, record.offset))


class Placed(NamedTuple):
    """What Kafka's own consumer tells of a record."""

    partition: int
    offset: int
    value: bytes


State: TypeAlias = dict[str, int]
Fold: TypeAlias = Callable[[State | None, str, int], State]
"""Gives a key's state after a value from an input topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What an actor's run left: its inputs by topic, an echo of each input that it handled, its store's changelog."""

    inputs: Mapping[str, list[Record]]
    echoes: list[Record]
    changelog: list[Record]
    fold: Fold


@dataclass(slots=True)
class Findings:
    """How often something was wrong, and the first examples in words."""

    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0
    wrong_running_values: int = 0
    wrong_timestamps: int = 0
    wrong_state: int = 0
    misread: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing was wrong."""
        return not any(count for count in astuple(self) if isinstance(count, int))

    def note(self, text: str) -> None:
        """Keep an example."""
        if len(self.examples) < 20:
            self.examples.append(text)


def check_run(run: Run, findings: Findings) -> Findings:
    """Compare the echoes with the inputs record by record, and every state with a refold in the order of the echoes."""
    sources = {
        (topic, record.partition, record.offset): record for topic, records in run.inputs.items() for record in records
    }
    seen: dict[tuple[str, int, int], int] = {}
    last: dict[tuple[str, int], int] = {}
    states: dict[tuple[int, bytes | None], State] = {}
    for echo in in_order(run.echoes):
        told = json.loads(echo.value or b"{}")
        topic, offset, key = told.get("input", next(iter(run.inputs))), told["offset"], (echo.partition, echo.key)
        where = f"{topic}-{echo.partition}: input {offset}"
        source = sources.get((topic, echo.partition, offset))
        if (topic, echo.partition, offset) in seen:
            findings.doubled += 1
            findings.note(f"{where} was echoed at {seen[topic, echo.partition, offset]} and {echo.offset}")
            continue
        seen[topic, echo.partition, offset] = echo.offset
        if source is None or source.key != echo.key or int(source.value or b"0") != told["value"]:
            findings.wrong_running_values += 1
            findings.note(f"{where} isn't what echo {echo.offset} tells of it")
            continue
        if offset < last.get((topic, echo.partition), -1):
            findings.out_of_order += 1
            findings.note(f"{where} was echoed after {last[topic, echo.partition]}")
        last[topic, echo.partition] = max(offset, last.get((topic, echo.partition), -1))
        if echo.timestamp_ms != source.timestamp_ms:
            findings.wrong_timestamps += 1
            findings.note(f"{where} is of {source.timestamp_ms}, its echo of {echo.timestamp_ms}")
        states[key] = run.fold(states.get(key), topic, told["value"])
        if told["stats"] != states[key]:
            findings.wrong_running_values += 1
            findings.note(f"{where} left {told['stats']}, a refold {states[key]}")
    missing = sorted(sources.keys() - seen.keys())
    findings.lost += len(missing)
    if missing:
        findings.note(f"{len(missing)} inputs were never echoed, the first is {missing[0]}")
    _check_state(states, run.changelog, findings)
    return findings


def check_readers(topic: str, ours: Iterable[Record], kafkas: Iterable[Placed], findings: Findings) -> None:
    """Compare what our reader found with what Kafka's own consumer did: it is not the reader that loses or doubles."""
    found = Counter(Placed(record.partition, record.offset, record.value or b"") for record in ours)
    wanted = Counter(kafkas)
    for who, only in (("we read", found - wanted), ("Kafka's consumer read", wanted - found)):
        findings.misread += only.total()
        for placed in list(only)[:3]:
            findings.note(f"{topic}: only {who} {placed}")


def _check_state(
    wanted: Mapping[tuple[int, bytes | None], State], changelog: Iterable[Record], findings: Findings
) -> None:
    """The last committed write of each key is its state, in its inputs' partition."""
    state: dict[tuple[int, bytes | None], object] = {}
    for record in in_order(changelog):
        state[record.partition, record.key] = None if record.value is None else json.loads(record.value)
    for where in wanted.keys() | state.keys():
        if wanted.get(where) != state.get(where):
            findings.wrong_state += 1
            findings.note(f"key {where[1]!r} of partition {where[0]}: {state.get(where)}, the fold {wanted.get(where)}")


def fold_stats(held: Mapping[str, int] | None, _: str, value: int) -> State:
    """Fold as the first actor does."""
    if held is None:
        return {"count": 1, "sum": value, "min": value, "max": value}
    return {
        "count": held["count"] + 1,
        "sum": held["sum"] + value,
        "min": min(held["min"], value),
        "max": max(held["max"], value),
    }


def fold_account(held: Mapping[str, int] | None, topic: str, value: int) -> State:
    """Fold as the actor of two inputs does: the balance depends on the order of orders and payments."""
    orders, payments, balance = (held["orders"], held["payments"], held["balance"]) if held else (0, 0, 0)
    if topic.endswith("-orders"):
        return {"orders": orders + 1, "payments": payments, "balance": (31 * balance + value) % BALANCE_MODULUS}
    return {"orders": orders, "payments": payments + 1, "balance": (37 * balance + value) % BALANCE_MODULUS}
