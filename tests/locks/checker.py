"""Reads a history and says what is wrong with it. It knows what the service promises, and nothing of how it does it.

Lock by lock: what overlaps is compared by the clients' own clock, from the answer of a grant to the release or the
lease's end, whichever comes first. The service's view of a lease is wider than that on both sides, so what is found
here is wrong whatever the delays were.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.locks.history import Operation
from tests.locks.plan import KINDS, Kind
from tests.locks.resource import Accepted

RECOVERY_S = 10.0
EXAMPLES = 10
WRONG = (
    "double_holdings",
    "tokens_back",
    "tokens_shared",
    "stale_accepted",
    "holders_refused",
    "starved",
    "overtaken",
    "late_locks",
)


@dataclass(slots=True)
class Findings:
    """How often what was wrong, with the first few cases of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    slowest_lock_s: float = 0.0
    slowest_between_s: float = 0.0

    def add(self, kind: str, text: str) -> None:
        self.counts[kind] += 1
        if self.counts[kind] <= EXAMPLES:
            self.examples.append(f"{kind}: {text}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """All that is known of a run.

    Attributes:
        operations: of all clients.
        accepted: what the resource let through, in its order.
        requests: by the id of an acquisition the place of its request in the service's input, where all requests for
            one lock stand in one order.
        last_fault_s: when the last fault was over.
        kinds: the locks that have to be taken again after it.
        asked: when each of the others was over, and which locks were asked for then.
    """

    operations: Sequence[Operation]
    accepted: Sequence[Accepted] = ()
    requests: Mapping[str, int] = field(default_factory=dict)
    last_fault_s: float | None = None
    kinds: Sequence[Kind] = KINDS
    asked: Sequence[tuple[float, Sequence[Kind]]] = ()


def check(evidence: Evidence) -> Findings:
    """Run every check but that of the nodes."""
    findings = Findings()
    acquisitions = [operation for operation in evidence.operations if operation.call.op == "acquire"]
    by_name: dict[str, list[Operation]] = defaultdict(list)
    for one in acquisitions:
        by_name[one.call.name].append(one)
    for name, tries in by_name.items():
        grants = [one for one in tries if one.outcome == "ok"]
        check_exclusion(name, grants, findings)
        check_tokens(name, grants, findings)
        check_order(name, grants, evidence.requests, findings)
    check_resource(evidence.accepted, acquisitions, findings)
    check_uses(evidence.operations, findings)
    check_starvation(acquisitions, findings)
    if evidence.last_fault_s is not None:
        check_recovery(evidence.kinds, by_name, evidence.last_fault_s, findings)
    for at_s, kinds in evidence.asked:
        slowest_s = max(_granted_after_s(by_name.get(kind.name, ()), at_s) for kind in kinds)
        findings.slowest_between_s = max(findings.slowest_between_s, slowest_s)
    return findings


def check_exclusion(name: str, grants: Iterable[Operation], findings: Findings) -> None:
    """Those who believed to hold it at one time may: one alone, or readers, or so many permits."""
    holding: list[Operation] = []
    for one in sorted((grant for grant in grants if grant.is_holding), key=lambda grant: grant.from_s):
        holding = [other for other in holding if other.believed_until_s > one.from_s]
        if not _may_hold([*holding, one]):
            others = ", ".join(_span(other) for other in holding)
            findings.add("double_holdings", f"{name}: {_span(one)} beside {others}")
        holding.append(one)


def _may_hold(holders: Sequence[Operation]) -> bool:
    limit = holders[0].call.limit
    if limit > 1:
        return sum(one.call.permits for one in holders) <= limit
    return len(holders) == 1 or all(one.call.shared for one in holders)


def check_tokens(name: str, grants: Sequence[Operation], findings: Findings) -> None:
    """Each grant has its own token, and a later grant a greater one."""
    for token, count in Counter(one.token for one in grants).items():
        if count > 1:
            findings.add("tokens_shared", f"{name}: token {token} was given {count} times")
    ordered = sorted(grants, key=lambda one: one.from_s)
    for place, later in enumerate(ordered):
        for earlier in ordered[:place]:
            if earlier.token > later.token and _was_before(earlier, later):
                findings.add("tokens_back", f"{name}: {_span(later)} came after {_span(earlier)}")


def _was_before(earlier: Operation, later: Operation) -> bool:
    """Whether one was certainly granted first: it was answered before the other was asked for, or they exclude
    each other and it held first.
    """
    if earlier.from_s < later.call.at_s:
        return True
    return earlier.is_holding and later.is_holding and not _may_hold([earlier, later])


def check_order(name: str, grants: Iterable[Operation], requests: Mapping[str, int], findings: Findings) -> None:
    """Nobody is overtaken: tokens are in the order of the requests."""
    first: Operation | None = None
    known = [one for one in grants if one.call.id in requests]
    for one in sorted(known, key=lambda grant: requests[grant.call.id]):
        if first is not None and one.token < first.token:
            findings.add("overtaken", f"{name}: {_span(first)} asked before {_span(one)}, which was served first")
        else:
            first = one


def check_resource(accepted: Iterable[Accepted], acquisitions: Iterable[Operation], findings: Findings) -> None:
    """What was let through has tokens that never go back, each of one grant that there was."""
    granted = {(one.call.name, one.token): one.call.id for one in acquisitions if one.outcome == "ok"}
    written: dict[str, int] = {}
    seen: dict[str, int] = {}
    for one in accepted:
        name = one.name
        if granted.get((name, one.token)) != one.acquisition:
            findings.add("stale_accepted", f"{name}: {one.acquisition} had no grant of its own with token {one.token}")
        least = written.get(name, 0) if one.reads else seen.get(name, 0)
        if one.token < least:
            findings.add("stale_accepted", f"{name}: token {one.token} of {one.acquisition} came after {least}")
        if not one.reads:
            written[name] = max(one.token, written.get(name, 0))
        seen[name] = max(one.token, seen.get(name, 0))


def check_uses(operations: Iterable[Operation], findings: Findings) -> None:
    """Nobody is refused by the resource while the lease is held."""
    for one in operations:
        if one.call.op == "use" and one.answer is not None and one.answer.held and one.outcome == "refused":
            findings.add("holders_refused", f"{one.call.name}: {one.call.grant} with token {one.token}, still held")


def check_starvation(acquisitions: Iterable[Operation], findings: Findings) -> None:
    """Who waits patiently is served, or was and came too late to hold it."""
    for one in acquisitions:
        if one.call.patient and one.outcome not in {"ok", "lost"}:
            findings.add("starved", f"{one.call.name}: {one.call.id} asked at {one.call.at_s:.3f}: {one.outcome}")


def check_recovery(
    kinds: Iterable[Kind], by_name: Mapping[str, Sequence[Operation]], last_fault_s: float, findings: Findings
) -> None:
    """Each lock is granted to somebody within its ttl and a bit after the last fault."""
    for kind in kinds:
        took_s = _granted_after_s(by_name.get(kind.name, ()), last_fault_s)
        findings.slowest_lock_s = max(findings.slowest_lock_s, took_s)
        if took_s > kind.ttl_s + RECOVERY_S:
            findings.add(
                "late_locks", f"{kind.name}: {took_s:.1f} s after the last fault, with a ttl of {kind.ttl_s} s"
            )


def _granted_after_s(tries: Iterable[Operation], at_s: float) -> float:
    later = (one.from_s for one in tries if one.outcome == "ok" and one.from_s > at_s)
    return min(later, default=float("inf")) - at_s


def _span(one: Operation) -> str:
    return f"{one.call.id} (token {one.token}, {one.from_s:.3f} to {one.believed_until_s:.3f})"
