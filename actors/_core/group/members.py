"""The metadata of the group's members, and its format in the group protocol."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from actors._core.origins import origin_of
from actors._core.outside import MALFORMED

MEMBER_DATA_VERSION = 1
UNKNOWN = -1
NO_GENERATION = -1
"""The generation of a member that was in no group before."""


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """One partition number of an actor's input topics."""

    actor: str
    partition: int


class Declared(msgspec.Struct, array_like=True, frozen=True, order=True):
    """An actor as a program declares it, as far as it matters who else owns partitions of it."""

    actor: str
    topic: str
    partitioner: str
    changelogs: tuple[str, ...]
    more_topics: tuple[str, ...] = ()

    @property
    def topics(self) -> tuple[str, ...]:
        """Its inputs in the order of declaration."""
        return (self.topic, *self.more_topics)


@dataclass(frozen=True, slots=True)
class Member:
    """A member's metadata.

    `member_id` is the group's name for this process, `instance_id` the worker's own that outlives a restart
    (may be empty), `address` where the worker answers queries. `owned` are its tasks in `generation`, the
    last one that it took part in; `kept` tells whether it still has them while it joins, None for a member of
    another version, which may not. `on_disk` has the sum of the changelog positions of its stores, by task.
    `process` tells the processes of a static member apart, 0 for a dynamic one. `transactional_id` is what the worker
    commits with, `declared` are the actors of its program; both are None for a member of a release that doesn't say
    so. `trouble` says what of this couldn't be understood; a member of which nothing could be isn't
    `is_known`.
    """

    member_id: str
    instance_id: str = ""
    address: str = ""
    generation: int = NO_GENERATION
    owned: frozenset[TaskId] = frozenset()
    on_disk: Mapping[TaskId, int] = field(default_factory=dict)
    lags: Mapping[TaskId, int] = field(default_factory=dict)
    follows: bool = False
    process: int = 0
    declared: tuple[Declared, ...] | None = None
    kept: bool | None = None
    transactional_id: str | None = None
    trouble: str = ""
    is_known: bool = True


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_CountOrNone = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
"""With -1 for none: `UNKNOWN`, `NO_GENERATION`."""


class _Version(msgspec.Struct, array_like=True, frozen=True):
    version: int


class _MemberData(_Version, array_like=True, frozen=True):
    instance_id: str
    address: str
    generation: _CountOrNone
    actors: list[_ActorData]
    follows: bool = False
    process: _Count = 0
    declared: tuple[Declared, ...] | None = None
    kept: bool | None = None
    transactional_id: str | None = None


class _ActorData(msgspec.Struct, array_like=True, frozen=True):
    """One actor's part: `positions` and `lags` belong to `on_disk`, entry by entry; lag -1 is unknown.

    `lags` and `follows` came later: releases without them don't read that far, and don't write them.
    """

    actor: str
    owned: list[_Count]
    on_disk: list[_Count]
    positions: list[_Count]
    lags: list[_CountOrNone] = []


MAX_MEMBER_BYTES = 512 * 1024
"""The most bytes of a member's data: some 30,000 tasks. The group's record, one message, holds the data of all."""
_VERSION_DECODER = msgspec.msgpack.Decoder(_Version)
_MEMBER_DECODER = msgspec.msgpack.Decoder(_MemberData)


def encode_member_data(member: Member) -> bytes:
    """Return the metadata in a member's JoinGroup, without the member id, which the group has."""
    owned = _partitions_by_actor(member.owned)
    held = {**dict.fromkeys(member.lags, 0), **member.on_disk}
    on_disk = _partitions_by_actor(held)
    actors = [
        _ActorData(
            actor,
            owned.get(actor, []),
            on_disk.get(actor, []),
            [held[TaskId(actor, partition)] for partition in on_disk.get(actor, [])],
            [member.lags.get(TaskId(actor, partition), UNKNOWN) for partition in on_disk.get(actor, [])],
        )
        for actor in sorted(owned.keys() | on_disk.keys())
    ]
    return msgspec.msgpack.encode(
        _MemberData(
            MEMBER_DATA_VERSION,
            member.instance_id,
            member.address,
            member.generation,
            actors,
            member.follows,
            member.process,
            member.declared,
            member.kept,
            member.transactional_id,
        )
    )


def decode_member_data(member_id: str, raw: bytes | None) -> Member:
    """Read what `encode_member_data` wrote. Nothing that a member says of itself keeps the group from an assignment.

    Data of a newer version makes a member that owned nothing and has nothing on disk, as in a rolling upgrade. Data
    that can't be read makes one that is unknown: another program is in the group.
    """
    raw = raw or b""
    if len(raw) > MAX_MEMBER_BYTES:
        return Member(member_id, trouble=f"its metadata has {len(raw)} bytes", is_known=False)
    try:
        if _VERSION_DECODER.decode(raw).version > MEMBER_DATA_VERSION:
            return Member(member_id)
        data = _MEMBER_DECODER.decode(raw)
    except MALFORMED:
        data = None
    if data is None or data.version != MEMBER_DATA_VERSION:
        return Member(member_id, trouble="its metadata isn't that of this package's workers", is_known=False)
    address, trouble = data.address, ""
    try:
        address = origin_of(address) if address else ""
    except ValueError as error:
        address, trouble = "", str(error)
    return Member(
        member_id,
        instance_id=data.instance_id,
        address=address,
        generation=data.generation,
        owned=frozenset(TaskId(part.actor, partition) for part in data.actors for partition in set(part.owned)),
        on_disk={
            TaskId(part.actor, partition): position
            for part in data.actors
            for partition, position in zip(part.on_disk, part.positions, strict=False)
        },
        lags={
            TaskId(part.actor, partition): lag
            for part in data.actors
            for partition, lag in zip(part.on_disk, part.lags, strict=False)
            if lag != UNKNOWN
        },
        follows=data.follows,
        process=data.process,
        declared=data.declared,
        kept=data.kept,
        transactional_id=data.transactional_id,
        trouble=trouble,
    )


def left_open(opened: Iterable[str], members: Collection[str | None], own_id: str) -> set[str]:
    """Return which of the transactional ids with an open transaction are of workers that aren't in the group.

    Args:
        opened: of any program.
        members: what the group's members commit with; None is in it if one of them doesn't say so.
        own_id: that of the worker that asks. If the group doesn't have it, what the members say is of another time.
    """
    if None in members or own_id not in members:
        return set()
    workers = f"{own_id.rpartition(':')[0]}:w"
    return {one for one in opened if one.startswith(workers) and one not in members}


def words_of(member: Member, host: str = "") -> str:
    """Return, for people, which member of the group can't be understood, and what follows from it."""
    where = f" on host {host[:200]!a}" if host else ""
    outcome = "other workers don't ask it" if member.is_known else "it gets no partitions"
    return f"member {member.member_id[:200]!a} of the group{where}: {member.trouble}: {outcome}"


def _partitions_by_actor(tasks: Iterable[TaskId]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for task in sorted(tasks):
        found.setdefault(task.actor, []).append(task.partition)
    return found
