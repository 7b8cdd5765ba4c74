"""When a record and its commit went from one step to the next, inside of ours, for `--phases`.

Wraps functions of the engine and of its Kafka side. A line of the file is a commit: when it was handed in, begun, and
had its offsets, its records and its end; and of each record its value, when a fetch's response with it came, when it
was put into its task's inbox, and when its handler began. All in nanoseconds of the machine's monotonic clock.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from actors._kafka.consume.fetching import FetchesById
from actors._kafka.produce.writer import TransactionWriter
from actors.ports import CommitBatch, Identity
from actors.runtime.committer import Committer, CommitterLog
from actors.runtime.inputs.inbox import Inbox

Handler = Callable[[Any, Any], Coroutine[Any, Any, None]]
now_ns = time.perf_counter_ns


class Phases:
    """Notes times; one for the process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._response_ns = 0
        self._steps: dict[bytes, list[int]] = {}
        self._handed_in_ns: dict[int, int] = {}
        self._commit: list[int] = []

    def watch(self) -> None:
        """Wrap what a record passes."""
        after, put, commit, write = FetchesById.after, Inbox.put, Committer.commit, TransactionWriter.write

        def after_noted(hook: FetchesById, node: Any, request: Any, response: Any) -> Any:
            self._response_ns = now_ns()
            return after(hook, node, request, response)

        def put_noted(inbox: Inbox, index: int, records: Sequence[Any]) -> None:
            at_ns = now_ns()
            self._steps.update((record.value, [self._response_ns, at_ns]) for record in records)
            put(inbox, index, records)

        async def commit_noted(committer: Committer, log: CommitterLog, batch: CommitBatch) -> Any:
            self._handed_in_ns[id(batch)] = now_ns()
            return await commit(committer, log, batch)

        async def write_noted(writer: TransactionWriter, identity: Identity, batches: Sequence[CommitBatch]) -> Any:
            self._commit = [now_ns()]
            receipts = await write(writer, identity, batches)
            for batch in batches:
                values = [output.value for output in batch.outputs if output.value in self._steps]
                records = [[int(value or 0), *self._steps.pop(value or b"")] for value in values]
                line = [self._handed_in_ns.pop(id(batch), 0), *self._commit], records
                self._file.write(json.dumps(line) + "\n")
            return receipts

        engine: Any = FetchesById, Inbox, Committer
        engine[0].after, engine[1].put, engine[2].commit = after_noted, put_noted, commit_noted
        writer: Any = TransactionWriter
        writer.write = write_noted
        for name in ("_add_offsets", "_append", "_end"):
            setattr(writer, name, self._noting(getattr(writer, name)))

    def _noting(self, step: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(step)
        async def noted(*args: Any, **options: Any) -> Any:
            answer = await step(*args, **options)
            self._commit.append(now_ns())
            return answer

        return noted

    def handling(self, handler: Handler) -> Handler:
        """Return a handler that notes when it begins."""

        @functools.wraps(handler)
        async def noted(ctx: Any, value: Any) -> None:
            if (steps := self._steps.get(value)) is not None:
                steps.append(now_ns())
            await handler(ctx, value)

        return noted
