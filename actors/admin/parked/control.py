"""Retries and drops what is parked, of one key or of many: sends commands to the owners, and waits for the outcome.

A command travels as a record of the actor's input: see `actors.runtime.commands`. The owner has carried it out when
the committed offset is behind it, and what the changelog says then is the outcome. A partition gets all its commands at
once, and is read once for their outcomes.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from actors._faust.setup import Setup
from actors._kafka.admin.control import ControlPlane
from actors._kafka.client import producing
from actors.admin.parked.reader import ParkedQueue, ParkedReader, What
from actors.ports import TopicPartition
from actors.runtime.commands import ALL, Command

LOOK_S = 0.1
BATCH_LINES = 1_000
"""How many keys have commands under way at a time."""


@dataclass(slots=True)
class Resolution:
    """The outcome of a retry or drop for the line of one key.

    Attributes:
        line: what was parked when the command was given.
        left: what is there now; None when nothing is.
        failure: why something of it is still parked.
    """

    line: ParkedQueue
    left: ParkedQueue | None
    failure: str | None = None

    @property
    def head(self) -> int:
        """The sequence of the first entry that is there now."""
        return (self.left or self.line).head.sequence

    @property
    def gone(self) -> list[str]:
        """The ids that are parked no more."""
        ids = set() if self.left is None else {entry.id for entry in self.left.entries}
        return [entry.id for entry in self.line.entries if entry.id not in ids]

    @property
    def is_pending(self) -> bool:
        """True while an effect that was to be called again is neither done nor parked again."""
        left, is_effect = self.left, self.line.what == "effect"
        return is_effect and left is not None and not left.head.is_parked and left.head.id == self.line.head.id

    @property
    def rest(self) -> str:
        """The entries that are left, as text."""
        if self.left is None:
            return "nothing of the key is parked any more"
        if self.left.what == "effect" and not self.left.head.is_parked:
            return "the next is being called"
        return f"{_count(self.left)} still parked"

    def failed_again(self) -> str | None:
        """Return why a retry failed, None unless it did."""
        left, entries = self.left, {entry.sequence: entry for entry in self.line.entries}
        if left is None or (left.what == "effect" and not left.head.is_parked):
            return None
        before = entries.get(left.head.sequence)
        if left.head.error is not None and (
            before is None or left.head.attempts != before.attempts or left.what == "effect"
        ):
            return f"{left.head.id} failed again, {self.rest}: {left.head.error}"
        if not self.gone:
            return (
                f"{self.rest}, and nothing was tried: see the log of the partition's owner, and whether its "
                "worker_secret or tokens are those of this program"
            )
        return None


class Control:
    """Retries or drops lines. `outcomes` has one for each, in their order.

    Args:
        setup: the app's settings.
        reader: a connection.
        lines: what is parked.
        timeout_s: how long to wait for the owners; it begins again with each round.
    """

    def __init__(self, setup: Setup, reader: ParkedReader, lines: Iterable[ParkedQueue], timeout_s: float) -> None:
        self._setup = setup
        self._reader = reader
        self._timeout_s = timeout_s
        self.outcomes = [Resolution(line, line) for line in lines]

    async def retry(self) -> None:
        """Hand all lines to their handlers again, each up to the first message that fails.

        Raises:
            BrokerUnavailableError: the broker doesn't take the commands.
        """
        for group in self._groups():
            until_s = time.monotonic() + self._timeout_s
            while group:
                heads = [outcome.head for outcome in group]
                await self._give(group, lambda line: [("retry", None)])
                for outcome in group:
                    outcome.failure = outcome.failure or outcome.failed_again()
                # One command hands only so many to the handler, and none that came after it was given.
                group = [
                    outcome for outcome, head in zip(group, heads, strict=True) if _goes_on(outcome, head, until_s)
                ]

    async def drop(self, entry_id: str | None = None) -> None:
        """Drop the entry of that id, or all that were read; entries that came later stay.

        Never "the first": a command that is given twice must not drop two.

        Raises:
            BrokerUnavailableError: the broker doesn't take the commands.
        """
        for group in self._groups():
            await self._give(group, lambda line: _drops(line, entry_id))
            for outcome in group:
                ids = {entry.id for entry in outcome.line.entries} if entry_id is None else {entry_id}
                missed = len(ids - {*outcome.gone})
                if missed and outcome.failure is None:
                    outcome.failure = f"{missed} of {len(ids)} not dropped: see the log of the partition's owner"

    def _groups(self) -> Iterable[list[Resolution]]:
        readable = []
        for outcome in self.outcomes:
            if all(entry.is_readable for entry in outcome.line.entries):
                readable.append(outcome)
            else:
                outcome.failure = "it has entries of a newer release: use the release that wrote them"
        for start in range(0, len(readable), BATCH_LINES):
            yield readable[start : start + BATCH_LINES]

    async def _give(
        self, outcomes: Sequence[Resolution], commands: Callable[[ParkedQueue], Sequence[tuple[str, str | None]]]
    ) -> None:
        """Send commands for some keys, wait until they are carried out, and read the lines again."""
        addressed = [
            _addressed(outcome.left or outcome.line, command, entry_id)
            for outcome in outcomes
            for command, entry_id in commands(outcome.line)
        ]
        ends: dict[TopicPartition, int] = {}
        offsets = await send_commands(self._setup, self._reader.control, addressed)
        for each, offset in zip(addressed, offsets, strict=True):
            ends[each.source] = max(ends.get(each.source, 0), offset)
        deadline_s, waiting = time.monotonic() + self._timeout_s, dict(ends)
        while waiting:
            for source, offset in ends.items():
                committed = await self._reader.control.committed(source) if source in waiting else None
                if committed is not None and committed.offset > offset:
                    del waiting[source]
            if waiting and time.monotonic() >= deadline_s:
                break
            await asyncio.sleep(LOOK_S if waiting else 0)
        for outcome in outcomes:
            if (source := outcome.line.source) in waiting:
                outcome.failure = (
                    f"no owner of {source} carried the command out in time: is a worker running, and neither paused "
                    "nor stopped in front of another record? The command is in the topic at offset "
                    f"{waiting[source]}, and takes effect when its turn comes"
                )
        await self._look(outcomes)
        while any(outcome.is_pending for outcome in outcomes) and time.monotonic() < deadline_s:
            await asyncio.sleep(LOOK_S)
            await self._look(outcomes)

    async def _look(self, outcomes: Iterable[Resolution]) -> None:
        """Look what is there now of some lines, with one read of each partition."""
        parts: dict[tuple[str, What, int], dict[bytes, Resolution]] = defaultdict(dict)
        for outcome in outcomes:
            line = outcome.line
            parts[line.actor, line.what, line.partition][line.key] = outcome
        for (actor, what, partition), by_key in parts.items():
            lines = await self._reader.part(self._setup.app.actors[actor], what, partition, by_key)
            for key, outcome in by_key.items():
                outcome.left = lines.get(key)


def _goes_on(outcome: Resolution, head: int, until_s: float) -> bool:
    """Return whether a retry handled some of a line and has more to handle: what was read, or came since."""
    if outcome.failure is not None or outcome.left is None or outcome.line.what == "effect":
        return False
    if outcome.head > head and time.monotonic() < until_s:
        return True
    outcome.failure = f"{outcome.rest}: see the log of the partition's owner"
    return False


def _drops(line: ParkedQueue, entry_id: str | None) -> list[tuple[str, str | None]]:
    if entry_id is not None:
        return [("drop", entry_id)]
    if line.what == "message":
        return [("drop", ALL)]
    # The parked one last: those behind it would begin to run.
    return [("drop", entry.id) for entry in reversed(line.entries)]


@dataclass(frozen=True, slots=True)
class Addressed:
    """A command, and where it goes. It is about what input wrote before `least`, or before now if that is later."""

    source: TopicPartition
    key: bytes | None
    command: Command
    least: int = 0
    is_exact: bool = False
    """True if `least` counts even when now is later."""


def _addressed(line: ParkedQueue, command: str, entry_id: str | None) -> Addressed:
    order = Command(actor=line.actor, what=line.what, command=command, id=entry_id)  # type: ignore[arg-type]
    # If the input was re-created, its offsets are below those of what waits.
    least = max(entry.written_by for entry in line.entries) + 1
    return Addressed(line.source, line.key, order, least, is_exact=command == "drop")


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
            topic, partition = each.source
            before = each.least if each.is_exact else max(ends[each.source], each.least)
            content = msgspec.json.encode(msgspec.structs.replace(each.command, before=before))
            headers = setup.command_key(topic, topics[topic]).headers(partition, each.key, content)
            sent.append(await producer.send(topic, content, each.key, partition=partition, headers=headers))
        return [int(written.offset) for written in await asyncio.gather(*sent)]


def _count(line: ParkedQueue) -> str:
    count = len(line.entries)
    return f"{count} {line.what}{'s are' if count > 1 else ' is'}"
