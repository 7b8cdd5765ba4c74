"""Sends a retry or a drop to the partition's owner, and waits for the outcome.

The command travels as a record of the actor's input: see `actors.runtime.commands`. The owner has carried it out when
the committed offset is behind it, and what the changelog says then is the outcome.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from actors._kafka.admin.control import ControlPlane
from actors._kafka.connection import producing
from actors.admin.host import Setup
from actors.admin.parked.reader import ParkedError, ParkedQueue, ParkedReader
from actors.ports import TopicPartition
from actors.runtime.commands import ALL, Command

if TYPE_CHECKING:
    from actors.declare.definition import ActorDefinition

LOOK_S = 0.1


@dataclass(slots=True)
class AdminCommand:
    """A retry or drop that was sent, and its outcome so far.

    Attributes:
        line: what was parked when the command was given.
        deadline_s: when to stop waiting, by the monotonic clock.
        left: what is there now; None when nothing is.
        gone: the ids that were not found.
    """

    definition: ActorDefinition
    line: ParkedQueue
    setup: Setup
    reader: ParkedReader
    deadline_s: float
    left: ParkedQueue | None = None
    gone: list[str] = field(default_factory=list)

    @property
    def head(self) -> int:
        """The sequence of the first entry that is there now."""
        return (self.left or self.line).head.sequence

    async def send(self, command: str, call_id: str | None = None) -> None:
        """Send a command, wait until it is carried out, and read the line again.

        Raises:
            ParkedError: no owner carried it out in time, or this release can't read what is parked.
            BrokerUnavailableError: the broker doesn't take it.
        """
        line = self.line if self.left is None else self.left
        if not all(entry.is_readable for entry in line.entries):
            raise ParkedError(f"key {line.shown_key!r} has entries of a newer release: use the release that wrote them")
        told = about(line, command, call_id)
        source, (offset,) = told.source, await send_commands(self.setup, self.reader.control, [told])
        while not await self._is_handled(source, offset):
            if time.monotonic() >= self.deadline_s:
                raise ParkedError(
                    f"no owner of {source} carried the command out in time: is a worker running, and not stopped in "
                    f"front of another record? The command is in the topic at offset {offset}, and takes effect when "
                    "its turn comes"
                )
            await asyncio.sleep(LOOK_S)
        await self.look()

    async def look(self) -> None:
        """Read the line again."""
        line = self.line
        self.found(await self.reader.line(self.definition, line.what, line.partition, line.key))

    def found(self, left: ParkedQueue | None) -> None:
        """Note the entries that are left of the line."""
        self.left = left
        here = set() if self.left is None else {entry.id for entry in self.left.entries}
        self.gone = [entry.id for entry in self.line.entries if entry.id not in here]

    async def _is_handled(self, source: TopicPartition, offset: int) -> bool:
        committed = await self.reader.control.committed(source)
        return committed is not None and committed.offset > offset


def about(line: ParkedQueue, command: str, entry_id: str | None, *, is_exact: bool = False) -> Addressed:
    """Return a command about a line."""
    told = Command(actor=line.actor, what=line.what, command=command, id=entry_id)  # type: ignore[arg-type]
    # If the input was re-created, its offsets are below those of what waits.
    least = max(entry.written_by for entry in line.entries) + 1
    return Addressed(TopicPartition(line.topic, line.partition), line.key, told, least, is_exact)


@dataclass(frozen=True, slots=True)
class Addressed:
    """A command, and where it goes. It is about what input wrote before `least`, or before now if that is later."""

    source: TopicPartition
    key: bytes | None
    command: Command
    least: int = 0
    is_exact: bool = False
    """Whether it is about what input wrote before `least` only."""


async def send_commands(setup: Setup, control: ControlPlane, addressed: Sequence[Addressed]) -> list[int]:
    """Sign commands and send them; return their offsets.

    Raises:
        BrokerUnavailableError: the broker doesn't take them.
    """
    sources = {each.source for each in addressed}
    topics = await control.topics(source.topic for source in sources)
    options = {"acks": "all", "enable_idempotence": True}
    async with producing("sending commands", setup.connection, "parked", **options) as producer:
        # As late as can be: what is written to the inputs from here on isn't what the commands are about.
        ends = {source: (await control.bounds(source)).end for source in sources}
        sent = []
        for each in addressed:
            (topic, partition), before = (
                each.source,
                each.least if each.is_exact else max(ends[each.source], each.least),
            )
            told = msgspec.json.encode(msgspec.structs.replace(each.command, before=before))
            headers = setup.command_key(topic, topics[topic]).headers(partition, each.key, told)
            sent.append(await producer.send(topic, told, each.key, partition=partition, headers=headers))
        return [int(written.offset) for written in await asyncio.gather(*sent)]


async def retry(admin_command: AdminCommand) -> None:
    """Hand all of a line to the handler again, or call its parked effect again.

    Raises:
        ParkedError: no owner carried it out in time.
        BrokerUnavailableError: the broker doesn't take the command.
    """
    head = -1
    # One command hands only so many to the handler, and none that came after it was given.
    while head < admin_command.head and time.monotonic() < admin_command.deadline_s:
        head = admin_command.head
        await admin_command.send("retry")
        if admin_command.line.what == "effect" or admin_command.left is None or failure_of(admin_command) is not None:
            break
    while is_pending(admin_command) and time.monotonic() < admin_command.deadline_s:
        await asyncio.sleep(LOOK_S)
        await admin_command.look()


async def drop(admin_command: AdminCommand, ids: Collection[str], *, is_all: bool = False) -> None:
    """Forget these of a line, or all that wait when the command's turn comes.

    Never "the first": a command that is given twice must not drop two.

    Raises:
        ParkedError: no owner carried it out in time.
        BrokerUnavailableError: the broker doesn't take the command.
    """
    if is_all and admin_command.line.what == "message":
        await admin_command.send("drop", ALL)
    else:
        # The parked one last: those behind it would begin to run.
        for dropped in reversed(list(ids)):
            await admin_command.send("drop", dropped)


def failure_of(admin_command: AdminCommand) -> str | None:
    """Return the failure of a line that was retried; None if nothing failed again."""
    left, before = admin_command.left, {entry.sequence: entry for entry in admin_command.line.entries}
    if left is None or (left.what == "effect" and not left.head.is_parked):
        return None
    entry = before.get(left.head.sequence)
    if left.head.error is not None and (entry is None or left.head.attempts != entry.attempts or left.what == "effect"):
        return f"{left.head.id} failed again, {count_of(left)} still parked: {left.head.error}"
    if not admin_command.gone:
        return (
            f"{count_of(left)} still parked, and nothing was tried: see the log of the partition's owner, and whether "
            "its worker_secret or tokens are those of this program"
        )
    return None


def is_pending(admin_command: AdminCommand) -> bool:
    """Return whether effects that were to be called again are neither done nor parked again."""
    left = admin_command.left
    return (
        admin_command.line.what == "effect"
        and left is not None
        and not left.head.is_parked
        and left.head.id == admin_command.line.head.id
    )


def count_of(line: ParkedQueue) -> str:
    """Return how many messages of the key are parked, as text."""
    count = len(line.entries)
    return f"{count} {line.what}{'s are' if count > 1 else ' is'}"
