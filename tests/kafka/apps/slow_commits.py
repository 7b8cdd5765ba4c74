"""Commits that take longer, so that what goes on beside one has time to go wrong."""

from __future__ import annotations

import asyncio
from typing import Any

from actors._kafka.produce.writer import TransactionWriter


def slow_commits(seconds: float) -> None:
    """Have so much time pass between the end of a transaction and what RocksDB has of it."""
    write = TransactionWriter.write

    async def write_slowly(self: TransactionWriter, identity: Any, batches: Any) -> Any:
        receipts = await write(self, identity, batches)
        if any(batch.changelogs for batch in batches):
            await asyncio.sleep(seconds)
        return receipts

    TransactionWriter.write = write_slowly
