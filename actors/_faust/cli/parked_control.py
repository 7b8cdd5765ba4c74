"""`faust -A APP parked retry | drop ACTOR KEY`: tells the partition's owner, and waits for what comes of it.

How a command travels is in `actors._faust.parking.errands`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec

import click

from actors._faust.cli.parked_choice import known_actor
from actors._faust.cli.session import Session, with_session
from actors._faust.parking import errands
from actors._faust.parking.errands import Errand, count_of, failure_of
from actors._faust.parking.lines import (
    Line,
    ParkedError,
    ParkedReader,
    What,
    chosen,
    key_json,
    wanted_keys,
)

P = ParamSpec("P")

DEFAULT_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The line that a command is for, as it was named, and how many seconds to wait for the outcome."""

    actor: str
    key: str
    what: What | None
    partition: int | None
    timeout: float


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
    _tell(session, "retry", errand, failure_of(errand))


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


@contextlib.asynccontextmanager
async def _errand(session: Session, choice: Choice) -> AsyncIterator[Errand]:
    """Connect for the time of the block, and look what is parked.

    Raises:
        ParkedError: nothing is, or the actor parks nothing.
        BrokerUnavailableError: no broker answers.
    """
    definition = known_actor(session, choice.actor)
    async with ParkedReader.connect(session.setup) as reader:
        lines = await reader.lines([definition], wanted_keys(definition, choice.key))
        lines = chosen(definition, lines, choice.key)
        line = _one(lines, choice.what, choice.partition)
        yield Errand(definition, line, session.setup, reader, time.monotonic() + choice.timeout)


async def _retry(session: Session, choice: Choice) -> Errand:
    async with _errand(session, choice) as errand:
        await errands.retry(errand)
    return errand


async def _drop(session: Session, choice: Choice, entry_id: str | None, is_all: bool) -> Errand:
    async with _errand(session, choice) as errand:
        await errands.drop(errand, _to_drop(errand.line, entry_id, is_all), is_all=is_all)
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
        session.say(f"{count_of(left)} still parked")
