"""`faust -A APP locks set`: writes or deletes a node. A worker of the service has to run."""

from __future__ import annotations

import asyncio
import sys

import click

from actors.cli.coordination import examples
from actors.cli.session import Session, with_session
from actors.coordination.cli.service import NameType, UnknownNameError, client_of, is_text, timeout_option
from actors.coordination.messages import MAX_DATA
from stores._core.printable import printable

STDIN = "-"


@click.command(
    "set",
    epilog=examples(
        "faust -A actors.coordination.app locks set prices/vat 19 --version 3",
        "faust -A actors.coordination.app locks set prices/table - < table.json",
        "faust -A actors.coordination.app locks set prices/vat --delete",
    ),
)
@click.argument("name", type=NameType())
@click.argument("value", required=False)
@click.option(
    "--version", type=click.IntRange(min=0), metavar="N", help="Only if this is its version now; 0: none yet."
)
@click.option("--delete", is_flag=True, help="Delete the node; no VALUE.")
@timeout_option
@with_session
def set_node(session: Session, name: str, value: str | None, version: int | None, delete: bool, timeout: float) -> None:
    """Write node NAME, and print its new version.

    Exits with 1 where the node has another version, or can't be deleted because it doesn't exist. VALUE - is read from
    stdin, without one newline at its end. A value that begins with a dash comes behind a `--`.
    """
    if delete == (value is not None):
        raise click.UsageError("give a VALUE, or --delete")
    data = _from_stdin() if value == STDIN else value
    if data is not None and not is_text(data):
        raise click.UsageError("VALUE isn't UTF-8 text: nodes hold text, encode it, as with base64")
    if data is not None and len(data) > MAX_DATA:
        raise click.UsageError(f"VALUE has more than {MAX_DATA} characters: keep it elsewhere and its name in the node")

    async def put() -> int:
        async with client_of(session, timeout) as client:
            if data is None:
                if await client.get(name) is None:
                    raise UnknownNameError(
                        f"app {session.app.conf.id} has no node {name!r}: see `locks list --all`", "unknown"
                    )
                return await client.delete(name, version=version)
            return await client.put(name, data, version=version)

    written = asyncio.run(put())
    if session.as_json:
        session.say_json({"name": name, "version": written})
    else:
        session.say(f"{printable(name)} is {'deleted, ' if delete else ''}at version {written}")


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
