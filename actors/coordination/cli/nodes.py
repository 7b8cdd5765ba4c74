"""`faust -A APP config get | list`: the nodes, from what is committed."""

from __future__ import annotations

import asyncio

import click

from actors.cli.coordination import examples
from actors.cli.session import Session, with_session
from actors.coordination.cli.locks import node_json
from actors.coordination.cli.reading import Found, read
from actors.coordination.cli.service import NameType, UnknownNameError
from actors.coordination.cli.text import left, short
from stores._core.printable import moment, printable

_COLUMNS = ("name", "#version", "data", "session", "#left")


@click.command("get", epilog=examples("faust -A actors.coordination.app config get prices/vat"))
@click.argument("name", type=NameType())
@with_session
def get_node(session: Session, name: str) -> None:
    """Print the data of node NAME, and a newline. Exits with 1 where there is no such node.

    It is what is committed, also when no worker of the service runs. `faust --json` shows the version too.
    """
    reading = asyncio.run(read(session, name))
    one = next(iter(reading.found), None)
    node = None if one is None else one.node
    if one is None or node is None:
        raise no_node(session, name)
    if session.as_json:
        session.say_json({"name": name, "read_at_ms": reading.read_at_ms, **node_json(one)})
    else:
        session.say_content(node.data or "")


def no_node(session: Session, name: str) -> UnknownNameError:
    """Return the error for a node that isn't there."""
    return UnknownNameError(f"app {session.app.conf.id} has no node {name!r}: see `config list`", "unknown")


@click.command("list", epilog=examples("faust -A actors.coordination.app config list --prefix prices/"))
@click.option("--prefix", default="", metavar="TEXT", help="Only names that begin with it.")
@with_session
def list_nodes(session: Session, prefix: str) -> None:
    """List the nodes with their versions.

    It is what is committed, also when no worker of the service runs.
    """
    reading = asyncio.run(read(session))
    found = [one for one in reading.found if one.node is not None and one.name.startswith(prefix)]
    if session.as_json:
        about = {"app": str(session.app.conf.id), "read_at_ms": reading.read_at_ms}
        session.say_json({**about, "nodes": [{"name": one.name, **node_json(one)} for one in found]})
        return
    when = f"as committed at {moment(reading.read_at_ms)}"
    if not found:
        session.say(f"no nodes to show of {session.app.conf.id}, {when}")
        return
    session.say_table(f"Nodes of {session.app.conf.id}, {when}", _COLUMNS, map(_row, found))


def _row(one: Found) -> list[str]:
    node = one.resource.node
    return [
        printable(one.name),
        str(node.version),
        short(node.data or ""),
        printable(node.session) or "-",
        "-" if node.expires_ms is None else left(node.expires_ms, one.now_ms),
    ]
