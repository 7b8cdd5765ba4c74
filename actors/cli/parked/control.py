"""What `parked retry` and `parked drop` share: their options, and how their outcome is printed.

ACTOR and KEY name one key; `--all` without KEY selects many. `actors.admin.parked.commands` sends the commands.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Concatenate, ParamSpec

import click

from actors.admin.parked.commands import AdminCommand, count_of
from actors.admin.parked.many import Many, Which
from actors.admin.parked.reader import (
    ParkedError,
    ParkedQueue,
    ParkedReader,
    What,
    chosen,
    key_json,
    wanted_keys,
)
from actors.cli.parked.choice import known_actor
from actors.cli.session import Session
from stores._core.printable import counted

P = ParamSpec("P")

DEFAULT_TIMEOUT_S = 30.0
SHOWN_FAILURES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The line or lines that a command is for, as they were named, and how many seconds to wait for the outcome."""

    actor: str | None
    key: str | None
    what: What | None
    partition: int | None
    error: str
    since: datetime | None
    until: datetime | None
    is_all: bool
    timeout: float

    def check(self) -> None:
        """Refuse options that contradict each other.

        Raises:
            click.UsageError: naming them.
        """
        if self.key is None and not self.is_all:
            raise click.UsageError("name ACTOR and KEY, or choose with --all and without KEY")
        if self.key is not None and (self.error or self.since or self.until):
            raise click.UsageError("--error, --since and --until choose keys: leave KEY out, and give --all")

    @property
    def which(self) -> Which:
        """The keys that are meant where none is named."""
        return Which(
            what=self.what,
            partition=self.partition,
            error=self.error,
            since_ms=_unix_ms(self.since),
            until_ms=_unix_ms(self.until),
        )


def _unix_ms(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.replace(tzinfo=UTC).timestamp() * 1000)


def with_choice(command: Callable[Concatenate[Session, Choice, P], None]) -> Callable[..., None]:
    """Add the options by which both commands choose a line and wait."""

    @click.argument("actor", required=False)
    @click.argument("key", required=False)
    @click.option("--what", type=click.Choice(["message", "effect"]), help="Only these.")
    @click.option("--partition", type=click.IntRange(min=0), help="Only in this partition of the input.")
    @click.option("--error", metavar="TEXT", default="", help="With --all: keys whose error has this text.")
    @click.option("--since", type=click.DateTime(), help="With --all: keys parked then or later, in UTC.")
    @click.option("--until", type=click.DateTime(), help="With --all: keys parked before, in UTC.")
    @click.option("--all", "is_all", is_flag=True, help="All keys, of ACTOR if it is named; with KEY, all of the key.")
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
        choice.check()
        command(session, choice, *args, **options)

    return chosen_by_name


@contextlib.asynccontextmanager
async def admin_command_for(session: Session, choice: Choice) -> AsyncIterator[AdminCommand]:
    """Connect for the time of the block, and look what is parked.

    Raises:
        ParkedError: nothing is, or the actor parks nothing.
        BrokerUnavailableError: no broker answers.
    """
    if choice.actor is None or choice.key is None:
        raise AssertionError("one key is named")
    definition = known_actor(session, choice.actor)
    async with ParkedReader.connect(session.setup) as reader:
        lines = await reader.lines([definition], wanted_keys(definition, choice.key))
        lines = chosen(definition, lines, choice.key)
        line = _one(lines, choice.what, choice.partition)
        yield AdminCommand(definition, line, session.setup, reader, time.monotonic() + choice.timeout)


async def carry_out_for_all(
    session: Session, choice: Choice, carry_out: Callable[[Many], Awaitable[None]], *, asks: bool = False
) -> Many:
    """Carry a command out for many keys.

    Raises:
        click.Abort: it was asked whether to, and the answer is no.
    """
    actors = session.app.actors
    definitions = [known_actor(session, choice.actor)] if choice.actor is not None else list(actors.values())
    async with ParkedReader.connect(session.setup) as reader:
        lines = [line for line in await reader.lines(definitions) if choice.which.takes(line)]
        if asks and lines:
            entries = _counted_entries((line.what, len(line.entries)) for line in lines)
            click.confirm(f"Drop {entries} of {counted(len(lines), 'key')}?", abort=True, err=True)
        admin_commands = [AdminCommand(actors[line.actor], line, session.setup, reader, 0.0) for line in lines]
        many = Many(admin_commands, choice.timeout, {})
        await carry_out(many)
    return many


def _one(lines: Sequence[ParkedQueue], what: What | None, partition: int | None) -> ParkedQueue:
    found = [line for line in lines if what in (None, line.what) and partition in (None, line.partition)]
    if not found:
        raise ParkedError("nothing is parked for the key there: see `parked list`")
    if len({line.what for line in found}) > 1:
        raise click.UsageError("messages and effects of the key are parked: choose with --what")
    if len(found) > 1:
        where = ", ".join(str(line.partition) for line in found)
        raise click.UsageError(f"the key is parked in partitions {where}: choose one with --partition")
    return found[0]


def _counted_entries(entries: Iterable[tuple[What, int]]) -> str:
    """Return how many messages and effects there are, as text; of kinds that there are none of, nothing."""
    counts = Counter[What]()
    for what, count in entries:
        counts[what] += count
    return (
        " and ".join(counted(count, what) for what, count in sorted(counts.items(), reverse=True) if count) or "nothing"
    )


def tell_all(session: Session, command: str, many: Many) -> None:
    """Print the outcome for many keys.

    Raises:
        click.ClickException: some keys are still parked.
    """
    if session.as_json:
        session.say_json(
            [
                _as_json(command, admin_command, many.failures.get(place))
                for place, admin_command in enumerate(many.admin_commands)
            ]
        )
    else:
        gone = _counted_entries((one.line.what, len(one.gone)) for one in many.admin_commands)
        keys = counted(len(many.admin_commands) - len(many.failures), "key")
        session.say(f"{'dropped' if command == 'drop' else 'handled'}: {gone} of {keys}")
        for place, failure in list(many.failures.items())[:SHOWN_FAILURES]:
            line = many.admin_commands[place].line
            session.remark(f"{line.actor} {line.shown_key}: {' '.join(failure.split())}")
    if many.failures:
        raise click.ClickException(f"{len(many.failures)} of {len(many.admin_commands)} keys are still parked")


def _as_json(command: str, admin_command: AdminCommand, failure: str | None) -> dict[str, Any]:
    line, left = admin_command.line, admin_command.left
    return {
        "command": command,
        "actor": line.actor,
        "what": line.what,
        "partition": line.partition,
        "key": key_json(line),
        "gone": admin_command.gone,
        "left": [] if left is None else [entry.id for entry in left.entries],
        "error": failure,
    }


def tell(session: Session, command: str, admin_command: AdminCommand, failure: str | None) -> None:
    """Print the outcome for one key.

    Raises:
        click.ClickException: `failure` isn't None.
    """
    line, left = admin_command.line, admin_command.left
    if session.as_json:
        session.say_json(_as_json(command, admin_command, failure))
    else:
        verb = "dropped" if command == "drop" else "handled" if line.what == "message" else "done"
        for gone in admin_command.gone:
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
