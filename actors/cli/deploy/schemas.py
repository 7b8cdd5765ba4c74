"""`faust -A APP schemas`: the schemas that an app declares beside those of its registry."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Coroutine
from typing import Any, TypeVar

import aiohttp
import click

from actors.cli.deploy.changes import Action, Change
from actors.cli.session import Session, with_session
from actors.errors import ConfigurationError
from actors.formats.registry import RegistryError, client_of
from actors.formats.schemas.compatibility import lines
from actors.formats.schemas.declared import Verdict, compare, declared_schemas, exported, register
from stores._core.printable import counted

T = TypeVar("T")
_COLUMNS = ("subject", "format", "declared by", "compatibility", "registry")


@click.group("schemas")
def schemas() -> None:
    """Compare the schemas that topics and stores declare with the registry, and register them."""


@schemas.command("list")
@with_session
def list_(session: Session) -> None:
    """Print the schemas that the program declares, and what the registry has of them."""
    _print(session, _asked(compare(session.app)))


@schemas.command("check")
@with_session
def check(session: Session) -> None:
    """Compare the program's schemas with the registry's, by each subject's compatibility; for CI.

    Names the fields, and whom they break: this program, which can't read what others wrote, or programs with an earlier
    schema, which can't read what this one writes. Exit code: 0 nothing breaks, 1 something does.
    """
    verdicts = _asked(compare(session.app))
    _print(session, verdicts)
    if any(verdict.breaks for verdict in verdicts):
        raise click.exceptions.Exit(1)


@schemas.command("register")
@click.argument("subjects", nargs=-1)
@with_session
def register_(session: Session, subjects: tuple[str, ...]) -> None:
    """Register the schemas that the registry lacks, or those of the given SUBJECTS.

    Schemas of topics that actors read are left out if the subject has versions: those are of the programs that write
    them, unless the subject is named.
    """
    declared = {schema.subject for schema in declared_schemas(session.app)}
    unknown = [subject for subject in subjects if subject not in declared]
    if unknown:
        raise ConfigurationError(
            f"no topic or store declares subject {unknown[0]!r}. Subjects: {', '.join(sorted(declared)) or 'none'}"
        )
    registered = _asked(register(session.app, subjects))
    if session.as_json:
        session.say_json([{"subject": schema.subject, "version": version} for schema, version in registered])
    for schema, version in () if session.as_json else registered:
        session.say(f"registered {schema.subject}, version {version}")
    if not registered and not session.as_json:
        session.say("the registry has all schemas: nothing was registered")


@schemas.command("diff")
@click.argument("subjects", nargs=-1)
@with_session
def diff(session: Session, subjects: tuple[str, ...]) -> None:
    """Print the lines in which declared schemas differ from the latest of the registry."""
    for verdict in _asked(compare(session.app)):
        declared = verdict.declared
        if (subjects and declared.subject not in subjects) or declared.schema is None:
            continue
        latest = None
        if verdict.latest:
            _, latest = _asked(client_of(session.app).at_version(declared.subject, verdict.latest))
        version = f"{declared.subject}, version {verdict.latest}" if latest else ""
        try:
            former = lines(latest) if latest else []
        except ValueError as error:
            raise click.ClickException(f"subject {version}: {error}") from error
        own = former if latest and verdict.version == verdict.latest else lines(declared.schema)
        place = f"{declared.subject}, declared by {declared.places[0]}"
        for line in difflib.unified_diff(former, own, version, place, lineterm=""):
            session.say_content(line)


@schemas.command("export")
@with_session
def export(session: Session) -> None:
    """Print the schemas of the program's Avro stores, to be kept beside an archive: see `spark_replay rebuild`."""
    session.say_json(_asked(exported(session.app)))


def planned(session: Session) -> list[Change]:
    """Return what a deploy changes of the registry's schemas, and what they break."""
    if not declared_schemas(session.app):
        return []
    registers, changes = session.app.register_schemas, list[Change]()
    for verdict in _asked(compare(session.app)):
        name = verdict.declared.subject
        changes += [Change(action=Action.REFUSE, kind="schema", name=name, text=text) for text in verdict.breaks]
        if not verdict.breaks and not verdict.is_registered:
            remedy = "A worker registers it" if registers else "Workers wait for it: `schemas register` does it"
            changes.append(Change(action=Action.CREATE, kind="schema", name=name, text=str(verdict), remedy=remedy))
    return changes


def _asked(answer: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(answer)
    except (RegistryError, OSError, ValueError, aiohttp.ClientError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise click.ClickException(f"the schema registry: {error or type(error).__name__}") from error


def _print(session: Session, verdicts: list[Verdict]) -> None:
    if session.as_json:
        session.say_json([_as_json(verdict) for verdict in verdicts])
        return
    if not verdicts:
        session.say("no topic or store has a format with a schema registry")
        return
    rows = [
        (
            verdict.declared.subject,
            verdict.declared.format,
            ", ".join(verdict.declared.places),
            verdict.mode,
            "breaks" if verdict.breaks else str(verdict),
        )
        for verdict in verdicts
    ]
    session.say_table(f"Schemas of {session.app.conf.id}", _COLUMNS, rows)
    broken = [verdict for verdict in verdicts if verdict.breaks]
    for verdict in broken:
        for text in verdict.breaks:
            session.say(f"subject {verdict.declared.subject} ({verdict.mode}): {text}")
    session.say(f"{counted(len(verdicts), 'schema')}, {len(broken)} that break something")


def _as_json(verdict: Verdict) -> dict[str, Any]:
    declared = verdict.declared
    return {
        "subject": declared.subject,
        "format": declared.format,
        "declared_by": list(declared.places),
        "compatibility": verdict.mode,
        "version": verdict.version or None,
        "latest": verdict.latest or None,
        "registered": verdict.is_registered,
        "breaks": list(verdict.breaks),
    }
