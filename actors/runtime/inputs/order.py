"""Records of several inputs in the order in which they are handled: see `actors.runtime.inputs.inbox`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TypeVar

from actors.ports import InputRecord
from actors.runtime.inputs.inbox import Inbox, places_of
from actors.runtime.inputs.misplaced import PlacedRecords
from actors.runtime.inputs.progress import InputProgress, Run

Input = TypeVar("Input")
Part = tuple[Input, Sequence[InputRecord]]


def take_in_order(
    inbox: Inbox, inputs: Sequence[InputProgress], placed: Sequence[PlacedRecords], turns: Sequence[int]
) -> Sequence[Run]:
    """Take what comes next; behind a record that stops the partition nothing of its input comes.

    Args:
        inbox: what waits.
        inputs: the inputs.
        placed: of each input what looks at its records; empty if nothing does.
        turns: of each input its turn among records of one timestamp; the lowest goes first.
    """
    parts = [(inputs[index], placed[index].checked(records) if placed else records) for index, records in inbox.take()]
    return parts if len(parts) == 1 else merged(parts, [turns[one.index] for one, _ in parts])


def merged(parts: Iterable[Part[Input]], turns: Iterable[int]) -> list[Part[Input]]:
    """Return the records of several inputs in order: those that follow each other in one input are together."""
    found = [
        (at_ms, turn, one, record)
        for (one, records), turn in zip(parts, turns, strict=True)
        for at_ms, record in zip(places_of(records), records, strict=True)
    ]
    found.sort(key=_order)
    runs: list[Part[Input]] = []
    last, run = None, list[InputRecord]()
    for _, turn, one, record in found:
        if turn != last:
            last, run = turn, []
            runs.append((one, run))
        run.append(record)
    return runs


_order = itemgetter(0, 1)
