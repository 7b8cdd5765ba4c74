"""Retries and drops of many keys: a partition gets all its commands at once, and is read once for what came of them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from actors.admin.parked.commands import LOOK_S, AdminCommand, about, count_of, failure_of, is_pending, send_commands
from actors.admin.parked.reader import ParkedQueue, What
from actors.ports import TopicPartition
from actors.runtime.commands import ALL

BATCH_LINES = 1_000
"""How many keys have commands under way at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """A filter of keys, by the first message or effect of each; None and "" match all.

    `error` is a part of its error's text; it was parked at `since_ms` or later, and before `until_ms`.
    """

    what: What | None = None
    partition: int | None = None
    error: str = ""
    since_ms: int | None = None
    until_ms: int | None = None

    def takes(self, line: ParkedQueue) -> bool:
        """Return whether a line is meant; one with nothing parked isn't."""
        head = line.head
        return (
            line.is_parked
            and self.what in (None, line.what)
            and self.partition in (None, line.partition)
            and self.error in (head.error or "")
            and (self.since_ms is None or head.since_ms >= self.since_ms)
            and (self.until_ms is None or head.since_ms < self.until_ms)
        )


@dataclass(slots=True)
class Many:
    """Retries or drops of many lines.

    Attributes:
        admin_commands: one for each line, as they were found.
        timeout_s: how long to wait for the owners; it begins again with each round.
        failures: what went wrong, by the place of an admin_command in `admin_commands`.
    """

    admin_commands: Sequence[AdminCommand]
    timeout_s: float
    failures: dict[int, str]
    _until_s: float = 0.0

    async def retry(self) -> None:
        """Hand all lines to their handlers again, each up to the first message that fails."""
        for places in self._groups():
            self._until_s = time.monotonic() + self.timeout_s
            while places:
                before = {place: self.admin_commands[place].head for place in places}
                await self._give(places, lambda line: [("retry", None)])
                for place in places:
                    failure = failure_of(self.admin_commands[place])
                    if failure is not None:
                        self.failures.setdefault(place, failure)
                # One command hands only so many to the handler.
                places = [place for place in places if self._goes_on(place, before[place])]

    async def drop(self) -> None:
        """Drop the entries that were found in all lines; entries that came later stay."""
        for places in self._groups():
            await self._give(places, _drops)
            for place in places:
                admin_command = self.admin_commands[place]
                if admin_command.left is not None and len(admin_command.gone) < len(admin_command.line.entries):
                    failure = f"{count_of(admin_command.left)} still parked: see the log of the partition's owner"
                    self.failures.setdefault(place, failure)

    def _groups(self) -> Iterable[list[int]]:
        readable = []
        for place, admin_command in enumerate(self.admin_commands):
            if all(entry.is_readable for entry in admin_command.line.entries):
                readable.append(place)
            else:
                self.failures[place] = "it has entries of a newer release: use the release that wrote them"
        for start in range(0, len(readable), BATCH_LINES):
            yield readable[start : start + BATCH_LINES]

    def _goes_on(self, place: int, before: int) -> bool:
        """Return whether a retry handled some of a line and has more to handle: what was found, or came since."""
        admin_command = self.admin_commands[place]
        if place in self.failures or admin_command.left is None or admin_command.line.what == "effect":
            return False
        if admin_command.head > before and time.monotonic() < self._until_s:
            return True
        self.failures[place] = f"{count_of(admin_command.left)} still parked: see the log of the partition's owner"
        return False

    async def _give(
        self, places: Sequence[int], commands: Callable[[ParkedQueue], Sequence[tuple[str, str | None]]]
    ) -> None:
        """Send commands for some keys, wait until they are carried out, and read the queues again."""
        ends = await self._send(places, commands)
        deadline_s, waiting = time.monotonic() + self.timeout_s, dict(ends)
        control = self.admin_commands[places[0]].reader.control
        while waiting:
            for source, end in ends.items():
                committed = await control.committed(source) if source in waiting else None
                if committed is not None and committed.offset >= end:
                    del waiting[source]
            if waiting and time.monotonic() >= deadline_s:
                break
            await asyncio.sleep(LOOK_S if waiting else 0)
        for place in places:
            line = self.admin_commands[place].line
            if (source := TopicPartition(line.topic, line.partition)) in waiting:
                self.failures[place] = (
                    f"no owner of {source} carried the command out in time: it takes effect when the owner reads it"
                )
        await self._look(places)
        while any(is_pending(self.admin_commands[place]) for place in places) and time.monotonic() < deadline_s:
            await asyncio.sleep(LOOK_S)
            await self._look(places)

    async def _send(
        self, places: Sequence[int], commands: Callable[[ParkedQueue], Sequence[tuple[str, str | None]]]
    ) -> dict[TopicPartition, int]:
        first = self.admin_commands[places[0]]
        lines = [one.left or one.line for one in (self.admin_commands[place] for place in places)]
        told = [
            about(line, command, entry_id, is_exact=command == "drop")
            for line in lines
            for command, entry_id in commands(line)
        ]
        ends: dict[TopicPartition, int] = {}
        for one, offset in zip(told, await send_commands(first.setup, first.reader.control, told), strict=True):
            ends[one.source] = max(ends.get(one.source, 0), offset + 1)
        return ends

    async def _look(self, places: Collection[int]) -> None:
        """Look what is there now of some lines, with one read of each partition."""
        by_part: dict[tuple[str, What, int], dict[bytes, AdminCommand]] = defaultdict(dict)
        for place in places:
            admin_command = self.admin_commands[place]
            line = admin_command.line
            by_part[line.actor, line.what, line.partition][line.key] = admin_command
        for (_, what, partition), admin_commands in by_part.items():
            command = next(iter(admin_commands.values()))
            lines = await command.reader.part(command.definition, what, partition, admin_commands)
            for key, admin_command in admin_commands.items():
                admin_command.found(lines.get(key))


def _drops(line: ParkedQueue) -> list[tuple[str, str | None]]:
    if line.what == "message":
        return [("drop", ALL)]
    # The parked one last: those behind it would begin to run.
    return [("drop", entry.id) for entry in reversed(line.entries)]
