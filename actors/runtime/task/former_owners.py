"""Ends what former owners left open: a worker that was killed may have died in the middle of a transaction.

The group forgets a dead worker when its session is over. Its transaction would stay open until its own time-out: it
would keep the partition's offset unstable, and hold back the readers of its changelog and of the registry. The registry
has the transactional id and the member id of each owner; whoever needs the partition ends the transaction if the group
doesn't have the member any more. A living worker isn't disturbed: it ends its transaction itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from actors._core.logs import escaping
from actors.errors import UnstableOffsetError
from actors.ports import Clock, Committed, GroupView, OwnerRecord, Owners, TaskLog, TopicPartition

logger = escaping(logging.getLogger(__name__))

LOOK_S = 0.1


async def settled_owner(
    group: GroupView, owners: Owners, log: TaskLog, clock: Clock, actor: str, partition: int
) -> OwnerRecord | None:
    """Return the newest record of a task. Claims that are under way are waited for, those of the dead are ended."""
    await settle_claims(group, owners, log, clock)
    return await owners.latest(actor, partition)


async def settle_claims(group: GroupView, owners: Owners, log: TaskLog, clock: Clock) -> None:
    """Return when no transaction holds back the registry."""
    while (claims := await owners.open_claims()) is not None:
        await _end_of_dead(group, log, claims)
        await clock.sleep(LOOK_S)


async def settled_offset(
    group: GroupView, log: TaskLog, clock: Clock, source: TopicPartition, owner: OwnerRecord | None
) -> Committed | None:
    """Return the committed offset when no open transaction can change it. `owner` is the task's last one."""
    while True:
        try:
            return await group.stable_offset(source)
        except UnstableOffsetError:
            if owner is not None:
                await _end_of_dead(group, log, [owner])
            await clock.sleep(LOOK_S)


async def _end_of_dead(group: GroupView, log: TaskLog, owners: Iterable[OwnerRecord]) -> None:
    for transactional_id, member_id in sorted({(owner.transactional_id, owner.member_id) for owner in owners}):
        if transactional_id and not await group.knows(member_id):
            logger.info("ending the transaction of %s, which left the group", transactional_id)
            await log.end_transaction_of(transactional_id)
