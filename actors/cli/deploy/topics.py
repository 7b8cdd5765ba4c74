"""`faust -A APP topics`: all topics and permissions that an app needs, for people and for what makes topics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from actors._faust.startup.needs import GIVEN_PARTITIONS, TopicNeed, permissions, principal_of, topic_needs
from actors._faust.startup.topic_settings import Finding, command, compare, repair
from actors.cli.session import Session, with_session
from stores._core.printable import counted

if TYPE_CHECKING:
    from actors.cli.deploy.topics_as import Plan

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
    from actors.cli.deploy import topics_as

    setup = session.setup
    given = setup.changelog_settings.replication_factor
    plan = topics_as.Plan(
        needs=needs,
        permissions=permissions(setup, needs),
        bootstrap=",".join(setup.connection.bootstrap),
        principal=principal or principal_of(setup),
        partitions=partitions,
        replication=replication or (given if given > 0 else None),
    )
    if session.as_json or shape == "json":
        session.say_json(topics_as.as_json(plan))
    elif shape == "table":
        _print(session, plan)
    else:
        session.say_content(topics_as.FORMATS[shape](plan))


def _print(session: Session, plan: Plan) -> None:
    rows = [
        (
            need.name,
            "; ".join(need.roles),
            str(need.partitions) if need.partitions else f"as {need.like}" if need.like else "free",
            " ".join(f"{key}={value}" for key, value in need.config.items()) or "-",
            ", ".join(operation.word for operation in sorted(need.operations)),
        )
        for need in plan.needs
    ]
    session.say_table(f"Topics of {session.app.conf.id}", _COLUMNS, rows)
    for one in plan.permissions:
        if one.resource != "topic":
            session.say(f"{one}, for {plan.principal}")


# --- with the cluster ----------------------------------------------------------------------------------------------


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
