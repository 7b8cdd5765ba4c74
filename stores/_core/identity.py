"""Which partition of which store a database holds, as a record in it: a folder that was moved keeps it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from stores._core.outside import MISSHAPEN


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """What a database was made for; `cluster` is the Kafka cluster's id, "" where it isn't known."""

    cluster: str
    app: str
    store: str
    partition: int

    def __str__(self) -> str:
        cluster = f", cluster {self.cluster}" if self.cluster else ""
        return f"store {self.store}, partition {self.partition} (app {self.app}{cluster})"

    def fits(self, other: DatabaseIdentity) -> bool:
        """Tell whether both are of one partition, as far as is known."""
        is_known = bool(self.cluster and other.cluster)
        mine, others = (self.app, self.store, self.partition), (other.app, other.store, other.partition)
        return mine == others and (self.cluster == other.cluster or not is_known)


def encode_identity(identity: DatabaseIdentity) -> bytes:
    """Give the identity as JSON."""
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
