"""`faust -A APP parked retry | drop ACTOR KEY`: tells the partition's owner, and waits for what comes of it.

The command travels as a record of the actor's input: see `actors.runtime.parked`. The owner has carried it out when the
committed offset is behind it, and what the changelog says then is the outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Concatenate, ParamSpec

import click
import msgspec
from aiokafka import AIOKafkaProducer

from actors._faust.cli.parked_reading import Line, ParkedError, ParkedReader, What, actor_of, chosen, key_json
from actors._faust.cli.session import Session, with_session
from actors._faust.setup import Setup
from actors._kafka.connection import broker_errors
from actors.ports import TopicPartition
from actors.runtime.parked import ALL, CONTROL_HEADER, Command

if TYPE_CHECKING:
    from actors._faust.definition import ActorDefinition

P = ParamSpec("P")

DEFAULT_TIMEOUT_S = 30.0
LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The line that a command is for, as it was named, and how many seconds to wait for the outcome."""

    actor: str
    key: str
    what: What | None
    partition: int | None
    timeout: float


@dataclass(slots=True)
class Errand:
    """A command on its way.

    Attributes:
        line: what was parked when the command was given.
        deadline_s: when to stop waiting, by the monotonic clock.
        left: what is there now; None when nothing is.
        gone: the ids that aren't there any more.
    """

    definition: ActorDefinition
    line: Line
    setup: Setup
    reader: ParkedReader
    deadline_s: float
    left: Line | None = None
    gone: list[str] = field(default_factory=list)

    @classmethod
    @contextlib.asynccontextmanager
    async def begin(cls, session: Session, choice: Choice) -> AsyncIterator[Errand]:
        """Connect for the time of the block, and look what is parked.

        Raises:
            ParkedError: nothing is, or the actor isn't one of the app.
            BrokerUnavailableError: no broker answers.
        """
        definition = actor_of(session, choice.actor)
        async with ParkedReader.connect(session.setup) as reader:
            lines = chosen(definition, await reader.lines([definition]), choice.key)
            line = _one(lines, choice.what, choice.partition)
            yield cls(definition, line, session.setup, reader, time.monotonic() + choice.timeout)

    async def send(self, command: str, call_id: str | None = None) -> None:
        """Send a command, wait until it is carried out, and look what is there now.

        Raises:
            ParkedError: nobody carried it out in time.
            BrokerUnavailableError: the broker doesn't take it.
        """
        line = self.line
        told = Command(actor=line.actor, what=line.what, command=command, id=call_id)  # type: ignore[arg-type]
        source = TopicPartition(line.topic, line.partition)
        offset = await _produce(self.setup, source, line.key, msgspec.json.encode(told))
        while not await self._is_handled(source, offset):
            if time.monotonic() >= self.deadline_s:
                raise ParkedError(
                    f"no owner of {source} carried the command out in time: is a worker running, and not stopped in "
                    f"front of another record? The command is in the topic at offset {offset}, and takes effect when "
                    "its turn comes"
                )
            await asyncio.sleep(LOOK_S)
        await self.look()

    async def look(self) -> None:
        """Look what is there now of the line."""
        lines = await self.reader.lines_in(self.definition, self.line.what, self.line.partition)
        self.left = next((line for line in lines if line.key == self.line.key), None)
        here = set() if self.left is None else {entry.id for entry in self.left.entries}
        self.gone = [entry.id for entry in self.line.entries if entry.id not in here]

    async def _is_handled(self, source: TopicPartition, offset: int) -> bool:
        committed = await self.reader.control.committed(source)
        return committed is not None and committed.offset > offset


async def _produce(setup: Setup, source: TopicPartition, key: bytes, told: bytes) -> int:
    producer = AIOKafkaProducer(**setup.connection.arguments("parked"), acks="all", enable_idempotence=True)
    with broker_errors(f"sending a command to {source}"):
        try:
            await producer.start()
            sent = await producer.send_and_wait(
                source.topic, told, key, partition=source.partition, headers=[(CONTROL_HEADER, told)]
            )
            return int(sent.offset)
        finally:
            await producer.stop()


def _with_choice(command: Callable[Concatenate[Session, Choice, P], None]) -> Callable[..., None]:
    """Add the options by which both commands choose a line and wait."""

    @click.argument("actor")
    @click.argument("key")
    @click.option("--what", type=click.Choice(["message", "effect"]), help="Which one, where both are parked.")
    @click.option("--partition", type=click.IntRange(min=0), help="Which one, where several have the key.")
    @click.option(
        "--timeout",
        type=click.FloatRange(min=0.0),
        default=DEFAULT_TIMEOUT_S,
        show_default=True,
        help="How many seconds to wait for the outcome.",
    )
    @functools.wraps(command)
    def chosen_by_name(session: Session, /, *args: P.args, **options: P.kwargs) -> None:
        choice = Choice(**{name: options.pop(name) for name in Choice.__slots__})  # type: ignore[arg-type]
        command(session, choice, *args, **options)

    return chosen_by_name


@click.command("retry")
@with_session
@_with_choice
def retry(session: Session, choice: Choice) -> None:
    """Hand the parked messages of KEY to their handler again, in order, or call its parked effect again.

    KEY is as `parked list` shows it. Exits with 1 if one fails again: it and those behind it stay parked.
    """
    errand = asyncio.run(_retry(session, choice))
    _tell(session, "retry", errand, _failure(errand))


@click.command("drop")
@click.option("--id", "entry_id", metavar="ID", help="This one; the first when left out.")
@click.option("--all", "is_all", is_flag=True, help="All that wait of the key.")
@with_session
@_with_choice
def drop(session: Session, choice: Choice, entry_id: str | None, is_all: bool) -> None:
    """Forget the first parked message or effect of KEY, the one of an id, or all.

    Messages behind a dropped one stay parked until `parked retry`; effects behind it go on at once.
    """
    if entry_id is not None and is_all:
        raise click.UsageError("--id and --all contradict each other")
    errand = asyncio.run(_drop(session, choice, entry_id, is_all))
    missed = set(_to_drop(errand.line, entry_id, is_all)) - set(errand.gone)
    failure = None if not missed else f"not dropped: {', '.join(sorted(missed))}: see the log of the partition's owner"
    _tell(session, "drop", errand, failure)


async def _retry(session: Session, choice: Choice) -> Errand:
    async with Errand.begin(session, choice) as errand:
        before = -1
        # One command hands only so many to the handler.
        while before < len(errand.gone):
            before = len(errand.gone)
            await errand.send("retry")
            if errand.line.what == "effect" or errand.left is None or _failure(errand) is not None:
                break
        while errand.line.what == "effect" and _is_pending(errand) and time.monotonic() < errand.deadline_s:
            await asyncio.sleep(LOOK_S)
            await errand.look()
    return errand


async def _drop(session: Session, choice: Choice, entry_id: str | None, is_all: bool) -> Errand:
    async with Errand.begin(session, choice) as errand:
        if is_all and errand.line.what == "message":
            await errand.send("drop", ALL)
        else:
            # The parked one last: those behind it would begin to run.
            for dropped in reversed(_to_drop(errand.line, entry_id, is_all)):
                await errand.send("drop", dropped)
    return errand


def _to_drop(line: Line, entry_id: str | None, is_all: bool) -> list[str]:
    """Give the ids to drop, never "the first": a command that is given twice must not drop two.

    Raises:
        ParkedError: there is none of that id.
    """
    ids = [entry.id for entry in line.entries]
    if is_all:
        return ids
    if entry_id is None:
        return ids[:1]
    if entry_id not in ids:
        raise ParkedError(f"key {line.shown_key!r} has nothing parked with id {entry_id!r}, but {', '.join(ids)}")
    return [entry_id]


def _one(lines: Sequence[Line], what: What | None, partition: int | None) -> Line:
    found = [line for line in lines if what in (None, line.what) and partition in (None, line.partition)]
    if not found:
        raise ParkedError("nothing is parked for the key there: see `parked list`")
    if len({line.what for line in found}) > 1:
        raise click.UsageError("messages and effects of the key are parked: choose with --what")
    if len(found) > 1:
        where = ", ".join(str(line.partition) for line in found)
        raise click.UsageError(f"the key is parked in partitions {where}: choose one with --partition")
    return found[0]


def _failure(errand: Errand) -> str | None:
    """Say what failed again of a line that was retried; None if nothing did."""
    left, before = errand.left, {entry.sequence: entry for entry in errand.line.entries}
    if left is None or (left.what == "effect" and not left.head.is_parked):
        return None
    known = before.get(left.head.sequence)
    if left.head.error is not None and (known is None or left.head.attempts != known.attempts or left.what == "effect"):
        return f"{left.head.id} failed again, {_count(left)} still parked: {left.head.error}"
    if not errand.gone:
        return f"{_count(left)} still parked, and nothing was tried: see the log of the partition's owner"
    return None


def _is_pending(errand: Errand) -> bool:
    """Tell whether effects that were to be called again are neither done nor parked again."""
    left = errand.left
    return left is not None and not left.head.is_parked and left.head.id == errand.line.head.id


def _count(line: Line) -> str:
    count = len(line.entries)
    return f"{count} {line.what}{'s are' if count > 1 else ' is'}"


def _tell(session: Session, command: str, errand: Errand, failure: str | None) -> None:
    line, left = errand.line, errand.left
    if session.as_json:
        session.say_json(
            {
                "command": command,
                "actor": line.actor,
                "what": line.what,
                "partition": line.partition,
                "key": key_json(line),
                "gone": errand.gone,
                "left": [] if left is None else [entry.id for entry in left.entries],
                "error": failure,
            }
        )
    else:
        verb = "dropped" if command == "drop" else "handled" if line.what == "message" else "done"
        for gone in errand.gone:
            session.say(f"{verb}: {gone}")
    if failure is not None:
        raise click.ClickException(" ".join(failure.split()))
    if session.as_json:
        return
    if left is None:
        session.say(f"nothing of key {line.shown_key} is parked any more")
    elif left.what == "effect" and not left.head.is_parked:
        session.say(f"being called: {left.head.id}")
    else:
        session.say(f"{_count(left)} still parked")
