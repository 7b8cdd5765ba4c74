"""The core of locks: by example, and against what must hold whatever is asked in whatever order."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from actors.coordination import locks
from actors.coordination.locks import Expired, Granted, Lock, Refused, Released, Renewed, Want
from tests.examples import examples

OWNERS = st.sampled_from("abcde")


def want(owner: str, id: str | None = None, **options) -> Want:
    return Want(**{"id": id or f"{owner}1", "owner": owner, "ttl_ms": 10, "wait_ms": 100, **options})


def test_first_come_first_served_with_tokens_of_the_winning_requests():
    lock, events = locks.acquire(Lock(), want("a"), 0, offset=7)
    assert events == [Granted("a1", 7, 10, 0, 1)]
    lock, events = locks.acquire(lock, want("b"), 1, offset=9)
    assert events == []
    lock, events = locks.acquire(lock, want("c"), 2, offset=20)
    lock, events = locks.release(lock, "r", "a", 7, 3)
    assert events == [Released("r", 0), Granted("b1", 9, 13, 2, 1)]
    lock, events = locks.tick(lock, 13)
    assert events == [Expired("b", 9), Granted("c1", 20, 23, 11, 1)]
    lock, _ = locks.release(lock, "r", "c", 20, 14)
    # The topic was made anew: offsets begin again, tokens don't.
    assert locks.acquire(lock, want("d"), 15, offset=0)[1] == [Granted("d1", 21, 25, 0, 1)]


def test_a_holder_that_asks_again_gets_its_own_token_and_lets_go_as_often():
    lock, _ = locks.acquire(Lock(), want("a"), 0, 5)
    lock, _ = locks.acquire(lock, want("b"), 1, 6)
    lock, events = locks.acquire(lock, want("a", "a2"), 2, 7)
    assert events == [Granted("a2", 5, 12, 0, 2)]
    lock, events = locks.release(lock, "r", "a", 5, 3)
    assert events == [Released("r", 1)]
    lock, events = locks.release(lock, "r", "a", 5, 3)
    assert events == [Released("r", 0), Granted("b1", 6, 13, 2, 1)]


def test_renewal_moves_the_end_and_is_refused_after_it():
    lock, _ = locks.acquire(Lock(), want("a"), 0, 5)
    lock, events = locks.renew(lock, "r", "a", 5, 10, 9)
    assert events == [Renewed("r", 5, 19)]
    assert locks.renew(lock, "r", "a", 5, 1, 9)[1] == [Renewed("r", 5, 19)]
    lock, events = locks.renew(lock, "r", "a", 5, 10, 19)
    assert events == [Expired("a", 5), Refused("r", "expired")]
    assert locks.release(lock, "r", "a", 5, 19)[1] == [Refused("r", "expired")]


def test_others_release_nothing_and_the_state_is_untouched():
    assert locks.release(Lock(), "r", "a", 1, 0) == (Lock(), [Refused("r", "unknown")])
    lock, _ = locks.acquire(Lock(), want("a"), 0, 5)
    for owner, token in (("b", 5), ("a", 4), ("b", 6), ("b", 0)):
        assert locks.release(lock, "r", owner, token, 1) == (lock, [Refused("r", "not-holder")])
        assert locks.renew(lock, "r", owner, token, 9, 1) == (lock, [Refused("r", "not-holder")])


def test_readers_share_and_a_writer_that_waits_goes_before_later_readers():
    lock, _ = locks.acquire(Lock(), want("a", shared=True), 0, 1)
    lock, events = locks.acquire(lock, want("b", shared=True), 0, 2)
    assert events == [Granted("b1", 2, 10, 0, 1)]
    lock, events = locks.acquire(lock, want("w"), 0, 3)
    lock, more = locks.acquire(lock, want("c", shared=True), 0, 4)
    assert events + more == []
    lock, _ = locks.release(lock, "r", "a", 1, 1)
    lock, events = locks.release(lock, "r", "b", 2, 1)
    assert [event.id for event in events] == ["r", "w1"]
    assert [event.id for event in locks.release(lock, "r", "w", 3, 1)[1]] == ["r", "c1"]


def test_a_semaphore_has_so_many_permits():
    taken = {"kind": "semaphore", "limit": 3}
    lock, _ = locks.acquire(Lock(), want("a", permits=2, **taken), 0, 1)
    lock, events = locks.acquire(lock, want("b", permits=2, **taken), 0, 2)
    assert events == []
    # One permit is free, but who comes later doesn't overtake.
    lock, events = locks.acquire(lock, want("c", **taken), 0, 3)
    assert events == []
    _, events = locks.release(lock, "r", "a", 1, 1)
    assert [event.id for event in events] == ["r", "b1", "c1"]


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "semaphore", "limit": 1},
        {"owner": "a", "shared": True},
        {"permits": 2},
        {"limit": 2},
    ],
)
def test_what_does_not_fit_to_what_is_there_is_refused(options):
    lock, _ = locks.acquire(Lock(), want("a"), 0, 1)
    assert locks.acquire(lock, want(**{"owner": "b", "id": "x", **options}), 0, 2) == (lock, [Refused("x", "mismatch")])


def test_a_wait_ends_at_its_time_and_a_try_at_once():
    lock, _ = locks.acquire(Lock(), want("a", ttl_ms=1000), 0, 1)
    assert locks.acquire(lock, want("b", wait_ms=0), 0, 2) == (lock, [Refused("b1", "busy")])
    waits, _ = locks.acquire(lock, want("b", wait_ms=5), 0, 2)
    assert locks.due_ms(waits) == 5
    assert locks.tick(waits, 4) == (waits, [])
    assert locks.tick(waits, 5) == (lock, [Refused("b1", "timeout")])


def test_who_waits_too_long_gets_nothing_though_the_lease_ended_first():
    lock, _ = locks.acquire(Lock(), want("a"), 0, 1)
    lock, _ = locks.acquire(lock, want("b", wait_ms=50), 0, 2)
    assert locks.tick(lock, 60)[1] == [Refused("b1", "timeout"), Expired("a", 1)]


def test_a_limit_on_those_who_wait():
    lock, _ = locks.acquire(Lock(), want("a"), 0, 1)
    for number in range(locks.MAX_WAITERS):
        lock, events = locks.acquire(lock, want(f"w{number}"), 0, 2)
        assert events == []
    assert locks.acquire(lock, want("x"), 0, 3) == (lock, [Refused("x1", "crowded")])
    assert locks.acquire(lock, want("a", "a2"), 0, 3)[1] == [Granted("a2", 1, 10, 0, 2)]


def test_who_gives_up_and_what_is_broken_leave_no_trace_but_the_token():
    lock, _ = locks.acquire(Lock(), want("a"), 0, 1)
    lock, _ = locks.acquire(lock, want("b"), 0, 2)
    lock, _ = locks.acquire(lock, want("c"), 0, 3)
    lock, events = locks.give_up(lock, "g", "b", 1)
    assert events == [Refused("b1", "broken"), Released("g", 0)]
    lock, events = locks.give_up(lock, "g", "a", 1)
    assert events == [Released("g", 0), Granted("c1", 3, 11, 1, 1)]
    lock, events = locks.break_all(lock, "x", 2)
    assert (lock, events) == (Lock(last_token=3), [Expired("c", 3), Released("x", 0)])


def test_a_claim_is_released_renewed_and_given_up_by_itself():
    lock, _ = locks.acquire(Lock(), want("a", claim="one"), 0, 5)
    lock, events = locks.acquire(lock, want("a", "a2", claim="two"), 0, 6)
    assert events == [Granted("a2", 5, 10, 0, 2)]
    # Another of the owner's that waits, for what it may not have together.
    lock, _ = locks.acquire(lock, want("b", claim="three"), 0, 7)
    assert locks.give_up(lock, "g", "a", 1, claim="three") == (lock, [Released("g", 0)])
    for claim in ("three", "four"):
        assert locks.release(lock, "r", "a", 5, 1, claim=claim) == (lock, [Refused("r", "expired")])
        assert locks.renew(lock, "r", "a", 5, 10, 1, claim=claim) == (lock, [Refused("r", "expired")])
    lock, events = locks.release(lock, "r", "a", 5, 1, claim="one")
    assert events == [Released("r", 1)]
    assert lock.holders[0].claims == ("two",)
    assert locks.release(lock, "r", "a", 5, 1, claim="one") == (lock, [Refused("r", "expired")])
    lock, events = locks.give_up(lock, "g", "a", 1, claim="two")
    assert events == [Released("g", 0), Granted("b1", 7, 11, 1, 1)]


def test_an_owner_that_asks_anew_has_one_claim_only_and_keeps_its_place():
    lock, _ = locks.acquire(Lock(), want("a", claim="one", anew=True), 0, 5)
    lock, _ = locks.acquire(lock, want("b", claim="old", anew=True), 0, 6)
    lock, _ = locks.acquire(lock, want("c"), 0, 7)
    lock, events = locks.acquire(lock, want("a", "a2", claim="two", anew=True), 1, 8)
    assert events == [Granted("a2", 5, 11, 0, 1)]
    lock, events = locks.acquire(lock, want("b", "b2", claim="new", anew=True, shared=True), 1, 9)
    assert events == [Refused("b1", "broken")]
    assert [waiter.want.id for waiter in lock.waiters] == ["b2", "c1"]
    # The program that was taken for dead wakes up.
    for step in (
        locks.release(lock, "r", "a", 5, 2, claim="one"),
        locks.give_up(lock, "g", "a", 2, claim="one"),
        locks.give_up(lock, "g", "b", 2, claim="old"),
    ):
        assert step[0] == lock
    _, events = locks.release(lock, "r", "a", 5, 2, claim="two")
    assert events == [Released("r", 0), Granted("b2", 9, 12, 1, 1)]


def test_who_waited_long_has_a_short_lease_first():
    first = locks.FIRST_LEASE_MS
    ttl_ms = 6 * first
    lock, _ = locks.acquire(Lock(), want("a", ttl_ms=ttl_ms), 0, 1)
    lock, _ = locks.acquire(lock, want("b", ttl_ms=ttl_ms, wait_ms=10 * ttl_ms), 0, 2)
    lock, _ = locks.acquire(lock, want("c", ttl_ms=ttl_ms, wait_ms=10 * ttl_ms), 2 * first, 3)
    lock, events = locks.release(lock, "r", "a", 1, 2 * first + 1)
    assert events[1] == Granted("b1", 2, 3 * first + 1, 2 * first + 1, 1)
    lock, events = locks.release(lock, "r", "b", 2, 2 * first + 2)
    # A third of its lease isn't over yet: it counts from the request.
    assert events[1] == Granted("c1", 3, 8 * first + 2, 2, 1)
    lock, _ = locks.acquire(lock, want("c", "c2", ttl_ms=10), 2 * first + 3, 4)
    assert lock.holders[0].expires_ms == 8 * first + 2


def test_a_holder_takes_it_no_more_often_than_that():
    lock, _ = locks.acquire(Lock(), want("a", claim="0"), 0, 1)
    for number in range(1, locks.MAX_CLAIMS):
        lock, _ = locks.acquire(lock, want("a", claim=str(number)), 0, 2)
    assert locks.acquire(lock, want("a", "x", claim="x"), 0, 3) == (lock, [Refused("x", "crowded")])
    lock, events = locks.acquire(lock, want("a", "x", claim="x", anew=True), 0, 3)
    assert events == [Granted("x", 1, 10, 0, 1)]


def test_a_request_that_is_refused_changes_nothing():
    wanted = want("a", kind="semaphore", limit=2, permits=3)
    assert locks.acquire(Lock(), wanted, 0, 1) == (Lock(), [Refused("a1", "mismatch")])


class LockMachine(RuleBasedStateMachine):
    """The history is kept by the test alone: who was told that it holds what until when, and who waits since when."""

    grants = Bundle("grants")

    def __init__(self) -> None:
        super().__init__()
        self.lock = Lock()
        self.now = self.offset = self.count = 0
        self.told: dict[str, tuple[int, int, bool, int]] = {}
        self.waiting: list[str] = []
        self.wants: dict[str, Want] = {}
        self.tokens: list[int] = [0]

    def take(self, step: locks.Step) -> list[tuple[str, int]]:
        self.lock, events = step
        new = []
        for event in events:
            if isinstance(event, Refused) and event.id in self.waiting:
                self.waiting.remove(event.id)
            elif isinstance(event, Expired):
                token, ends, *_ = self.told.pop(event.owner)
                assert token == event.token
                assert ends <= self.now, "a lease ended before its time"
            elif isinstance(event, Granted):
                new.append(self.granted(event))
        return new

    def granted(self, event: Granted) -> tuple[str, int]:
        wanted = self.wants[event.id]
        if wanted.owner in self.told:
            assert event.token == self.told[wanted.owner][0]
        else:
            assert event.token > self.tokens[-1], "tokens only grow"
            assert event.token >= self.offset_of[event.id]
            self.tokens.append(event.token)
            ahead = self.waiting[: self.waiting.index(event.id)]
            assert not ahead, f"{event.id} overtook {ahead}"
        self.waiting.remove(event.id)
        self.told[wanted.owner] = (event.token, event.expires_ms, wanted.shared, wanted.permits)
        return wanted.owner, event.token

    offset_of: dict[str, int]

    @rule(
        target=grants,
        owner=OWNERS,
        shared=st.booleans(),
        permits=st.integers(1, 2),
        kind=st.sampled_from(["lock", "lock", "semaphore"]),
        ttl_ms=st.integers(1, 30),
        wait_ms=st.sampled_from([0, 5, 1000]),
        step=st.integers(-3, 5),
    )
    def acquire(self, owner, shared, permits, kind, ttl_ms, wait_ms, step):
        self.offset = max(0, self.offset + step)
        self.count += 1
        is_lock = kind == "lock"
        wanted = Want(
            id=str(self.count),
            owner=owner,
            kind=kind,
            shared=shared and is_lock,
            permits=1 if is_lock else permits,
            limit=1 if is_lock else 3,
            ttl_ms=ttl_ms,
            wait_ms=wait_ms,
        )
        self.wants[wanted.id] = wanted
        self.offset_of = {**getattr(self, "offset_of", {}), wanted.id: self.offset}
        self.waiting.append(wanted.id)
        return multiple(*self.take(locks.acquire(self.lock, wanted, self.now, self.offset)))

    @rule(target=grants, grant=consumes(grants))
    def release(self, grant):
        owner, token = grant
        step = locks.release(self.lock, "r", owner, token, self.now)
        self.let_go(owner, token, step[1])
        return multiple(*self.take(step))

    @rule(target=grants, grant=grants, ttl_ms=st.integers(1, 30))
    def renew(self, grant, ttl_ms):
        owner, token = grant
        step = locks.renew(self.lock, "r", owner, token, ttl_ms, self.now)
        holds = self.told.get(owner, (0, 0))
        is_valid = holds[0] == token and holds[1] > self.now
        renewed = [event for event in step[1] if isinstance(event, Renewed)]
        assert bool(renewed) == is_valid
        new = self.take(step)
        if renewed:
            self.told[owner] = (token, renewed[0].expires_ms, *self.told[owner][2:])
        return multiple(*new)

    @rule(target=grants, owner=OWNERS)
    def give_up(self, owner):
        step = locks.give_up(self.lock, "r", owner, self.now)
        new = self.take(step)
        # It may have been granted in this very step, because another's lease was over.
        self.told.pop(owner, None)
        return multiple(*new)

    @rule(target=grants, passed=st.integers(1, 40))
    def time_passes(self, passed):
        self.now += passed
        return multiple(*self.take(locks.tick(self.lock, self.now)))

    @rule(passed=st.integers(1, 20))
    def time_passes_unnoticed(self, passed):
        self.now += passed

    def let_go(self, owner, token, events):
        for event in events:
            if isinstance(event, Released) and event.count == 0:
                assert self.told.pop(owner)[0] == token

    @invariant()
    def holders_do_not_exclude_each_other(self):
        holds = [told for told in self.told.values() if told[1] > self.now]
        if self.lock.kind == "semaphore":
            assert sum(permits for *_, permits in self.told.values()) <= 3
        else:
            assert len(self.told) <= 1 or all(shared for _, _, shared, _ in self.told.values())
        assert len(holds) <= len(self.lock.holders)

    @invariant()
    def waiters_are_in_order_and_none_waits_for_nothing(self):
        assert [waiter.want.id for waiter in self.lock.waiters] == self.waiting
        assert self.lock.holders or not self.waiting, "nobody holds it, and somebody waits"

    def teardown(self):
        """Nobody starves: with nothing asked any more, all are served or told, in the time that they agreed to."""
        for _ in range(len(self.waiting) + 1):
            self.now += 30
            self.take(locks.tick(self.lock, self.now))
        assert self.waiting == []


TestLocks = LockMachine.TestCase
TestLocks.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
