"""Window stores against a model that keeps every record and computes all windows from them, through crashes."""

import asyncio
from collections import defaultdict
from datetime import timedelta

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from actors import App, Hopping, Session, Sliding, Tumbling, aggregates
from actors.testing import ActorTestDriver
from tests.examples import examples

BEGIN_MS = 1_700_000_000_000
GRACE_MS = 3
MS = timedelta(milliseconds=1)
KINDS = {
    "tumbling": Tumbling(10 * MS),
    "hopping": Hopping(10 * MS, 4 * MS),
    "sliding": Sliding(5 * MS),
    "session": Session(5 * MS),
}
LENGTHS = {"tumbling": 10, "hopping": 10, "sliding": 10, "session": 10}
"""Retention without the grace. Of sliding windows, what a record leads to depends on windows of two differences."""
SHORTEST_MS = {"tumbling": 10, "hopping": 10, "sliding": 10, "session": 5}
"""The shortest retention that a window store may have, without the grace."""
CLOSE_S = 0.002
"""How long a slow close takes: longer than its turn, so that records come between any two."""
RECORDS = st.tuples(
    st.sampled_from("ab"),
    st.integers(-1, 50),
    st.integers(0, 30) | st.integers(0, 200),
)
STEPS = st.lists(RECORDS | st.sampled_from(["crash", "lose disk"]), min_size=1, max_size=25)
PAST_RETENTION = [("a", 1, 15), ("a", 2, 25), ("a", 4, 33), ("a", 8, 20)]
"""The last record lies between two sessions, of which the first is past its retention."""


class Model:
    """All records with the stream time at their arrival; windows follow from them.

    A session that is past its retention isn't continued. Other windows don't depend on their retention.
    """

    def __init__(self, kind, retention_ms=None):
        self.kind, self.stream_ms = kind, -1
        self.retention_ms = (LENGTHS[kind] if retention_ms is None else retention_ms) + GRACE_MS
        self.records = []
        self.finals = defaultdict(list)
        self.late = []
        self.sessions = defaultdict(list)

    def handle(self, key, amount, at_ms):
        self.stream_ms = max(self.stream_ms, at_ms)
        if self.kind == "session":
            self._session(key, amount, at_ms)
        elif self.kind == "sliding":
            if at_ms + 5 + GRACE_MS < self.stream_ms:
                self.late.append((key, amount))
            elif amount >= 0:
                self.records.append((key, amount, at_ms, self.stream_ms))
        else:
            advance = 10 if self.kind == "tumbling" else 4
            starts = [start for start in range(at_ms - 9, at_ms + 1) if start % advance == 0]
            taken = [start for start in starts if start + 10 + GRACE_MS > self.stream_ms]
            if not taken:
                self.late.append((key, amount))
            elif amount >= 0:
                self.records += [(key, amount, start, None) for start in taken]

    def _session(self, key, amount, at_ms):
        kept = [one for one in self.sessions[key] if one[1] >= self.stream_ms - self.retention_ms]
        near = [one for one in kept if one[0] - 5 <= at_ms <= one[1] + 5]
        start = min([at_ms, *(one[0] for one in near)])
        end = max([at_ms, *(one[1] for one in near)])
        if end + 5 + GRACE_MS < self.stream_ms:
            self.late.append((key, amount))
        elif amount >= 0:
            left = [one for one in self.sessions[key] if one not in near]
            self.sessions[key] = [*left, (start, end, amount + sum(one[2] for one in near), False)]
        self._close_sessions()

    def _close_sessions(self):
        for key, sessions in self.sessions.items():
            for place, (start, end, total, is_closed) in enumerate(sessions):
                if not is_closed and end + 5 + GRACE_MS < self.stream_ms:
                    self.finals[key, start, end].append(total)
                    sessions[place] = (start, end, total, True)

    def check(self, got):
        if self.kind != "sliding":
            assert got == self.closed()
            return
        # A record whose own window, the one that ends with it, is closed is in those that are open and there already.
        # What else it leads to depends on how windows are kept: the equivalence suite compares that with Kafka Streams.
        surely = self._sliding([one for one in self.records if one[2] + GRACE_MS >= one[3]])
        at_most = self._sliding(self.records)
        assert surely.keys() <= got.keys() <= at_most.keys()
        for window, totals in got.items():
            assert len(totals) == 1
            assert surely.get(window, 0) <= totals[0] <= at_most[window]

    def closed(self):
        if self.kind != "session":
            sums = defaultdict(int)
            for key, amount, start, _ in self.records:
                sums[key, start, start + 10] += amount
            return {window: [total] for window, total in sums.items() if window[2] + GRACE_MS <= self.stream_ms}
        return dict(self.finals)

    def _sliding(self, records):
        found = {}
        for key in {record[0] for record in records}:
            mine = [record for record in records if record[0] == key]
            for start in {at + shift for _, _, at, _ in mine for shift in (-5, 1)}:
                if start + 5 + GRACE_MS >= self.stream_ms:
                    continue
                seen = [one for one in mine if one[3] <= start + 5 + GRACE_MS]
                inside = [one for one in seen if start <= one[2] <= start + 5]
                ends = any(one[2] == start + 5 for one in seen)
                follows = any(one[2] == start - 1 for one in seen)
                if inside and (ends or follows):
                    found[key, start, start + 5] = sum(one[1] for one in inside)
        return found


def make(kind, close_s=0.0, retention_ms=None):
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=int)
    finals = app.topic("finals", key_type=str, value_type=list)
    late = app.topic("late", key_type=str, value_type=int)
    sales = app.window_store(
        "sales",
        KINDS[kind],
        grace=GRACE_MS * MS,
        retention=((LENGTHS[kind] if retention_ms is None else retention_ms) + GRACE_MS) * MS,
        aggregate=aggregates.sum(),
    )

    @sales.on_close
    async def closed(ctx, window, total):
        await asyncio.sleep(close_s)
        ctx.send(finals, key=ctx.key, value=[window.start_ms - BEGIN_MS, window.end_ms - BEGIN_MS, total])

    @app.actor(orders, stores=[sales], late=late, on_error="skip")
    async def count(ctx, amount):
        sales.add(ctx.key, max(amount, 0))
        if amount < 0:
            raise ValueError("negative")

    return app, orders, finals, late


def finals_and_late(kind, steps, *, settles=False, close_s=0.0, retention_ms=None):
    """Return the final results as [start, end, total] by key, as they were sent, and the late messages."""
    app, orders, finals, late = make(kind, close_s, retention_ms)
    with ActorTestDriver(app, partitions=1) as driver:
        for step in steps:
            if isinstance(step, str):
                driver.crash(keep_disk=step == "crash", settle=settles)
                continue
            key, amount, at_ms = step
            driver.post(orders, key=key, value=amount, timestamp_ms=BEGIN_MS + at_ms)
            if settles:
                driver.settle()
            elif close_s:
                driver.advance(close_s, settle=False)
        driver.settle()
        sent = [(one.key, one.value) for one in driver.outputs(finals)]
        return sent, [(one.key, one.value) for one in driver.outputs(late)]


def run(kind, steps, *, retention_ms=None, **how):
    model = Model(kind, retention_ms)
    for step in steps:
        if not isinstance(step, str):
            model.handle(*step)
    sent, late = finals_and_late(kind, steps, retention_ms=retention_ms, **how)
    got = defaultdict(list)
    for key, (start_ms, end_ms, total) in sent:
        got[key, start_ms, end_ms].append(total)
    model.check(dict(got))
    ends = [value[1] for _, value in sent]
    assert ends == sorted(ends)
    assert late == model.late


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(60), deadline=None)
@given(steps=STEPS)
@example(steps=[("a", 1, at_ms) for at_ms in (0, 0, 0, 14, 7, 6, 17)])
@example(steps=[*PAST_RETENTION, ("a", 16, 34)])
@example(steps=[*PAST_RETENTION, ("a", 16, 10)])
def test_finals_are_those_of_all_records(kind, steps):
    run(kind, steps, settles=True)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(60), deadline=None)
@given(steps=STEPS)
@example(steps=[*PAST_RETENTION, ("a", 16, 34)])
@example(steps=[*PAST_RETENTION, ("a", 16, 10)])
def test_finals_do_not_depend_on_when_closes_are_handled(kind, steps):
    run(kind, steps)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(60), deadline=None)
@given(steps=STEPS)
@example(steps=[*PAST_RETENTION, ("a", 16, 34)])
@example(steps=[*PAST_RETENTION, ("a", 16, 10)])
def test_finals_do_not_depend_on_records_between_closes(kind, steps):
    run(kind, steps, close_s=CLOSE_S)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(60), deadline=None)
@given(steps=STEPS)
@example(steps=[*((key, 1, 10) for key in "abcdz"), ("x", 1, 23), ("z", 1, 15), ("x", 1, 100)])
def test_what_is_past_its_retention_does_not_depend_on_closes_that_wait(kind, steps):
    retention_ms = SHORTEST_MS[kind]
    settled = finals_and_late(kind, steps, settles=True, retention_ms=retention_ms)
    assert finals_and_late(kind, steps, close_s=CLOSE_S, retention_ms=retention_ms) == settled


@settings(max_examples=examples(60), deadline=None)
@given(steps=STEPS)
@example(steps=[("a", 1, 1), ("a", 2, 10), ("a", 4, 5), ("a", 8, 30)])
@example(steps=[*((key, 1, 2) for key in "cdefg"), ("a", 1, 5), ("b", 8, 14), ("a", 2, 10), ("a", 4, 5)])
def test_closed_sessions_are_not_continued_with_the_shortest_retention(steps):
    retention_ms = SHORTEST_MS["session"]
    run("session", steps, retention_ms=retention_ms)
    run("session", steps, retention_ms=retention_ms, close_s=CLOSE_S)
    finals, late = finals_and_late("session", [*steps, ("z", 0, 1_000)], retention_ms=retention_ms)
    taken = sum(max(step[1], 0) for step in steps if not isinstance(step, str))
    assert sum(total for _, (_, _, total) in finals) == taken - sum(max(amount, 0) for _, amount in late)


@pytest.mark.parametrize("kind", ["sliding", "session"])
@settings(max_examples=examples(60), deadline=None)
@given(steps=STEPS, shift_ms=st.integers(1, 4))
@example(steps=[("a", 1, 1), ("a", 2, 10), ("a", 4, 5), ("a", 8, 30)], shift_ms=3)
def test_results_do_not_depend_on_which_windows_share_a_row(kind, steps, shift_ms):
    shifted = [step if isinstance(step, str) else (*step[:2], step[2] + shift_ms) for step in steps]
    (sent, late), (sent_later, late_later) = (
        finals_and_late(kind, some, retention_ms=SHORTEST_MS[kind]) for some in (steps, shifted)
    )
    assert late == late_later
    assert sent_later == [(key, [start + shift_ms, end + shift_ms, total]) for key, (start, end, total) in sent]


@settings(max_examples=examples(60), deadline=None)
@given(steps=STEPS, settles=st.booleans(), retention_ms=st.sampled_from([500, 10_000]))
@example(steps=[("a", 1, at_ms) for at_ms in (0, 20, 21, 19, 40, 14, 60, 33)], settles=True, retention_ms=10_000)
@example(steps=[("a", 1, at_ms) for at_ms in (0, 20, 21, 19, 40, 14, 60, 33)], settles=False, retention_ms=10_000)
def test_sessions_that_share_a_list_are_those_of_all_records(steps, settles, retention_ms):
    run("session", steps, settles=settles, retention_ms=retention_ms)
    run("session", steps, close_s=CLOSE_S, retention_ms=retention_ms)
