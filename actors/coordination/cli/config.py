"""`faust -A APP config set | delete | watch`: what asks the service, of which a worker has to run."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import click

from actors.cli.coordination import examples
from actors.cli.session import Session, with_session
from actors.coordination.cli.nodes import no_node
from actors.coordination.cli.service import NameType, client_of, is_text, timeout_option
from actors.coordination.cli.text import quoted
from actors.coordination.messages import MAX_DATA, View
from stores._core.printable import printable

STDIN = "-"
_VERSION = click.IntRange(min=1)


@click.command(
    "set",
    epilog=examples(
        "faust -A actors.coordination.app config set prices/vat 19 --version 3",
        "faust -A actors.coordination.app config set prices/table - < table.json",
    ),
)
@click.argument("name", type=NameType())
@click.argument("value")
@click.option("--version", type=_VERSION, metavar="N", help="Only if this is its version now.")
@click.option("--absent", is_flag=True, help="Only if it isn't there yet.")
@timeout_option
@with_session
def set_node(session: Session, name: str, value: str, version: int | None, absent: bool, timeout: float) -> None:
    """Write node NAME, and print the version that it has then. Exits with 1 where it has another than expected.

    VALUE - is read from stdin, without one newline at its end, which `get` adds. A value that begins with a dash comes
    behind a `--`.
    """
    if absent and version is not None:
        raise click.UsageError("--absent and --version contradict each other: a node that isn't there has no version")
    data = _from_stdin() if value == STDIN else value
    if not is_text(data):
        raise click.UsageError("VALUE isn't UTF-8 text: nodes hold text, encode it, as with base64")
    if len(data) > MAX_DATA:
        raise click.UsageError(f"VALUE has more than {MAX_DATA} characters: keep it elsewhere and its name in the node")
    expected = 0 if absent else version

    async def put() -> int:
        async with client_of(session, timeout) as client:
            return await client.put(name, data, version=expected)

    _tell(session, name, "is at", asyncio.run(put()))


def _from_stdin() -> str:
    """Read a value, no more of it than shows that it is too long.

    Raises:
        click.UsageError: it isn't text.
    """
    # Characters have up to four bytes; a newline at the end is taken off.
    raw = sys.stdin.buffer.read(4 * (MAX_DATA + 2))
    try:
        return raw.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"stdin isn't UTF-8 text ({error.reason} at byte {error.start}): encode it") from error


@click.command("delete", epilog=examples("faust -A actors.coordination.app config delete prices/vat --version 4"))
@click.argument("name", type=NameType())
@click.option("--version", type=_VERSION, metavar="N", help="Only if this is its version now.")
@timeout_option
@with_session
def delete_node(session: Session, name: str, version: int | None, timeout: float) -> None:
    """Delete node NAME. Exits with 1 where it isn't there, or has another version than expected."""

    async def delete() -> int:
        async with client_of(session, timeout) as client:
            if await client.get(name) is None:
                raise no_node(session, name)
            return await client.delete(name, version=version)

    _tell(session, name, "is deleted, at", asyncio.run(delete()))


def _tell(session: Session, name: str, what: str, version: int) -> None:
    if session.as_json:
        session.say_json({"name": name, "version": version})
    else:
        session.say(f"{printable(name)} {what} version {version}")


@click.command("watch", epilog=examples("faust --json -A actors.coordination.app config watch prices/vat"))
@click.argument("name", type=NameType())
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after so many lines; else with Ctrl-C.")
@timeout_option
@with_session
def watch_node(session: Session, name: str, count: int | None, timeout: float) -> None:
    """Print node NAME as it is, then each change.

    A line each, or with `faust --json` an object, with version and data. What changes twice in a short time may be
    shown once. Ctrl-C ends it with exit code 0; it ends with 1 when no worker of the service answers.
    """
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_watch(session, name, count, timeout))


async def _watch(session: Session, name: str, count: int | None, timeout_s: float) -> None:
    async with client_of(session, timeout_s) as client:
        # A watch is answered when something happens: whether anybody is there shows sooner like this.
        first = await client.look(name)
        _say_change(session, name, first)
        said, version = 1, first.data_version
        if said == count:
            return
        async for view in client.watch(name, first.version):
            if view.data_version == version:
                continue
            _say_change(session, name, view)
            said, version = said + 1, view.data_version
            if said == count:
                return


def _say_change(session: Session, name: str, view: View) -> None:
    if session.as_json:
        is_there = view.data is not None
        session.say_json({"name": name, "version": view.data_version, "data": view.data, "found": is_there})
    elif view.data is not None:
        session.say(f"version {view.data_version}: {quoted(view.data)}")
    else:
        session.say(f"version {view.data_version}: {'deleted' if view.data_version else 'not there'}")
