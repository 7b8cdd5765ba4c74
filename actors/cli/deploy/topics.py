"""`faust -A APP topics`: all topics and permissions that an app needs, for people and for what makes topics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from shlex import quote
from typing import Any

import click

from actors._faust.startup.needs import GIVEN_PARTITIONS, TopicNeed, counts, permissions, principal_of, topic_needs
from actors._faust.startup.topic_settings import Finding, command, compare, repair
from actors._kafka.permissions import Permission, acl_commands
from actors.cli.session import Session, with_session
from stores._core.printable import counted

FORMATS = ("table", "json", "kafka-topics", "kafka-acls")
_COLUMNS = ("topic", "what for", "#partitions", "settings", "operations")
partitions_option = click.option(
    "--partitions",
    type=click.IntRange(min=1),
    default=GIVEN_PARTITIONS,
    show_default=True,
    help="Of inputs and outputs that are new. An input keeps its number for ever, with what depends on it.",
)
replication_option = click.option(
    "--replication", type=click.IntRange(min=1), help="How many replicas; the app's setting, or the broker's."
)


@click.group("topics", invoke_without_command=True)
@click.option(
    "--format", "shape", type=click.Choice(FORMATS), default="table", show_default=True, help="What to print."
)
@click.option("--check", "is_check", is_flag=True, help="Compare with the cluster; exits with 1 where it differs.")
@partitions_option
@replication_option
@click.option("--principal", help="The workers' user, as User:NAME; that of broker_credentials.")
@click.pass_context
def topics(context: click.Context, /, **options: Any) -> None:
    """Print all topics that the app needs, with partitions and settings, or the commands that create them.

    It follows from the program: no broker is asked, unless with --check, which names topics that are missing, have
    another number of partitions, or have settings that endanger something. With `create_topics=False` workers make
    none of them.
    """
    if context.invoked_subcommand is None:
        _show(**options)


@with_session
def _show(
    session: Session,
    shape: str,
    is_check: bool,
    partitions: int,
    replication: int | None,
    principal: str | None,
) -> None:
    needs = topic_needs(session.setup)
    if is_check:
        _check(session, needs)
        return
    setup, granted = session.setup, permissions(session.setup, needs)
    bootstrap, user = ",".join(setup.connection.bootstrap), principal or principal_of(setup)
    if session.as_json or shape == "json":
        session.say_json(topics_as_json(needs, granted))
    elif shape == "table":
        _print(session, needs, granted, user)
    elif shape == "kafka-acls":
        session.say_content("\n".join(acl_commands(granted, bootstrap=bootstrap, principal=user)))
    else:
        given = setup.changelog_settings.replication_factor
        copies = replication or (given if given > 0 else None)
        session.say_content(kafka_topics(needs, bootstrap=bootstrap, free=partitions, replication=copies))


def _print(session: Session, needs: Sequence[TopicNeed], granted: Sequence[Permission], user: str) -> None:
    rows = [
        (
            need.name,
            "; ".join(need.roles),
            str(need.partitions) if need.partitions else f"as {need.like}" if need.like else "free",
            " ".join(f"{key}={value}" for key, value in need.config.items()) or "-",
            ", ".join(operation.word for operation in sorted(need.operations)),
        )
        for need in needs
    ]
    session.say_table(f"Topics of {session.app.conf.id}", _COLUMNS, rows)
    for permission in granted:
        if permission.resource != "topic":
            session.say(f"{permission}, for {user}")


def topics_as_json(needs: Sequence[TopicNeed], granted: Sequence[Permission]) -> dict[str, Any]:
    """Return all of it as data; `partitions` None is free, `partitions_of` names the topic whose number it follows."""
    return {
        "topics": [
            {
                "topic": need.name,
                "roles": list(need.roles),
                "partitions": need.partitions,
                "partitions_of": need.like or None,
                "config": dict(need.config),
                "operations": [operation.word for operation in sorted(need.operations)],
                "made_by_workers": need.is_made,
            }
            for need in needs
        ],
        "permissions": [
            {
                "resource": permission.resource,
                "name": permission.name,
                "pattern": "prefixed" if permission.is_prefix else "literal",
                "operation": permission.operation.word,
            }
            for permission in granted
        ],
    }


def kafka_topics(needs: Sequence[TopicNeed], *, bootstrap: str, free: int, replication: int | None) -> str:
    """Return the commands that make the topics; `replication` None leaves the number of replicas to the brokers."""
    sizes = counts(needs, free)
    return "\n".join(
        f"kafka-topics.sh --bootstrap-server {bootstrap} --create --if-not-exists --topic {quote(need.name)} "
        f"--partitions {sizes[need.name]}"
        + (f" --replication-factor {replication}" if replication else "")
        + "".join(f" --config {quote(f'{key}={value}')}" for key, value in need.config.items())
        for need in needs
    )


def _check(session: Session, needs: Sequence[TopicNeed]) -> None:
    found = asyncio.run(compare(session.setup, needs))
    bootstrap = session.setup.connection.bootstrap[0]
    errors = [finding for finding in found if finding.is_error]
    if session.as_json:
        session.say_json([_as_json(finding, bootstrap) for finding in found])
    else:
        for finding in found:
            level = "error" if finding.is_error else "warning"
            session.say(f"{level}: topic {finding.topic}: {finding.what}: {finding.why}. {repair(bootstrap, finding)}")
        warnings = len(found) - len(errors)
        session.say(f"{counted(len(needs), 'topic')}, {counted(len(errors), 'error')}, {counted(warnings, 'warning')}")
    if errors:
        raise click.exceptions.Exit(1)


def _as_json(one: Finding, bootstrap: str) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "level": "error" if one.is_error else "warning",
        "what": one.what,
        "why": one.why,
        "command": command(bootstrap, one.change, [one.topic]) if one.change else None,
    }
