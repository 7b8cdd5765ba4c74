"""Commands of operators about an internal message that stopped its partition: retry it, or drop it."""

from __future__ import annotations

import logging

from actors._core.logs import escaping
from actors.errors import ActorsError, TaskError, UnreadableLogError
from actors.ports import InputRecord, TopicPartition
from actors.runtime.commands import RefusedCommandError
from actors.runtime.task.context import TaskContext

logger = escaping(logging.getLogger(__name__))

HALT_REMINDER_S = 60.0
HALT_LOOK_S = 5.0
"""How often a task looks for a command."""


class StopCommands:
    """The commands about what stopped a partition.

    Attributes:
        obeyed_until: commands before this offset of the first input were obeyed.
    """

    def __init__(self, context: TaskContext, source: TopicPartition) -> None:
        self.obeyed_until = 0
        self._context = context
        self._source = source
        self._has_refused = False

    async def wait(self, internal: tuple[str, str], reached: int, error: ActorsError) -> bool:
        """Wait for a command about the internal message (actor, id); false if the task ends first.

        Nothing of the input is handled meanwhile, so the commands are looked for in what isn't committed of it.
        """
        context, services, source = self._context, self._context.services, self._source
        at, reminded_s = max(reached, self.obeyed_until), services.clock.monotonic()
        while not context.inbox.stopping:
            try:
                bounds = await services.logs.bounds(source)
                context.meters.end_offsets[source.topic] = end = bounds.end
                at = max(at, bounds.start)
                async for records, until in services.logs.read(source, at, end):
                    for record in records:
                        command = self._command(record, internal, reached)
                        if command is not None:
                            self._obey(command, record.offset, internal[1])
                            return True
                    at = until
            except UnreadableLogError as damage:
                at = damage.next_offset
                logger.warning("%s. A command in front of offset %d may have to be sent again", damage, at)
            except (TaskError, OSError) as away:
                logger.debug("%s: no command could be looked for: %s", self._source, away)
            await context.inbox.wait(HALT_LOOK_S)
            now_s = services.clock.monotonic()
            if now_s - reminded_s >= HALT_REMINDER_S:
                reminded_s = now_s
                logger.warning("actor %s is still stopped on %s: %s", context.spec.name, self._source, error)
        return False

    def _command(self, record: InputRecord, internal: tuple[str, str], reached: int) -> str | None:
        context = self._context
        try:
            return context.spec.commands.about(context.partition, record, internal, reached)
        except RefusedCommandError as error:
            # It is counted when the partition comes to it. A producer may write as many as it wants.
            level, self._has_refused = logging.DEBUG if self._has_refused else logging.WARNING, True
            logger.log(level, "%s offset %d: a control record is skipped: %s", self._source, record.offset, error)
            return None

    def _obey(self, command: str, offset: int, id: str) -> None:
        self.obeyed_until = offset + 1
        poison = self._context.poison
        if command == "drop":
            poison.dropped.add(id)
        # What the broker refused may be taken now.
        poison.poisoned.pop(id, None)
        logger.info("%s: offset %d says %s: going on", self._source, offset, command)
