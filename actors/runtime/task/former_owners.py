"""Ends what former owners left open: a worker that was killed may have died in the middle of a transaction.

The group forgets a dead worker when its session is over. Its transaction would stay open until its own time-out: it
would keep the partition's offset unstable, and hold back the readers of its changelog and of the registry. The registry
has the transactional id and the member id of each owner; whoever needs the partition ends the transaction if the group
doesn't have the member any more. An owner that died between its offsets and its claim is found in the brokers' list of
open transactions. A living worker isn't disturbed: it ends its transaction itself. Nor is another program, which may
have committed the group's offsets or written into the registry in a transaction. A long wait for either is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from actors._core.logs import Reminders, escaping
from actors.errors import TaskError, UnstableOffsetError
from actors.ports import Clock, Committed, GroupView, OwnerRecord, Owners, TaskLog, TopicPartition
from actors.runtime.message.failures import REMIND_S

logger = escaping(logging.getLogger(__name__))

LOOK_S = 0.1
FIRST_QUESTION = 10
"""After so many looks, twice as many, and so on, the brokers are asked; most open transactions end within a commit."""
SAY_S = 5.0
"""An open transaction that is waited for so long is logged, again every `REMIND_S`. Most end within a commit."""
_TOOL = "kafka-transactions.sh --bootstrap-server BROKER"
_OFFSETS = "__consumer_offsets"
MOST_NAMED = 3
"""How many owners a line names."""


class Wait:
    """One wait for the end of an open transaction.

    Args:
        what: what the transaction holds back.
        where: the partition that has it, for the log.
        place: topic and partition number in which the transaction is open, as Kafka's tools write them.
        tell: gets what is waited for, and "" at the end.
    """

    def __init__(self, what: str, where: object, place: str, *, clock: Clock, tell: Callable[[str], None]) -> None:
        self._reason = f"the end of an open transaction that holds back {what}"
        self._where, self._place, self._clock, self._tell = where, place, clock, tell
        self._began_s = clock.monotonic()
        self._reminders = Reminders(REMIND_S)
        self._looks, self._next_question = 1, FIRST_QUESTION
        self.ended: set[str] = set()

    def __enter__(self) -> Wait:
        return self

    def __exit__(self, *_: object) -> None:
        self._tell("")

    def is_question_due(self) -> bool:
        """Return whether to ask the brokers now; if so, the next question is due twice as late."""
        if self._looks < self._next_question:
            return False
        self._next_question *= 2
        return True

    async def look_later(self, owners: Sequence[OwnerRecord]) -> None:
        """Wait for a moment; log it if the wait is long. `owners` may have the transaction."""
        self._looks += 1
        now_s = self._clock.monotonic()
        self._tell(self._reason)
        if now_s - self._began_s >= SAY_S and self._reminders.is_due(now_s):
            why, waited_s = whose(self._place, owners, self.ended), now_s - self._began_s
            logger.warning("%s: waiting for %s, for %.0f s now. %s", self._where, self._reason, waited_s, why)
        await self._clock.sleep(LOOK_S)


def whose(place: str, owners: Sequence[OwnerRecord], ended: Iterable[str]) -> str:
    """Return who may have the transaction that is open in `place`, and what to do; `ended` are ids that don't."""
    known = {one.transactional_id: one for one in owners if one.transactional_id and one.transactional_id not in ended}
    if known:
        named = [f"worker {one.worker}, transactional id {each}" for each, one in sorted(known.items())[:MOST_NAMED]]
        more = f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else ""
        some_id = min(known)
        return (
            f"It may be of {', '.join(named)}{more}: the group has that member, so it is left alone. See whether the "
            f"worker hangs, and end it if it does: this one ends its transaction then. `{_TOOL} describe "
            f"--transactional-id {some_id}` shows the partitions of the transaction. If {place} isn't one of them, "
            f"another program has it: {_foreign(place)}"
        )
    former = f" (those of {', '.join(sorted(ended))} are ended)" if ended else ""
    return (
        f"It is of no worker that the registry names{former}, so another program has it, or a worker that died in its "
        f"first commit: {_foreign(place)}"
    )


def _foreign(place: str) -> str:
    partition = f"--topic {place.rpartition('-')[0]} --partition {place.rpartition('-')[2]}"
    return (
        f"`{_TOOL} list` names the open ones, and `{_TOOL} describe --transactional-id ID` the one that has {place}. "
        f"End that program. If it is gone, wait for the transaction's time-out, or abort it: `{_TOOL} "
        f"describe-producers {partition}` has its start offset, and `{_TOOL} abort {partition} --start-offset OFFSET` "
        "ends it"
    )


def _tell_nobody(what: str) -> None:
    """Ignore it: what is waited for is logged anyway."""


async def settled_owner(
    group: GroupView,
    owners: Owners,
    log: TaskLog,
    clock: Clock,
    actor: str,
    partition: int,
    *,
    tell: Callable[[str], None] = _tell_nobody,
) -> OwnerRecord | None:
    """Return the newest record of a task. Claims that are under way are waited for, those of the dead are ended."""
    await settle_claims(group, owners, log, clock, tell=tell)
    return await owners.latest(actor, partition)


async def settle_claims(
    group: GroupView, owners: Owners, log: TaskLog, clock: Clock, *, tell: Callable[[str], None] = _tell_nobody
) -> None:
    """Return when no transaction holds back the registry. `tell` gets what is waited for, and "" at the end."""
    if (claims := await owners.open_claims()) is None:
        return
    registry = TopicPartition(owners.topic, 0)
    with Wait("the leader registry", registry, f"{owners.topic}-0", clock=clock, tell=tell) as wait:
        while claims is not None:
            await _end_of_dead(group, log, claims, wait.ended)
            await wait.look_later(claims)
            claims = await owners.open_claims()


async def settled_offset(
    group: GroupView,
    log: TaskLog,
    clock: Clock,
    source: TopicPartition,
    owner: OwnerRecord | None,
    *,
    own_id: str = "",
    tell: Callable[[str], None] = _tell_nobody,
) -> Committed | None:
    """Return the committed offset when no open transaction can change it. `owner` is the task's last one.

    `own_id` is this worker's transactional id, "" if a command asks. `tell` gets what is waited for, and "" at the end.
    """
    owners = [] if owner is None else [owner]
    with Wait("the group's offset", source, f"{_OFFSETS}-N", clock=clock, tell=tell) as wait:
        while True:
            try:
                return await group.stable_offset(source)
            except UnstableOffsetError:
                await _end_of_dead(group, log, owners, wait.ended)
                if own_id and wait.is_question_due():
                    await _end_of_unnamed(group, log, own_id, wait.ended)
                await wait.look_later(owners)


async def _end_of_unnamed(group: GroupView, log: TaskLog, own_id: str, ended: set[str]) -> None:
    """End the transactions of workers that left the group, and may have been killed before their claim was written."""
    try:
        for transactional_id in sorted(set(await group.left_open(own_id)) - ended):
            logger.info("ending the transaction of %s, whose worker isn't in the group", transactional_id)
            await log.end_transaction_of(transactional_id)
            ended.add(transactional_id)
    except TaskError as error:
        # It has an end by itself: the time-out.
        logger.info("the brokers don't say whose transactions are open: %s", error)


async def _end_of_dead(group: GroupView, log: TaskLog, owners: Iterable[OwnerRecord], ended: set[str]) -> None:
    """End the transactions of owners that the group doesn't have any more, and add their ids to `ended`."""
    # A worker that has joined again is a living one: its newest record counts.
    for transactional_id, member_id in sorted({owner.transactional_id: owner.member_id for owner in owners}.items()):
        # A transaction that stays open is another's.
        if transactional_id and transactional_id not in ended and not await group.knows(member_id):
            logger.info("ending the transaction of %s, which left the group", transactional_id)
            await log.end_transaction_of(transactional_id)
            ended.add(transactional_id)
