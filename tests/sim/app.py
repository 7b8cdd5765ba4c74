"""The simulated app, and what its outputs have to be: the handler, and an oracle that shares no code with it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from actors._core.task.takeover import LostChangelog
from actors.runtime.message.context import Context
from actors.runtime.message.store import Store
from actors.testing.fakes.log import PartitionLog, StoredRecord

APP = "app"
ACTOR = "counter"
INPUT = "inputs"
SECOND = "payments"
"""The other input, in runs with two; a null value is a message there."""
INPUTS = (INPUT, SECOND)
GONE = "gone:"
"""What the handler is told when a value is null."""
ECHO = "echo"
OWNERS = "app-actors-owners"
GROUP = "app-actors"
COUNTS = "counts"
FIRSTS = "firsts"
STORES = (COUNTS, FIRSTS)
PARKED = f"{ACTOR}-parked"
GARBAGE = "garbage"
"""What a handler writes and sends before it raises."""
MAX_RECORD_BYTES = 200
LARGE = "x" * 300
SHOWN = 20
"""How much of a result is echoed, so that a large value is large once."""
POISON = ("1", "11", "01", "1011", "x", "x", "c")
CONTROL_HEADER = "fa-control"
MODEL_OPERATIONS = frozenset(
    ("later", "unlater", "call", "brief", "peek", "unbrief", "doomed", "ask", "visit", "leave", "look", "grow", "order")
) | frozenset(("row", "left", "right", "parcel", "depot", "named", "answered", "outcome"))
"""The operations of the model's parts: the echo tells nothing of what they did (see `tests.sim.part`)."""
SILENT = frozenset(("book", "once", "event"))
"""Operations whose inputs may be skipped, because they came before or came late: they aren't echoed."""
UNDECODABLE = ((b"k0", b"\xff"), (None, b"count:0"), (b"k0", None))


def changelog(store: str) -> str:
    return f"app--{store}-changelog"


def _store(name: str) -> Store[Any, Any]:
    return Store(
        name, encode_key=str.encode, decode_key=bytes.decode, encode_value=_encode_value, decode_value=_decode_value
    )


def _encode_value(value: object) -> bytes:
    return str(value).encode()


def _decode_value(raw: bytes) -> Any:
    text = raw.decode()
    return int(text) if text.isdecimal() else text


@dataclass
class Deployment:
    """What the operator has put into production; a process has what was there when it started.

    `chosen` are all values that `missing_offset` has had. `is_cured` is looked at by each message: it stands for what
    a handler calls.
    """

    is_mended: bool = False
    skips: bool = False
    allow_reprocessing: bool = False
    allow_lost_input: bool = False
    missing_offset: Literal["earliest", "latest"] | None = None
    chosen: set[str] = field(default_factory=set)
    accept_moved: bool = False
    lost_changelog: LostChangelog = LostChangelog.STOP
    is_cured: bool = False
    parks: bool = True
    has_stopped_parking: bool = False

    def choose(self, missing_offset: Literal["earliest", "latest"] | None) -> None:
        """Set where processes that start from now on begin in inputs without an offset."""
        self.missing_offset = missing_offset
        self.chosen |= set() if missing_offset is None else {missing_offset}


def make_handler(  # noqa: C901  one branch an operation
    *, is_mended: bool, attempts: Counter[tuple[str, int, int]]
) -> tuple[tuple[Store[Any, Any], ...], Any]:
    """Stores and handler of one process: a message is `operation:argument`, every message echoes what it saw.

    `poison` raises in those of the `attempts` that its argument names, always ("x", "c") or never, if it is mended.
    """
    counts, firsts = _store(COUNTS), _store(FIRSTS)

    async def fail_if_told(ctx: Context, pattern: str) -> None:
        message = ctx.topic, ctx.partition, ctx.offset
        attempts[message] += 1
        attempt = attempts[message]
        if is_mended or not (pattern in "xc" or pattern[attempt - 1 : attempt] == "1"):
            return
        counts.set(ctx.key, GARBAGE)
        ctx.send(ECHO, key=ctx.key, value=GARBAGE)
        if attempt % 2:
            await asyncio.sleep(0.05)
        firsts.set(ctx.key, GARBAGE)
        counts.delete(ctx.key)
        ctx.send(ECHO, key=ctx.key, value=GARBAGE)
        raise asyncio.CancelledError if pattern == "c" else ValueError(f"attempt {attempt}")

    async def handle(ctx: Context, value: str) -> None:
        operation, _, argument = value.partition(":")
        if operation in ("slow", "count", "poison"):
            seen = counts.get(ctx.key, 0)
            if operation == "slow":
                await asyncio.sleep(float(argument))
            elif operation == "poison":
                await fail_if_told(ctx, argument)
            result: object = seen + 1
            counts.set(ctx.key, seen + 1)
        elif operation == "first":
            result = firsts.put_if_absent(ctx.key, argument)
        elif operation == "reset":
            result = counts.delete(ctx.key)
        elif operation == "large":
            result = argument
            if argument == "state":
                firsts.set(ctx.key, LARGE)
        else:
            result = firsts.delete(ctx.key)
        padding = LARGE if value == "large:echo" else ""
        ctx.send(ECHO, key=ctx.key, value=f"{place(ctx)} {value} {str(result)[:SHOWN]}{padding}")

    return (counts, firsts), handle


# --- the oracle -------------------------------------------------------------------------------------------------------


@dataclass
class Expected:
    """What one partition has to come to: the echo topic in order, the stores, and which input each value comes from."""

    echo: list[tuple[bytes, bytes]] = field(default_factory=list)
    counts: dict[bytes, int] = field(default_factory=dict)
    firsts: dict[bytes, str] = field(default_factory=dict)
    writers: dict[tuple[str, bytes], StoredRecord] = field(default_factory=dict)

    def state(self, store: str) -> dict[bytes, bytes]:
        return {key: str(value).encode() for key, value in getattr(self, store).items()}

    def process(self, record: StoredRecord) -> None:
        if is_control(record) or operation_of(record) in SILENT:
            return
        if not is_decodable(record):
            self.echo.append((b"", f"{place(record)} can't be handled".encode()))
            return
        key, text = record.key, GONE if record.value is None else record.value.decode()
        operation, _, argument = text.partition(":")
        counts, firsts = self.counts, self.firsts
        padding = ""
        if operation in ("slow", "count", "poison"):
            counts[key] = counts.get(key, 0) + 1
            self.writers[COUNTS, key] = record
            result: object = counts[key]
        elif operation == "first":
            result = firsts.get(key)
            if result is None:
                firsts[key], self.writers[FIRSTS, key] = argument, record
        elif operation == "reset":
            result = counts.pop(key, None) is not None
        elif operation == "large":
            result = argument
            if argument == "state":
                firsts[key], self.writers[FIRSTS, key] = LARGE, record
            else:
                padding = LARGE
        elif operation in MODEL_OPERATIONS:
            result = operation
        else:
            result = firsts.pop(key, None) is not None
        self.echo.append((key, f"{place(record)} {text} {str(result)[:SHOWN]}{padding}".encode()))


def expected(records: Iterable[StoredRecord]) -> Expected:
    """What comes of processing these records, one after the other."""
    found = Expected()
    for record in records:
        found.process(record)
    return found


def place(message: Context | StoredRecord) -> str:
    """Give what an echo says of where its input came from."""
    return str(message.offset) if message.topic == INPUT else f"{message.topic}/{message.offset}"


def is_decodable(record: StoredRecord) -> bool:
    if record.key is None or record.value == b"\xff":
        return False
    return record.value is not None or record.topic == SECOND


def is_control(record: StoredRecord) -> bool:
    """Tell whether it is for the runtime, not for the handler."""
    return any(name == CONTROL_HEADER for name, _ in record.headers)


def owes_echo(record: StoredRecord) -> bool:
    return is_decodable(record) and not is_control(record) and operation_of(record) not in SILENT


def operation_of(record: StoredRecord) -> str:
    return (record.value or b"").partition(b":")[0].decode(errors="replace")


def failure_of(record: StoredRecord) -> str | None:
    """The error that a record may stop its partition with."""
    if not is_decodable(record):
        return "UndecodableRecordError"
    operation = (record.value or b"").partition(b":")[0]
    stops = {b"poison": "HandlerFailedError", b"large": "RefusedRecordError", b"grow": "NewerProgramError"}
    return stops.get(operation)


def echoed(log: PartitionLog) -> list[tuple[bytes, bytes]]:
    return [(record.key, record.value) for record in log.history if record.is_committed]


def last_input(log: PartitionLog) -> int:
    """The offset behind the last input that is to be processed."""
    return max((record.offset + 1 for record in log.history if record.is_committed), default=0)


# --- inputs -----------------------------------------------------------------------------------------------------------


def some_input(random: Random, keys: list[str], number: int) -> tuple[bytes, bytes]:
    operation = random.choices(("count", "slow", "first", "reset", "forget"), (10, 1, 4, 3, 2))[0]
    argument = f"{random.uniform(0.01, 0.4):.2f}" if operation == "slow" else str(number)
    return random.choice(keys).encode(), f"{operation}:{argument}".encode()


def bad_input(random: Random, key: bytes, kind: str) -> tuple[bytes | None, bytes | None]:
    """An input that its handler or the broker refuses."""
    if kind == "refused":
        return key, random.choice((b"large:echo", b"large:state"))
    if random.random() < 0.8:
        return key, f"poison:{random.choice(POISON)}".encode()
    return random.choice(UNDECODABLE)
