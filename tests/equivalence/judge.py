"""Kafka Streams' own `TopologyTestDriver`, in one JVM for all cases."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from actors.local_kafka.jars import java
from benchmarks.peers.java_build import ensure_built
from tests.equivalence import join_cases
from tests.equivalence.generate import EVERY, Case

SOURCES = Path(__file__).parent / "judge"
NEEDS = (
    "org.apache.kafka:kafka-streams:4.3.1",
    "org.apache.kafka:kafka-streams-test-utils:4.3.1",
    "com.fasterxml.jackson.core:jackson-databind:2.21.2",
    "org.slf4j:slf4j-simple:1.7.36",
)
RETENTION_MS = 86_400_000
"""Longer than any case, so that no window expires: what a store forgets isn't what windows are."""
MEMORY, ROCKSDB = "memory", "rocksdb"

Output = tuple[Any, ...]
"""Of windows (key, window's start, its end, value, timestamp), where a null value is a tombstone; of joins (key, left
value, right value, timestamp)."""


class JudgeError(Exception):
    """The judge gave no answer."""


class Judge:
    """Kafka Streams; use it in a `with` block."""

    def __init__(self, process: subprocess.Popen[str], folder: tempfile.TemporaryDirectory[str]) -> None:
        self._process = process
        self._folder = folder

    @classmethod
    def start(cls) -> Self:
        """Start the JVM, and build its program if it is the first time."""
        jars = ensure_built(SOURCES, "equivalence-judge", NEEDS)
        folder = tempfile.TemporaryDirectory(prefix="equivalence-")
        quick = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m"]
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        command = [java(), *quick, quiet, "-cp", f"{jars}/*", "judge.Judge", f"{folder.name}/state"]
        with Path(folder.name, "log").open("w") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, encoding="utf-8"
            )
        return cls(process, folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the JVM. May be called twice."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()
        self._folder.cleanup()

    def ask(self, cases: Iterable[Case | join_cases.Case], *, store: str = MEMORY) -> list[list[list[Output]]]:
        """Return the outputs of each record of each case; those of an interval twice, see `every.Both`."""
        return [self._judged(case, store) for case in cases]

    def _judged(self, case: Case | join_cases.Case, store: str) -> list[list[Output]]:
        question = _question(case, store)
        if question.get("emit") != EVERY:
            return self.answer(case.seed, question)
        updates, suppressed = (self.answer(case.seed, question | {"emit": emit}) for emit in ("updates", "suppressed"))
        return [[tuple(one), tuple(other)] for one, other in zip(updates, suppressed, strict=True)]

    def answer(self, seed: str, question: Mapping[str, Any]) -> list[list[Any]]:
        """Return the outputs of each record of a question, as the judge's Java classes describe both."""
        questions, answers = _open(self._process.stdin), _open(self._process.stdout)
        try:
            questions.write(json.dumps(question) + "\n")
            questions.flush()
            line = answers.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            log = Path(self._folder.name, "log").read_text()[-2000:]
            raise JudgeError(f"the judge's JVM ended at case {seed}: {log}")
        answer = json.loads(line)
        if isinstance(answer, dict):
            raise JudgeError(f"Kafka Streams failed at case {seed}: {answer['error']}")
        return [[tuple(output) for output in outputs] for outputs in answer]


def _question(case: Case | join_cases.Case, store: str) -> dict[str, Any]:
    if isinstance(case, join_cases.Case):
        return case.question(store)
    config = case.config
    records: Sequence[tuple[str, int | None, int]] = [(one.key, one.value, one.timestamp_ms) for one in case.records]
    return {
        "kind": config.kind,
        "size": config.size_ms,
        "advance": config.advance_ms,
        "grace": config.grace_ms,
        "retention": RETENTION_MS,
        "emit": config.emit,
        "every": config.every_ms,
        "aggregate": config.aggregate,
        "store": store,
        "records": records,
    }


def _open(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:
        raise JudgeError("the judge was started without pipes")
    return pipe
