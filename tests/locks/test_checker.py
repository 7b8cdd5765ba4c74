"""Each check finds the damage that it is there for, in histories made by hand, and nothing in one that is right."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.judges.porcupine import Verdict
from tests.locks.checker import WRONG, Evidence, check
from tests.locks.history import Call, Ended, Held, Journal, Operation, Outcome, Return, pair, read_events
from tests.locks.nodes import check_nodes
from tests.locks.plan import Kind
from tests.locks.resource import Accepted, Resource

# The first check compiles Go.
pytestmark = pytest.mark.timeout(900)

LOCK = Kind("lock", "lock", ttl_s=5.0)
OK = Verdict(illegal=(), undecided=())
ILLEGAL = Verdict(illegal=("node",), undecided=())


def grant(
    id: str,
    token: int,
    asked_s: float,
    from_s: float,
    until_s: float,
    *,
    released_s: float | None = None,
    shared: bool = False,
    permits: int = 1,
    limit: int = 1,
) -> Operation:
    call = Call(
        id=id,
        at_s=asked_s,
        client=id,
        op="acquire",
        name="lock",
        shared=shared,
        permits=permits,
        limit=limit,
        ttl_s=5.0,
    )
    ended = None if released_s is None else Ended(id=id, at_s=released_s, lost=False)
    answer = Return(id=id, at_s=from_s, outcome="ok", token=token)
    return Operation(call=call, answer=answer, until_s=until_s, ended=ended)


def failed(id: str, outcome: Outcome, *, patient: bool = True) -> Operation:
    call = Call(id=id, at_s=0.0, client=id, op="acquire", name="lock", patient=patient)
    return Operation(call=call, answer=Return(id=id, at_s=1.0, outcome=outcome))


def use(grant: Operation, *, outcome: Outcome, held: bool) -> Operation:
    call = Call(id="use", at_s=0.0, client="c", op="use", name="lock", grant=grant.call.id, token=grant.token)
    return Operation(call=call, answer=Return(id="use", at_s=0.1, outcome=outcome, token=grant.token, held=held))


A = grant("a", 3, 0.0, 1.0, 6.0, released_s=2.0)
B = grant("b", 7, 0.5, 2.0, 9.0)
C = grant("c", 8, 9.5, 10.0, 14.0)


def evidence(*operations: Operation) -> Evidence:
    """Of a run in which all requests came in the order of their calls."""
    requests = {one.call.id: place for place, one in enumerate(operations) if one.call.op == "acquire"}
    return Evidence(operations=operations, requests=requests, kinds=(LOCK,))


def wrong(given: Evidence) -> dict[str, int]:
    return dict(check(given).counts)


def test_nothing_is_wrong_with_a_right_history():
    given = replace(
        evidence(A, B, C, use(A, outcome="refused", held=False), use(B, outcome="ok", held=True)),
        accepted=(Accepted("lock", 3, "a"), Accepted("lock", 7, "b"), Accepted("lock", 7, "b")),
        last_fault_s=3.0,
    )
    assert wrong(given) == {}
    assert check(given).slowest_lock_s == pytest.approx(7.0)
    assert check(replace(given, asked=[(0.0, [LOCK]), (1.5, [LOCK])])).slowest_between_s == pytest.approx(1.0)


def test_two_who_hold_a_lock_at_once():
    early = grant("b", 7, 0.5, 1.9, 9.0)
    assert wrong(evidence(A, early)) == {"double_holdings": 1}


def test_one_whose_lease_ended_while_it_stood_still_holds_no_more():
    stopped = grant("a", 3, 0.0, 1.0, 6.0, released_s=30.0)
    after = grant("b", 7, 0.5, 6.0, 11.0)
    assert wrong(evidence(stopped, after)) == {}
    assert wrong(evidence(stopped, grant("b", 7, 0.5, 5.9, 11.0))) == {"double_holdings": 1}


def test_a_grant_that_was_over_when_its_answer_came_is_no_holding():
    assert wrong(evidence(B, grant("late", 9, 2.0, 8.0, 7.5))) == {}


def test_readers_share_and_writers_do_not():
    readers = [grant(id, token, 0.0, 1.0, 6.0, shared=True) for id, token in (("a", 1), ("b", 2))]
    assert wrong(evidence(*readers)) == {}
    assert wrong(evidence(*readers, grant("w", 3, 0.0, 5.0, 9.0))) == {"double_holdings": 1}


def test_a_semaphore_has_so_many_permits():
    two, one = (grant(id, n, 0.0, 1.0, 6.0, permits=n, limit=3) for id, n in (("two", 2), ("one", 1)))
    assert wrong(evidence(one, two)) == {}
    more = grant("more", 3, 0.0, 5.0, 9.0, limit=3)
    assert wrong(evidence(one, two, more)) == {"double_holdings": 1}


def test_a_token_that_goes_back():
    assert wrong(evidence(B, grant("c", 6, 9.5, 10.0, 14.0)))["tokens_back"] == 1
    # Asked for while the other was held: only that they exclude each other says which was first.
    assert wrong(replace(evidence(B, grant("c", 6, 1.0, 10.0, 14.0)), requests={})) == {"tokens_back": 1}


def test_tokens_of_readers_at_the_same_time_may_come_in_any_order():
    first, second = (grant(f"r{n}", n, 0.0, 3.0 - n, 6.0, shared=True) for n in (1, 2))
    assert wrong(evidence(first, second)) == {}


def test_one_token_for_two():
    assert wrong(evidence(B, grant("c", 7, 9.5, 10.0, 14.0))) == {"tokens_shared": 1}


def test_one_who_is_overtaken():
    given = evidence(A, B)
    assert wrong(given) == {}
    assert wrong(replace(given, requests={"a": 5, "b": 4})) == {"overtaken": 1}


def test_a_stale_write_that_is_accepted():
    fine, stale = Accepted("lock", 7, "b"), Accepted("lock", 3, "a")
    assert wrong(replace(evidence(A, B), accepted=(stale, fine))) == {}
    assert wrong(replace(evidence(A, B), accepted=(fine, stale))) == {"stale_accepted": 1}


def test_a_read_is_stale_only_after_a_later_write():
    later, read = Accepted("lock", 7, "b", reads=True), Accepted("lock", 3, "a", reads=True)
    assert wrong(replace(evidence(A, B), accepted=(later, read))) == {}
    assert wrong(replace(evidence(A, B), accepted=(replace(later, reads=False), read))) == {"stale_accepted": 1}
    assert wrong(replace(evidence(A, B), accepted=(later, replace(read, reads=False)))) == {"stale_accepted": 1}


def test_a_write_with_a_token_of_somebody_else():
    assert wrong(replace(evidence(A, B), accepted=(Accepted("lock", 7, "a"),))) == {"stale_accepted": 1}


def test_a_holder_whom_the_resource_refuses():
    assert wrong(evidence(B, use(B, outcome="refused", held=True))) == {"holders_refused": 1}


@pytest.mark.parametrize("outcome", ["timeout", "refused", "unknown"])
def test_one_who_waits_and_is_never_served(outcome: Outcome):
    assert wrong(evidence(failed("a", outcome))) == {"starved": 1}
    assert wrong(evidence(failed("a", outcome, patient=False))) == {}


def test_one_who_never_got_an_answer():
    call = Call(id="a", at_s=0.0, client="a", op="acquire", name="lock")
    assert wrong(evidence(*pair([call]))) == {"starved": 1}


def test_a_lock_that_comes_back_too_late():
    assert wrong(replace(evidence(C), last_fault_s=0.0)) == {}
    late = grant("c", 8, 9.5, 15.1, 20.0)
    assert wrong(replace(evidence(late), last_fault_s=0.0)) == {"late_locks": 1}
    assert wrong(replace(evidence(A), last_fault_s=3.0)) == {"late_locks": 1}


def test_every_check_is_shown_to_fail_here():
    text = Path(__file__).read_text()
    assert [kind for kind in WRONG if f'"{kind}"' not in text] == []


# --- nodes ----------------------------------------------------------------------------------------------------

_ids = itertools.count()


def op(
    what: str,
    begin_s: float,
    end_s: float,
    *,
    data: str | None = None,
    version: int = 0,
    expected: int | None = None,
    outcome: Outcome = "ok",
) -> Operation:
    id = str(next(_ids))
    call = Call(id=id, at_s=begin_s, client="c", op=what, name="node", data=data, expected=expected)
    return Operation(call=call, answer=Return(id=id, at_s=end_s, outcome=outcome, data=data, version=version))


MADE = op("put", 0, 1, data="x", version=1, expected=0)
WON = op("put", 2, 4, data="y", version=2, expected=1)
NO_ANSWER = op("put", 2, 3, data="y", outcome="unknown")
NODE_HISTORIES = {
    "compare and set, one wins": ([MADE, WON, op("put", 2, 4, data="z", expected=1, outcome="refused")], OK),
    "compare and set, both win": ([MADE, WON, op("put", 2, 4, data="z", version=2, expected=1)], ILLEGAL),
    "an update that is lost": ([MADE, WON, op("get", 5, 6, data="x", version=1)], ILLEGAL),
    "a read at the same time may see either": ([MADE, WON, op("get", 3, 5, data="x", version=1)], OK),
    "a read that goes back": (
        [MADE, WON, op("get", 2.1, 2.2, data="y", version=2), op("get", 2.3, 2.4, data="x", version=1)],
        ILLEGAL,
    ),
    "a conflict with the version that was there": (
        [MADE, op("put", 2, 3, data="y", expected=1, outcome="refused")],
        ILLEGAL,
    ),
    "a delete, and what comes after it": (
        [
            MADE,
            op("delete", 2, 3, version=2, expected=1),
            op("get", 4, 5),
            op("put", 6, 7, data="n", version=3, expected=0),
        ],
        OK,
    ),
    "a delete that was undone": ([MADE, op("delete", 2, 3, version=2), op("get", 4, 5, data="x", version=1)], ILLEGAL),
    "a version that was given anew": (
        [MADE, op("delete", 2, 3, version=2), op("put", 4, 5, data="n", version=1)],
        ILLEGAL,
    ),
    "no answer, and carried out later": (
        [MADE, NO_ANSWER, op("get", 4, 5, data="x", version=1), op("get", 6, 7, data="y", version=2)],
        OK,
    ),
    "no answer, and never carried out": ([MADE, NO_ANSWER, op("get", 6, 7, data="x", version=1)], OK),
    "no answer, carried out and undone": (
        [MADE, NO_ANSWER, op("get", 4, 5, data="y", version=2), op("get", 6, 7, data="x", version=1)],
        ILLEGAL,
    ),
    "no answer, seen before it was asked": ([MADE, op("get", 1.1, 1.5, data="y", version=2), NO_ANSWER], ILLEGAL),
    "a read without an answer": ([MADE, op("get", 2, 3, outcome="unknown"), WON], OK),
}


@pytest.mark.parametrize("name", NODE_HISTORIES)
def test_nodes_are_linearizable(name: str):
    operations, expected = NODE_HISTORIES[name]
    assert check_nodes(operations) == expected


def test_each_node_is_judged_by_itself():
    def on(node: str, operations: Sequence[Operation]) -> list[Operation]:
        calls = [msgspec.structs.replace(one.call, name=node) for one in operations]
        return [Operation(call=call, answer=one.answer) for call, one in zip(calls, operations, strict=True)]

    bad = NODE_HISTORIES["an update that is lost"][0]
    assert check_nodes([*on("one", [MADE, WON]), *on("two", bad)]) == Verdict(illegal=("two",), undecided=())


# --- what is written and read --------------------------------------------------------------------------------


def test_a_history_is_read_as_it_was_written(tmp_path: Path):
    path = tmp_path / "one.jsonl"
    journal = Journal(path)
    call, answer = A.call, A.answer
    assert answer is not None
    for event in (
        call,
        answer,
        Held(id="a", until_s=5.0),
        Held(id="a", until_s=6.0),
        Ended(id="a", at_s=2.0, lost=False),
    ):
        journal.write(event)
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"type":"held","id":"a","unti')
    assert pair(read_events(path)) == [A]
    assert A.believed_until_s == 2.0
    assert A.is_holding


def test_the_resource_refuses_what_is_stale(tmp_path: Path):
    resource = Resource(tmp_path / "resource.db")
    tries = [
        (Accepted("lock", 5, "a"), True),
        (Accepted("lock", 5, "a"), True),
        (Accepted("lock", 9, "r", reads=True), True),
        (Accepted("lock", 6, "s", reads=True), True),
        # A writer that is older than a reader would change what was read.
        (Accepted("lock", 8, "b"), False),
        (Accepted("lock", 10, "c"), True),
        (Accepted("lock", 9, "r", reads=True), False),
        (Accepted("other", 1, "d"), True),
    ]
    assert [resource.use(one) for one, _ in tries] == [expected for _, expected in tries]
    assert resource.accepted() == [one for one, is_accepted in tries if is_accepted]
    resource.close()
