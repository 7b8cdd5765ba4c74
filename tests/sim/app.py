"""The simulated app, and what its outputs have to be: the handler, and an oracle that shares no code with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from actors.ports import TopicPartition
from actors.runtime.context import Context, Store
from actors.testing import PartitionLog

ACTOR = "counter"
INPUT = "inputs"
ECHO = "echo"
OWNERS = "app-actors-owners"
GROUP = "app-actors"
COUNTS = "counts"
FIRSTS = "firsts"
STORES = (COUNTS, FIRSTS)


def changelog(store: str) -> str:
    return f"app-{store}-changelog"


def transactional_id(partition: int) -> str:
    return f"app-{ACTOR}-{partition}"


def _store(name: str) -> Store[Any, Any]:
    return Store(
        name, encode_key=str.encode, decode_key=bytes.decode, encode_value=_encode_value, decode_value=_decode_value
    )


def _encode_value(value: object) -> bytes:
    return str(value).encode()


def _decode_value(raw: bytes) -> Any:
    text = raw.decode()
    return int(text) if text.isdecimal() else text


def make_handler() -> tuple[tuple[Store[Any, Any], ...], Any]:
    """Stores and handler of one process: a message is `operation:argument`, every message echoes what it saw."""
    counts, firsts = _store(COUNTS), _store(FIRSTS)

    async def handle(ctx: Context, value: str) -> None:
        operation, _, argument = value.partition(":")
        if operation == "slow":
            seen = counts.get(ctx.key, 0)
            await asyncio.sleep(float(argument))
            counts.set(ctx.key, seen + 1)
            result: object = seen + 1
        elif operation == "count":
            result = counts.get(ctx.key, 0) + 1
            counts.set(ctx.key, result)
        elif operation == "first":
            result = firsts.put_if_absent(ctx.key, argument)
        elif operation == "reset":
            result = counts.delete(ctx.key)
        else:
            result = firsts.delete(ctx.key)
        ctx.send(ECHO, key=ctx.key, value=f"{ctx.offset} {value} {result}")

    return (counts, firsts), handle


def expected_echo(inputs: PartitionLog) -> list[tuple[bytes, bytes]]:
    """What one partition of the echo topic has to hold, in order, once all of the input is processed."""
    counts: dict[bytes, int] = {}
    firsts: dict[bytes, str] = {}
    echo = []
    for record in inputs.history:
        if not record.is_committed:
            continue
        key, text = record.key, record.value.decode()
        operation, argument = text.split(":")
        if operation in ("slow", "count"):
            counts[key] = counts.get(key, 0) + 1
            result: object = counts[key]
        elif operation == "first":
            result = firsts.get(key)
            firsts.setdefault(key, argument)
        elif operation == "reset":
            result = counts.pop(key, None) is not None
        else:
            result = firsts.pop(key, None) is not None
        echo.append((key, f"{record.offset} {text} {result}".encode()))
    return echo


def echoed(log: PartitionLog) -> list[tuple[bytes, bytes]]:
    return [(record.key, record.value) for record in log.history if record.is_committed]


def last_input(log: PartitionLog) -> int:
    """The offset behind the last input that is to be processed."""
    return max((record.offset + 1 for record in log.history if record.is_committed), default=0)


def sources(partitions: int) -> Iterable[TopicPartition]:
    return [TopicPartition(INPUT, number) for number in range(partitions)]
