"""What clients saw of the nodes, as a history that Porcupine judges."""

from __future__ import annotations

from collections.abc import Iterable

from tests.judges.porcupine import Verdict, judge
from tests.locks.history import Operation

OPS = ("get", "put", "delete")


def check_nodes(operations: Iterable[Operation]) -> Verdict:
    """Look for an order of each node's operations that explains every answer, and obeys the clock."""
    history = [_plain(one) for one in operations if one.call.op in OPS]
    # A read without an answer changes nothing and says nothing.
    return judge("nodes", [one for one in history if not (one["op"] == "get" and one["outcome"] == "unknown")])


def _plain(one: Operation) -> dict[str, object]:
    call, answer = one.call, one.answer
    is_read = call.op == "get"
    return {
        "on": call.name,
        "op": call.op,
        "expected": call.expected,
        "data": answer.data if is_read and answer is not None else call.data,
        "outcome": {"ok": "ok", "refused": "conflict"}.get(one.outcome, "unknown"),
        "version": 0 if answer is None else answer.version,
        "call_ns": int(call.at_s * 1e9),
        "return_ns": 0 if answer is None else int(answer.at_s * 1e9),
    }
