"""`faust -A APP reset`: moves the offsets of actors, with or without their state; or deletes local databases only."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from actors._faust.setup import Setup
from actors._faust.startup.programs import check_program
from actors._kafka.admin.control import ControlPlane
from actors._kafka.admin.owners import KafkaOwners
from actors._kafka.admin.topics import Topics
from actors._kafka.consume.logs import KafkaLogs
from actors.admin.operation import Answer, Caller, Operation, option
from actors.admin.reset.moves import Move
from actors.admin.reset.reset import Resetter, effects_of_kept_state
from actors.admin.reset.scope import Scope, scope_of
from actors.admin.reset.targets import FORMS, parse_target
from actors.errors import ConfigurationError, UsageError
from stores._core.printable import counted
from stores.folder import DataFolder

_COLUMNS = ("actor", "input topic", "#partition", "#committed", "#becomes", "effect")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset(Operation):
    """Move the offsets of actors, with or without their state. All workers must be stopped.

    Without --to, only this machine's databases of stores, tables and views are deleted; workers rebuild them from the
    changelogs, and nothing on the broker is changed. What would be done is printed; --yes does it. If it is
    interrupted, run it again: it finishes.
    """

    command: ClassVar[str] = "reset"
    target: str | None = option(f"Where the offsets go: {FORMS}; times are UTC.", flag="--to")
    names: tuple[str, ...] = option(
        "Only this actor, with those that it is connected with by keys.", (), flag="--actor"
    )
    state: Literal["keep", "delete"] = option(
        "Whether stores, timers, waiting effects and parked messages go too.", "keep"
    )
    is_done: bool = option("Do it, in place of printing what would be done.", False, flag="--yes")

    async def run(self, setup: Any, caller: Caller) -> Answer:
        """Carry it out.

        Raises:
            UsageError: options of offsets without --to.
            ConfigurationError: the offsets don't fit the inputs; a topic is missing; a worker runs.
            BrokerUnavailableError: it may be done in part: run it again.
        """
        if self.target is None:
            if self.names or self.state != "keep":
                raise UsageError("--actor and --state are about offsets: say where they go with --to")
            return Answer(content=None, lines=_delete_databases(setup, is_done=self.is_done))
        target, scope = parse_target(self.target), scope_of(setup.app, self.names)
        _refuse_locks(scope)
        if not scope.actors:
            raise ConfigurationError(f"app {setup.app.conf.id} has no actors")
        deletes_state = self.state == "delete"
        async with ControlPlane.connect(setup.connection, setup.group) as control:
            if setup.owners_topic in await Topics(setup.connection, control).existing([setup.owners_topic]):
                owners = KafkaOwners(setup.owners_topic, KafkaLogs(setup.connection, control))
                check_program(setup.app, await owners.all(), moved=[actor.name for actor in scope.actors])
            resetter = Resetter(setup, control, scope, target, deletes_state=deletes_state)
            moves = await (resetter.perform() if self.is_done else resetter.look())
        changelogs = [setup.changelog_topic(store.name) for _, store in scope.stores] if deletes_state else []
        offsets = [_move_json(move) for move in moves]
        rows = [
            ["-" if cell is None else str(cell) for cell in (*offset.values(), move.effect)]
            for offset, move in zip(offsets, moves, strict=True)
        ]
        return Answer(
            content={"done": self.is_done, "state": self.state, "changelogs": changelogs, "offsets": offsets},
            table=(f"Offsets of group {setup.group}", _COLUMNS, rows),
            lines=[*self._lines(scope), "done" if self.is_done else "nothing was changed: --yes does it"],
        )

    def _lines(self, scope: Scope) -> list[str]:
        stores = ", ".join(store.name for _, store in scope.stores)
        if not stores:
            return []
        if self.state == "delete":
            return [
                f"state of {stores}: {'deleted, with its changelogs' if self.is_done else 'its changelogs are deleted'}"
            ]
        return [f"state of {stores}: kept", *effects_of_kept_state(scope)]


def _move_json(move: Move) -> dict[str, Any]:
    return {
        "actor": move.actor,
        "topic": move.source.topic,
        "partition": move.source.partition,
        "committed_offset": None if move.before is None else move.before.offset,
        "new_offset": move.offset,
    }


def _refuse_locks(scope: Scope) -> None:
    if any(actor.topic_name.endswith("-coordination") and actor.name == "coordination" for actor in scope.actors):
        raise ConfigurationError(
            "actor coordination is the lock service: its fencing tokens have to grow, and its requests were answered. "
            "Name the other actors with --actor"
        )


def _delete_databases(setup: Setup, *, is_done: bool) -> list[str]:
    app, verb, lines = setup.app, "deleted" if is_done else "would be deleted", list[str]()
    if (app.actors or app.views) and (setup.folder.exists() or setup.views_folder.exists()):
        # Opened in both cases: a folder that a worker uses is refused.
        with closing(DataFolder.open(setup.folder, app=str(app.conf.id))) as folder:
            for store in folder.stores_on_disk():
                partitions = folder.partitions_on_disk(store)
                lines.append(f"store {store}: {counted(len(partitions), 'database')} {verb}")
                for partition in partitions if is_done else ():
                    folder.discard(store, partition)
            if setup.views_folder.exists():
                lines.append(f"views: their databases {verb}")
                if is_done:
                    shutil.rmtree(setup.views_folder)
    for table in app.tables.values():
        lines.append(f"table {table.name}: its database {verb}")
        if is_done:
            table.reset_state()
    return [*lines, "done" if is_done else f"nothing was changed in {setup.folder.parent}: --yes does it"]
