"""The commands of `actors.admin.operations`: their arguments and options are the operations' fields."""

from __future__ import annotations

import asyncio
import getpass
import inspect
import signal
import socket
from collections.abc import Iterable
from dataclasses import MISSING, Field, fields
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from actors.admin.operation import Answer, Caller, Operation
from actors.cli.session import Session, with_session
from actors.errors import UsageError

_GROUPS = {
    "parked": "Look at what was put aside because it failed, hand it to its actor again, or drop it.",
    "stopped": "Retry or drop the timer, the result or the close that stopped a partition; the error in the log names "
    "it.",
    "timers": "Look at the timers of keys, or drop one.",
    "feeds": "Release feeds that hold event time back.",
    "locks": "Look at the lock service's locks, leaders and nodes, break a lock, and set a node.",
}


def add_operations(root: click.Group, operations: Iterable[type[Operation]]) -> None:
    """Add a command for each operation, in the groups that its words name."""
    for operation in operations:
        *groups, name = operation.command.split()
        parent = root
        for word in groups:
            if word not in parent.commands:
                parent.add_command(click.Group(word, help=_GROUPS[word], epilog=_examples(operation)))
            group = parent.commands[word]
            if not isinstance(group, click.Group):
                raise TypeError(f"{word} is a command and no group")
            parent = group
        parent.add_command(_command(operation, name))


def _command(operation: type[Operation], name: str) -> click.Command:
    @with_session
    def run(session: Session, /, **arguments: Any) -> None:
        caller = Caller(_caller(), _confirm)
        try:
            answer = asyncio.run(operation(**arguments).run(session.setup, caller))
        except UsageError as error:
            raise click.UsageError(str(error)) from error
        _print(session, answer)

    hints = get_type_hints(operation)
    parameters = [_parameter(field, hints[field.name]) for field in fields(operation)]
    return click.Command(
        name, callback=run, params=parameters, help=inspect.getdoc(operation), epilog=_examples(operation)
    )


def _examples(operation: type[Operation]) -> str | None:
    """Return the end of a command's help: calls as they are typed, which click would fold into a paragraph."""
    if not operation.examples:
        return None
    title = "Example:" if len(operation.examples) == 1 else "Examples:"
    return "\b\n" + "\n".join([title, *(f"  {line}" for line in operation.examples)])


def _parameter(field: Field[Any], hint: Any) -> click.Parameter:
    least, most = field.metadata.get("least", 0), field.metadata.get("most")
    types = {int: click.IntRange(least, most), float: click.FloatRange(least, most), datetime: click.DateTime()}
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint]
    kind = next(part for part in parts if part is not NoneType)
    is_many = get_origin(kind) is tuple
    choices = click.Choice(get_args(kind)) if get_origin(kind) is Literal else None
    metavar, chosen = field.metadata.get("metavar"), choices or types.get(kind, click.STRING)
    if "help" not in field.metadata:
        own = field.metadata.get("type", chosen)
        return click.Argument([field.name], type=own, required=field.default is MISSING, metavar=metavar)
    return click.Option(
        [field.metadata.get("flag", f"--{field.name}"), field.name],
        type=click.BOOL if kind is bool else click.STRING if is_many else chosen,
        is_flag=kind is bool,
        multiple=is_many,
        default=field.default,
        show_default=kind is not bool and bool(field.default),
        metavar=metavar,
        help=field.metadata["help"],
    )


def _print(session: Session, answer: Answer) -> None:
    for remark in answer.remarks:
        session.remark(remark)
    has_text = bool(answer.lines or answer.table)
    if answer.content is not None and (session.as_json or not has_text):
        session.say_json(answer.content)
    else:
        if answer.table is not None:
            session.say_table(*answer.table)
        for line in answer.lines:
            session.say(line)
    if answer.failure is not None:
        raise click.ClickException(" ".join(answer.failure.split()))


def _confirm(question: str) -> None:
    # The event loop's would end the command at its next await, which comes behind the answer.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        click.confirm(question, abort=True, err=True)
    finally:
        signal.signal(signal.SIGINT, former)


def _caller() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
