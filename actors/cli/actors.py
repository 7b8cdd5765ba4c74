"""`faust -A APP actors`: who owns what, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from actors.admin.operation import Answer, Caller, Operation
from actors.cli.cluster import Cluster, TaskRow, owner_name

NOBODY = "(nobody yet)"
NO_TOPIC = "(the topic isn't on the broker)"
_COLUMNS = (
    "actor", "input topic", "#partition", "stores", "owner", "state", "#epoch", "#committed", "#end", "#lag",
)  # fmt: skip
_CELLS = (
    "actor", "topic", "partition", "stores", "owner", "state", "epoch", "committed_offset", "end_offset", "lag",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ListActors(Operation):
    """List the tasks of the app's actors.

    A task is one actor on one partition of its inputs; each input has a line of its own. The owner is the worker that
    took it over last, as the app's leader registry has it; the state is what that worker answers. A partition that
    stands still is listed with its reason. The lag counts the records that wait, or the offsets where these are more
    than 100. Members of the group that get no partitions are named below the table.
    """

    command: ClassVar[str] = "actors"

    async def run(self, setup: Any, caller: Caller) -> Answer:
        """Carry it out."""
        async with Cluster.connect(setup) as cluster:
            rows, strangers = await cluster.tasks(), await cluster.strangers()
        app = setup.app.conf.id
        if not rows:
            return Answer(content=[], lines=[f"app {app} has no actors"])
        reasons = (f"{row.actor}, partition {row.partition}, {row.state}: {row.reason}" for row in rows if row.reason)
        return Answer(
            content=[_as_json(row) for row in rows],
            table=(f"Actors of {app}", _COLUMNS, [_as_row(row) for row in rows]),
            lines=[*dict.fromkeys(reasons), *strangers],
        )


def _as_row(row: TaskRow) -> list[str]:
    owner = NOBODY if row.owner is None else owner_name(row.owner)
    shown = _as_json(row) | {
        "stores": ", ".join(row.stores) or "-",
        "owner": NO_TOPIC if row.partition is None else owner,
    }
    return ["-" if shown[name] is None else str(shown[name]) for name in _CELLS]


def _as_json(row: TaskRow) -> dict[str, Any]:
    owner, known = row.owner, row.partition is not None
    return {
        "actor": row.actor,
        "topic": row.topic,
        "partition": row.partition,
        "stores": list(row.stores),
        "owner": owner and {"worker": owner.worker, "address": owner.address, "since_ms": owner.at_ms},
        "state": row.state if known else None,
        "reason": row.reason or None,
        "epoch": None if owner is None else owner.epoch,
        "committed_offset": row.committed,
        "end_offset": row.end if known else None,
        "lag": row.lag if known else None,
    }
