"""Which partition of which store a database holds, as a record in it: a folder that was moved keeps it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from stores._core.outside import MISSHAPEN


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """The owner of a database; `cluster` is the Kafka cluster's id, "" if unknown."""

    cluster: str
    app: str
    store: str
    partition: int

    def __str__(self) -> str:
        cluster = f", cluster {self.cluster}" if self.cluster else ""
        return f"store {self.store}, partition {self.partition} (app {self.app}{cluster})"

    def fits(self, other: DatabaseIdentity) -> bool:
        """Return whether both are of one partition, as far as is known."""
        is_known = bool(self.cluster and other.cluster)
        mine, others = (self.app, self.store, self.partition), (other.app, other.store, other.partition)
        return mine == others and (self.cluster == other.cluster or not is_known)

    def is_of_another_cluster(self, other: DatabaseIdentity) -> bool:
        """Return whether both differ in the cluster, and in nothing else."""
        return not self.fits(other) and self.fits(replace(other, cluster=self.cluster))


def why_foreign(path: Path, found: DatabaseIdentity, mine: DatabaseIdentity) -> str:
    """Say what the database at `path` is of, what belongs there, and what to do."""
    lost = ""
    if found.is_of_another_cluster(mine):
        lost = (
            f". If cluster {found.cluster} is lost, and this one takes its place, keep it: the documentation's page "
            "'Disasters', 'The cluster is lost', has the way to go on with it"
        )
    return (
        f"the database at {path} is of {found}, and belongs to {mine} by its place: its folder was moved or copied "
        "here. Stop the worker, then move the folder back to where it was, or delete it: the partition is restored "
        f"from its changelog{lost}"
    )


def encode_identity(identity: DatabaseIdentity) -> bytes:
    """Return the identity as JSON."""
    return json.dumps(asdict(identity), separators=(",", ":")).encode()


def decode_identity(raw: bytes) -> DatabaseIdentity:
    """Read what `encode_identity` wrote. Fields that a later release adds are ignored.

    Raises:
        ValueError: it isn't an identity.
    """
    try:
        found = json.loads(raw)
        return DatabaseIdentity(str(found["cluster"]), str(found["app"]), str(found["store"]), int(found["partition"]))
    except MISSHAPEN as error:
        raise ValueError(f"not an identity: {raw[:200]!r}") from error
