"""Where the partitions of a store belong, to tell what this disk may have an old copy of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from actors._core.partitioner import MURMUR2, Partitioner
from actors._faust.setup import Setup
from actors.cli.cluster import Cluster, owner_name
from actors.cli.session import Session
from actors.ports import OwnerRecord
from stores._core.record import Position


@dataclass(frozen=True, slots=True)
class Placement:
    """The broker's answer about a store's partitions: how many there are, and the last owner of each."""

    partition_count: int
    owners: Mapping[int, OwnerRecord] = field(default_factory=dict)
    partitioner: Partitioner = MURMUR2


async def ask_placement(setup: Setup, store: str, actor: str) -> Placement:
    """Ask the broker about the partitions of a store of `actor`.

    Raises:
        BrokerUnavailableError: no broker answers.
        ConfigurationError: the store has no changelog yet.
    """
    async with Cluster.connect(setup) as cluster:
        count = await cluster.partition_count(store)
        owners = await cluster.owners()
    own = {partition: owner for (owning, partition), owner in owners.items() if owning == actor}
    return Placement(count, own, setup.app.partitioner_of_store(store))


def warn_if_stale(session: Session, placement: Placement | None, partition: int, position: Position) -> None:
    """Remark that another worker took a partition over since this disk has it, if the broker was asked."""
    owner = None if placement is None else placement.owners.get(partition)
    if owner is not None and owner.epoch > position.epoch:
        session.remark(
            f"Warning: worker {owner_name(owner)} took partition {partition} over in epoch {owner.epoch}, "
            f"and this disk has it as of epoch {position.epoch}: this may be out of date"
        )
