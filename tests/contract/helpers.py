"""What the contract's tests share: batches to commit, and what is read back."""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

from actors.errors import (
    UnstableOffsetError,
)
from actors.ports import CommitBatch, Committed, TopicPartition
from stores._core.record import encode_metadata
from tests.contract.worlds import World
from tests.kafka.helpers import eventually

METADATA = encode_metadata(1, 0)


def batch(topic: str, offset: int = 7, **parts: Any) -> CommitBatch:
    committed = Committed(offset, f"1;{offset};{uuid.uuid4().hex[:6]}")
    return CommitBatch(0, {TopicPartition(topic, 0): committed}, **parts)


def source_of(batch: CommitBatch) -> TopicPartition:
    """Return the input partition whose offset a batch has."""
    return next(iter(batch.offsets))


async def read(world: World, topic: str, start: int = 0, end: int | None = None) -> list[tuple[int, bytes | None]]:
    source = TopicPartition(topic, 0)
    end = (await world.logs.bounds(source)).end if end is None else end
    found, reached = [], start
    async for records, next_offset in world.logs.read(source, start, end):
        assert reached < next_offset <= end
        reached = next_offset
        found += [(record.offset, record.value) for record in records]
    assert reached == max(start, end)
    return found


async def settled(world: World, source: TopicPartition) -> Committed | None:
    """Return the committed offset when no transaction can change it any more."""

    async def is_stable() -> bool:
        with contextlib.suppress(UnstableOffsetError):
            found.append(await world.group.stable_offset(source))
        return bool(found)

    found: list[Committed | None] = []
    await eventually(is_stable)
    return found[0]
