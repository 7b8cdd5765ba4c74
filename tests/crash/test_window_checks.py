"""Each check of the crash run's windows finds the damage that it is there for."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.crash import rules
from tests.crash.checks import Record
from tests.crash.harness import WINDOW_KINDS
from tests.crash.window_checks import COUNTS, SITTINGS, SPANS, WindowEvidence, check_windows

CLICKS = 1_000
BEGIN_MS = 1_700_000_000_000


def good() -> WindowEvidence:
    """Give what a good run leaves, all in one partition, computed the slow way: from all clicks at each step."""
    records, numbers = [], range(CLICKS)
    clicks = [rules.click(number, BEGIN_MS) for number in numbers]
    for number, (key, click) in enumerate(clicks):
        records.append(Record(0, number, key, msgspec.json.encode(click)))
    streams = [max(click.at_ms for _, click in clicks[: number + 1]) for number in numbers]
    closed, late = _spans(clicks, streams)
    closed += _sittings(clicks, streams, late)
    finals = [
        Record(0, offset, key, json.dumps({**told, "store": store}).encode())
        for offset, (_, key, store, told) in enumerate(sorted(closed, key=lambda one: (one[0], one[1], one[2])))
    ]
    gone = [Record(0, number, clicks[number][0], msgspec.json.encode(clicks[number][1])) for number in sorted(late)]
    return WindowEvidence(clicks=records, finals=finals, late=gone)


def _spans(clicks: list, streams: list[int]) -> tuple[list, set[int]]:
    """Give (end, key, store, what is told) of the spans that closed, and which clicks were too late for theirs."""
    held, late = defaultdict(list), set()
    for number, (key, click) in enumerate(clicks):
        start_ms = click.at_ms // rules.SPAN_MS * rules.SPAN_MS
        if start_ms + rules.SPAN_MS + rules.GRACE_MS <= streams[number]:
            late.add(number)
        else:
            held[key, start_ms].append(number)
    return [
        (start_ms + rules.SPAN_MS, key, SPANS, told(start_ms, start_ms + rules.SPAN_MS, inside))
        for (key, start_ms), inside in held.items()
        if start_ms + rules.SPAN_MS + rules.GRACE_MS <= streams[-1]
    ], late


def _sittings(clicks: list, streams: list[int], late: set[int]) -> list:
    """Give the sessions that closed; take those that are in one out of what was too late for its span."""
    patience_ms = rules.GAP_MS + rules.GRACE_MS
    sessions: dict[bytes, list[list[int]]] = defaultdict(list)
    closed, done = [], set()

    def bounds(numbers: list[int]) -> tuple[int, int]:
        times = [clicks[number][1].at_ms for number in numbers]
        return min(times), max(times)

    def close(stream_ms: int) -> None:
        for key, all_ in sessions.items():
            for numbers in all_:
                start_ms, end_ms = bounds(numbers)
                if end_ms + patience_ms < stream_ms and (key, tuple(sorted(numbers))) not in done:
                    done.add((key, tuple(sorted(numbers))))
                    closed.append((end_ms, key, SITTINGS, told(start_ms, end_ms, numbers)))

    for number, (key, click) in enumerate(clicks):
        close(streams[number])
        apart = (click.at_ms - rules.GAP_MS, click.at_ms + rules.GAP_MS)
        near = [one for one in sessions[key] if bounds(one)[1] >= apart[0] and bounds(one)[0] <= apart[1]]
        joined = [number, *(each for one in near for each in one)]
        if bounds(joined)[1] + patience_ms >= streams[number]:
            sessions[key] = [*(one for one in sessions[key] if one not in near), joined]
            late.discard(number)
    return closed


def told(start_ms: int, end_ms: int, numbers: list[int]) -> dict[str, int]:
    return {"start_ms": start_ms, "end_ms": end_ms, "count": len(numbers), "sum": sum(numbers)}


def counted(evidence: WindowEvidence) -> dict[str, int]:
    """Give the counts that aren't 0."""
    findings = check_windows(evidence)
    assert not findings.clean
    return {name: times for name, times in findings.counts.items() if times}


def test_a_good_run_is_clean_and_has_everything() -> None:
    findings = check_windows(good())
    assert findings.clean, findings.examples
    assert set(WINDOW_KINDS) <= findings.seen.keys()
    assert all(findings.seen[kind] for kind in WINDOW_KINDS)


def test_every_count_has_a_test() -> None:
    text = Path(__file__).read_text()
    assert [name for name in COUNTS if f'"{name}"' not in text] == []


def of_store(records: list[Record], store: str) -> Record:
    return next(record for record in records if json.loads(record.value or b"")["store"] == store)


@pytest.mark.parametrize("store", [SPANS, SITTINGS])
def test_a_final_that_is_lost_or_comes_twice(store: str) -> None:
    run = good()
    one = of_store(list(run.finals), store)
    assert counted(replace(run, finals=[each for each in run.finals if each is not one])) == {"finals_lost": 1}
    again = [*run.finals[: one.offset + 1], one, *run.finals[one.offset + 1 :]]
    assert counted(replace(run, finals=again)) == {"finals_doubled": 1}


@pytest.mark.parametrize("store", [SPANS, SITTINGS])
@pytest.mark.parametrize("field", ["count", "sum", "start_ms", "end_ms"])
def test_a_final_that_says_something_else(store: str, field: str) -> None:
    run = good()
    one = of_store(list(run.finals), store)
    said = json.loads(one.value or b"")
    other = one._replace(value=json.dumps({**said, field: said[field] + 1}).encode())
    found = counted(replace(run, finals=[other if each is one else each for each in run.finals]))
    assert {name: found[name] for name in ("finals_lost", "finals_unasked")} == {"finals_lost": 1, "finals_unasked": 1}


def test_a_click_that_is_in_no_window_or_in_two() -> None:
    run = good()
    taken = next(record for record in run.clicks if record.value not in {late.value for late in run.late})
    found = counted(replace(run, late=[*run.late, taken]))
    assert found == {"late_unasked": 1}
    assert "finals_unasked" in counted(replace(run, clicks=[each for each in run.clicks if each is not taken]))


def test_a_late_click_that_is_lost_or_comes_twice() -> None:
    run = good()
    assert counted(replace(run, late=run.late[1:])) == {"late_lost": 1}
    assert counted(replace(run, late=[*run.late, run.late[0]])) == {"late_doubled": 1}


def test_finals_out_of_order() -> None:
    run = good()
    finals = list(run.finals)
    first, last = of_store(finals, SPANS), of_store(finals[::-1], SPANS)
    finals[first.offset], finals[last.offset] = last._replace(offset=first.offset), first._replace(offset=last.offset)
    assert set(counted(replace(run, finals=finals))) == {"finals_out_of_order"}


def test_a_final_that_came_before_its_window_was_over() -> None:
    run = good()
    # As if the run had ended before the last windows were over.
    early = replace(run, clicks=run.clicks[:-100])
    found = counted(replace(early, late=[one for one in run.late if one.offset < CLICKS - 100]))
    assert found["finals_unasked"] > 0
