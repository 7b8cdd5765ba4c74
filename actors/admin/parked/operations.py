"""`parked list | show | retry | drop` and `stopped retry | drop`."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

from actors._faust.setup import Setup
from actors.admin.host import definition_of
from actors.admin.operation import Answer, Caller, Operation, option
from actors.admin.parked.control import Addressed, Control, Resolution, send_commands
from actors.admin.parked.reader import (
    SHOWN_BYTES,
    Entry,
    ParkedError,
    ParkedQueue,
    ParkedReader,
    What,
    actor_of,
    chosen,
    key_json,
    wanted_keys,
)
from actors.admin.parked.showing import entry_json, fetch_schemas
from actors.admin.pausing import check_partition
from actors.declare.definition import ActorDefinition
from actors.errors import UsageError
from actors.ports import TopicPartition
from actors.runtime.commands import Command
from actors.runtime.task.stop_commands import HALT_LOOK_S
from stores._core.printable import counted, moment, moment_ms, one_line

PAGE_BYTES = 16 * 1024 * 1024
"""So much content is shown at once, or one entry that has more."""
SHOWN_ERROR_CHARS = 100
SHOWN_FAILURES = 20
_COLUMNS = ("actor", "what", "#partition", "key", "#waiting", "#bytes", "error", "#attempts", "since")


def _definitions(setup: Setup, actor: str | None) -> list[ActorDefinition]:
    return list(setup.app.actors.values()) if actor is None else [actor_of(setup.app, actor)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListParked(Operation):
    """List the keys whose messages or effects were put aside, from the committed changelogs.

    Error and attempts are those of the first of a key; `waiting` counts it and all behind it.
    """

    command: ClassVar[str] = "parked list"
    is_reading: ClassVar[bool] = True
    actor: str | None = option("Of this actor only.", metavar="NAME")
    limit: int = option("How many keys.", 1_000, least=1)
    after: str | None = option("Continue behind the line with this cursor.", metavar="CURSOR")

    async def run(self, setup: Setup, caller: Caller) -> Answer:
        """Carry it out."""
        definitions = _definitions(setup, self.actor)
        async with ParkedReader.connect(setup) as reader:
            lines, is_cut = await reader.page(definitions, limit=self.limit, after=self.after)
        title = f"Parked in {setup.app.conf.id}"
        return Answer(
            content=[line_json(line) for line in lines],
            table=(title, _COLUMNS, [line_row(line) for line in lines]) if lines else None,
            lines=() if lines else ["nothing is parked"],
            remarks=[f"more keys are parked: --after {lines[-1].cursor} lists them"] if is_cut else (),
        )


def line_json(line: ParkedQueue) -> dict[str, Any]:
    """Return a line for JSON."""
    head = line.head
    return {
        "actor": line.actor,
        "what": line.what,
        "partition": line.partition,
        "key": key_json(line),
        "waiting": len(line.entries),
        "error": head.error,
        "attempts": head.attempts,
        "since_ms": head.since_ms,
        "bytes": sum(entry.size for entry in line.entries),
        "cursor": line.cursor,
    }


def line_row(line: ParkedQueue) -> list[str]:
    """Return a line as the row of a table."""
    about = line_json(line) | {"key": line.shown_key, "since": moment(line.head.since_ms)}
    about["error"] = one_line(line.head.error or "-", SHOWN_ERROR_CHARS)
    return [str(about[column.removeprefix("#")]) for column in _COLUMNS]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowParked(Operation):
    """Print the messages and effects that wait of KEY, in order: id, error, headers, value.

    KEY is as `parked list` shows it. Exits with 1 where nothing is parked.
    """

    command: ClassVar[str] = "parked show"
    is_reading: ClassVar[bool] = True
    actor: str
    key: str
    limit: int = option("How many.", 100, least=1)
    after: str | None = option("Those behind the one with this id.", metavar="ID")
    is_full: bool = option("Large values too, not only their size.", False, flag="--full")

    async def run(self, setup: Setup, caller: Caller) -> Answer:
        """Carry it out."""
        definition, content = actor_of(setup.app, self.actor), list[dict[str, Any]]()
        texts, remarks = list[str](), list[str]()
        async with ParkedReader.connect(setup) as reader:
            lines = await reader.lines([definition], wanted_keys(definition, self.key))
            for line in chosen(definition, lines, self.key):
                page = self._page(line)
                contents = await reader.contents(definition, line, page, is_full=self.is_full)
                await fetch_schemas(definition, contents.values())
                entries = [entry_json(definition, line, entry, contents.get(entry.sequence)) for entry in page]
                content += entries
                texts.append(f"{line.what}s of key {line.shown_key} in partition {line.partition}: {len(line.entries)}")
                texts += [text for entry in entries for text in entry_lines(entry)]
                if page and page[-1] is not line.entries[-1]:
                    remarks.append(f"more {line.what}s wait: --after {page[-1].id} shows them")
        return Answer(content=content, lines=texts, remarks=remarks)

    def _page(self, line: ParkedQueue) -> list[Entry]:
        """Return the entries to show: so many, and no more content than fits on a page."""
        start, size, page = 0, 0, list[Entry]()
        if self.after is not None:
            ids = [entry.id for entry in line.entries]
            start = ids.index(self.after) + 1 if self.after in ids else len(ids)
        for entry in line.entries[start : start + self.limit]:
            size += entry.size if self.is_full or entry.size <= SHOWN_BYTES else 0
            if page and size > PAGE_BYTES:
                break
            page.append(entry)
        return page


def entry_lines(entry: dict[str, Any]) -> list[str]:
    """Format the result of `entry_json` as lines for people."""
    error = entry["error"] or ("(waits behind the one above)" if entry["what"] == "message" else "(not failed yet)")
    sent = {"sent": moment(entry["timestamp_ms"])} if "timestamp_ms" in entry else {}
    about = {"error": " ".join(error.split()), **sent}
    about |= {
        name: entry[name] for name in ("timer", "effect", "method", "args", "kwargs") if entry.get(name) is not None
    }
    lines = ["", f"  {entry['id']}  since {moment(entry['since_ms'])}, attempts: {entry['attempts']}"]
    lines += [f"    {name:<8} {_text(value)}" for name, value in about.items()]
    lines += [f"    header   {name}: {text}" for name, text in entry.get("headers", ())]
    if not entry["is_shown"]:
        lines.append(f"    value    ({entry['bytes']} bytes: --full prints it)")
    if "value" in entry:
        lines.append(f"    value    {_text(entry['value'])}")
    return lines


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resolve(Operation):
    """A retry or a drop: ACTOR and KEY name one key, `--all` without KEY selects many."""

    actor: str | None = None
    key: str | bytes | None = None
    what: Literal["message", "effect"] | None = option("Only these.")
    partition: int | None = option("Only in this partition of the input.")
    error: str = option("With --all: keys whose error has this text.", "", metavar="TEXT")
    since: datetime | None = option("With --all: keys parked then or later, in UTC.")
    until: datetime | None = option("With --all: keys parked before, in UTC.")
    is_all: bool = option("All keys, of ACTOR if it is named; with KEY, all of the key.", False, flag="--all")
    timeout_s: float = option("How many seconds to wait for the outcome.", 30.0, flag="--timeout")

    async def run(self, setup: Setup, caller: Caller) -> Answer:
        """Carry it out."""
        self._check()
        definitions = _definitions(setup, self.actor)
        async with ParkedReader.connect(setup) as reader:
            control = Control(setup, reader, await self._lines(definitions, reader), self.timeout_s)
            await self._carry_out(control, caller)
        content = [self._json(outcome) for outcome in control.outcomes]
        if self.key is None:
            return self._many(control.outcomes, content)
        (outcome,) = control.outcomes
        done = self._done(outcome.line)
        texts = [f"{done}: {entry_id}" for entry_id in outcome.gone]
        if outcome.failure is None:
            texts.append(f"{len(texts)} {done}; {outcome.rest}")
        return Answer(content=content[0], lines=texts, failure=outcome.failure)

    @abstractmethod
    async def _carry_out(self, control: Control, caller: Caller) -> None: ...

    def _done(self, line: ParkedQueue | None = None) -> str:
        if self.verb == "drop":
            return "dropped"
        return "handled" if line is None or line.what == "message" else "done"

    def _check(self) -> None:
        if self.key is None and not self.is_all:
            raise UsageError("name ACTOR and KEY, or choose with --all and without KEY")
        if self.key is not None and (self.error or self.since or self.until):
            raise UsageError("--error, --since and --until choose keys: leave KEY out, and give --all")

    async def _lines(self, definitions: Sequence[ActorDefinition], reader: ParkedReader) -> list[ParkedQueue]:
        if self.key is None:
            return [line for line in await reader.lines(definitions) if self._takes(line)]
        (definition,) = definitions
        lines = await reader.lines([definition], wanted_keys(definition, self.key))
        return [self._only(chosen(definition, lines, self.key))]

    def _only(self, lines: Iterable[ParkedQueue]) -> ParkedQueue:
        lines = [line for line in lines if self._is_there(line)]
        if not lines:
            raise ParkedError("nothing is parked for the key there: see `parked list`")
        if len({line.what for line in lines}) > 1:
            raise UsageError("messages and effects of the key are parked: choose with --what")
        if len(lines) > 1:
            where = ", ".join(str(line.partition) for line in lines)
            raise UsageError(f"the key is parked in partitions {where}: choose one with --partition")
        return lines[0]

    def _is_there(self, line: ParkedQueue) -> bool:
        return self.what in (None, line.what) and self.partition in (None, line.partition)

    def _takes(self, line: ParkedQueue) -> bool:
        """Return whether a line is meant, by its first entry; one with nothing parked isn't."""
        head = line.head
        return (
            line.is_parked
            and self._is_there(line)
            and self.error in (head.error or "")
            and (self.since is None or head.since_ms >= _unix_ms(self.since))
            and (self.until is None or head.since_ms < _unix_ms(self.until))
        )

    def _many(self, outcomes: Sequence[Resolution], content: Any) -> Answer:
        failed = [outcome for outcome in outcomes if outcome.failure is not None]
        gone = _entries((outcome.line.what, len(outcome.gone)) for outcome in outcomes)
        return Answer(
            content=content,
            lines=[f"{self._done()}: {gone} of {counted(len(outcomes) - len(failed), 'key')}"],
            remarks=[
                f"{outcome.line.actor} {outcome.line.shown_key}: {' '.join((outcome.failure or '').split())}"
                for outcome in failed[:SHOWN_FAILURES]
            ],
            failure=f"still parked: {len(failed)} of {counted(len(outcomes), 'key')}" if failed else None,
        )

    def _json(self, outcome: Resolution) -> dict[str, Any]:
        line, left = outcome.line, outcome.left
        return {
            "command": self.verb,
            "actor": line.actor,
            "what": line.what,
            "partition": line.partition,
            "key": key_json(line),
            "gone": outcome.gone,
            "left": [] if left is None else [entry.id for entry in left.entries],
            "error": outcome.failure,
        }


def _unix_ms(moment: datetime) -> int:
    return moment_ms(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


def _entries(entries: Iterable[tuple[What, int]]) -> str:
    """Return the counts of messages and effects as text, without those that are zero."""
    counts = Counter[What]()
    for what, count in entries:
        counts[what] += count
    kinds = [counted(count, what) for what, count in sorted(counts.items(), reverse=True) if count]
    return " and ".join(kinds) or "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryParked(_Resolve):
    """Hand the parked messages of KEY to their handler again, in order, or call its parked effect again.

    KEY is as `parked list` shows it; --all takes every key. Exits with 1 if one fails again: it and those behind it
    stay parked.
    """

    command: ClassVar[str] = "parked retry"

    async def _carry_out(self, control: Control, caller: Caller) -> None:
        await control.retry()


@dataclass(frozen=True, slots=True, kw_only=True)
class DropParked(_Resolve):
    """Forget the first parked message or effect of KEY, the one of an id, or all; with --all and no KEY, of all keys.

    Messages behind a dropped one stay parked until `parked retry`; effects behind it go on at once.
    """

    command: ClassVar[str] = "parked drop"
    entry_id: str | None = option("This one; the first when left out.", flag="--id", metavar="ID")
    is_agreed: bool = option("Don't ask whether many keys shall be dropped.", False, flag="--yes")

    def _check(self) -> None:
        if self.entry_id is not None and self.is_all:
            raise UsageError("--id and --all contradict each other")
        _Resolve._check(self)

    async def _carry_out(self, control: Control, caller: Caller) -> None:
        lines = [outcome.line for outcome in control.outcomes]
        if self.key is None and not self.is_agreed and lines:
            entries = _entries((line.what, len(line.entries)) for line in lines)
            caller.confirm(f"Drop {entries} of {counted(len(lines), 'key')}?")
        if self.is_all:
            await control.drop()
            return
        # Never "the first": a command that is given twice must not drop two.
        (line,) = lines
        ids = [entry.id for entry in line.entries]
        if self.entry_id not in (None, *ids):
            raise ParkedError(
                f"key {line.shown_key!r} has nothing parked with id {self.entry_id!r}, but {', '.join(ids)}"
            )
        await control.drop(self.entry_id or ids[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResolveStopped(Operation):
    """A retry or a drop of what stopped a partition between messages."""

    actor: str
    partition: int
    id: str

    async def run(self, setup: Setup, caller: Caller) -> Answer:
        """Carry it out."""
        definition = definition_of(setup.app, self.actor)
        if not definition.obeys_commands:
            raise UsageError(
                f"actor {self.actor} has no timers, no effects and no on_close: nothing of it stops between messages. "
                "What stopped it is an input record, and the error in the log says how to give that up"
            )
        source = TopicPartition(definition.topic_name, self.partition)
        order = Command(actor=self.actor, what="internal", command=self.verb, id=self.id)  # type: ignore[arg-type]
        async with ParkedReader.connect(setup) as reader:
            check_partition(self.actor, source, await reader.control.topics([source.topic]))
            (offset,) = await send_commands(setup, reader.control, [Addressed(source, None, order)])
        text = (
            f"sent to {source} at offset {offset}: the owner looks for it every {HALT_LOOK_S:g} s while {self.id} "
            "stops the partition, and skips it otherwise"
        )
        where = {"actor": self.actor, "partition": self.partition, "id": self.id, "offset": offset}
        return Answer(content={"command": self.verb, **where}, lines=[text])


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryStopped(_ResolveStopped):
    """Hand the timer, result or close of ID to its handler again."""

    command: ClassVar[str] = "stopped retry"


@dataclass(frozen=True, slots=True, kw_only=True)
class DropStopped(_ResolveStopped):
    """Drop the timer, result or close of ID. A periodic timer goes on with its next time."""

    command: ClassVar[str] = "stopped drop"
