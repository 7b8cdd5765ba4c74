"""Measures the ways through the code: functions, files and lines of a record, an ask, a query and a validation.

    python -m dev.paths            the figures
    python -m dev.paths -v         with every function
    python -m dev.paths record     of one way only

A way lists the functions that run for the usual case, in order: no errors, no retries, no start. Left out is what only
asks whether something is due, clean or allowed, and what encodes a value. A function that doesn't exist is an error, so
the lists follow the code. Lines are those of a function's definition without its docstring.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

WAYS: Mapping[str, Sequence[tuple[str, str]]] = {
    "record: poll to RocksDB": (
        ("actors/_kafka/consume/consumer.py", "KafkaSource.poll"),
        ("actors/runtime/worker.py", "Worker._dispatch Worker._put"),
        (
            "actors/runtime/inputs/inbox.py",
            "Inbox.has_room Inbox.put take_in_order Inbox.take Inbox._took PlacedRecords.checked "
            "PlacedRecords._misplaced",
        ),
        (
            "actors/runtime/task/context.py",
            "TaskContext.advance TaskContext.marked TaskContext.batch",
        ),
        (
            "actors/runtime/task/processor.py",
            "TaskProcessor.work TaskProcessor._work TaskProcessor.runs TaskProcessor.begin "
            "TaskProcessor.commit_if_due TaskProcessor.is_large TaskProcessor.begin_commit TaskProcessor._freeze "
            "TaskProcessor._carry_out",
        ),
        (
            "actors/runtime/task/in_order.py",
            "InOrder.advance InOrder.handle InOrder._handle InOrder._turn_to InOrder._go_home InOrder._pause",
        ),
        ("actors/runtime/message/context.py", "Context.__init__"),
        (
            "actors/runtime/message/store.py",
            "Store.get Store.set Store._place Store._reach Store._write",
        ),
        ("stores/_core/overlay.py", "Overlay.get Overlay.set Overlay.freeze Overlay.settle with_metadata"),
        (
            "actors/runtime/committer.py",
            "Committer.commit Committer._run Committer._take Committer._together Committer._written "
            "CommitterLog.commit",
        ),
        (
            "actors/_kafka/produce/writer.py",
            "TransactionWriter.write TransactionWriter._write TransactionWriter._packed TransactionWriter._add_offsets "
            "TransactionWriter._append TransactionWriter._end TransactionWriter._request TransactionWriter._send_once",
        ),
        ("actors/_kafka/produce/batches.py", "changelog_records pack Batch.encode"),
        ("actors/_kafka/produce/sending.py", "append _round _settle Sequences.encode Sequences.sent"),
        ("actors/runtime/state/stores.py", "store_commit"),
        ("stores/rocks.py", "RocksStore.apply RocksStore._write"),
    ),
    "ask: ctx.ask to its reply": (
        ("actors/runtime/message/context.py", "Context.ask Context.next_id"),
        (
            "actors/runtime/requests/requests.py",
            "Asker.ask EncodedRequest.of _chain_in _refuse_cycle _unanswered Asker._waiting deadline_header carry "
            "question_headers Waiting.question Waiting.deliver EncodedRequest.open",
        ),
        ("actors/_core/values/ids.py", "id_of digest_of message_id"),
        ("actors/_kafka/requests.py", "KafkaRequests.ask"),
        ("actors/runtime/task/handling.py", "Handling.message Handling.once Handling._read"),
        (
            "actors/runtime/requests/replies.py",
            "Replies.around _RequestHeaders.of Replies._answer Replies._is_late ReplyTypes.codec_for Replies._give "
            "Replies._send",
        ),
    ),
    "query: a key's value from its owner": (
        ("actors/web/access/guard.py", "Guard._enter Guard._seat Guard.admit"),
        (
            "actors/web/queries/server.py",
            "QueryRoutes.measured QueryRoutes.one QueryRoutes._store _partition QueryRoutes._router "
            "QueryRoutes.at_the_owner reply",
        ),
        ("actors/web/queries/coding.py", "KeyCoding.key_of_url KeyCoding._decoded StoreCoding.plain_value"),
        (
            "actors/runtime/queries/queries.py",
            "StateReader.has StateReader.hold StateReader._owned StateReader._commit_ended StateReader._ready "
            "HeldTask.of read",
        ),
        ("actors/runtime/queries/read_lease.py", "ReadLease.holds"),
        ("actors/web/queries/answers.py", "one_value position_of"),
    ),
    "validate: exports against their changelog": (
        ("spark_replay/cli/validate.py", "validate _require_one_side _compare unanswered"),
        (
            "spark_replay/comparison/validate.py",
            "validate_exports comparable _compare_readable compare_held _judged _summarised _require_read",
        ),
        ("spark_replay/comparison/exports.py", "open_side kind_of find_exports _read _choose _read_files"),
        ("spark_replay/comparison/judging.py", "held_point judge"),
        ("spark_replay/fold/settled.py", "settle"),
        ("spark_replay/fold/fold.py", "last_writes live"),
        ("spark_replay/comparison/report.py", "report kind_counts cause_counts named_examples"),
    ),
}


@dataclass(frozen=True, slots=True)
class Way:
    """One way: its functions with their lines, and in how many files they are."""

    functions: Sequence[tuple[str, str, int]]

    @property
    def files(self) -> int:
        """How many files."""
        return len({path for path, _, _ in self.functions})

    @property
    def lines(self) -> int:
        """How many lines, without docstrings."""
        return sum(lines for _, _, lines in self.functions)


@cache
def _functions(path: str) -> Mapping[str, int]:
    """Return the lines of each function of a file, by qualified name."""
    found: dict[str, int] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found[prefix + child.name] = _lines(child)

    visit(ast.parse((ROOT / path).read_text()), "")
    return found


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        first = function.body[0]
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def measure(way: Sequence[tuple[str, str]]) -> Way:
    """Look up the functions of a way.

    Raises:
        LookupError: one doesn't exist.
    """
    found = []
    for path, names in way:
        known = _functions(path)
        for name in names.split():
            if name not in known:
                raise LookupError(f"{path} has no function {name}: correct the list in dev/paths.py")
            found.append((path, name, known[name]))
    return Way(found)


def main(arguments: Sequence[str]) -> int:
    """Print the figures of the ways that are named, or of all."""
    wanted = [name for name in arguments if name != "-v"]
    for name, listed in WAYS.items():
        if wanted and name.partition(":")[0] not in wanted:
            continue
        way = measure(listed)
        print(f"{name}: {len(way.functions)} functions, {way.files} files, {way.lines} lines")
        if "-v" in arguments:
            for path, function, lines in way.functions:
                print(f"  {lines:4} {path} {function}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
