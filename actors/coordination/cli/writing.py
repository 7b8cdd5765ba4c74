"""`faust -A APP locks set`: writes or deletes a node. A worker of the service has to run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar

from actors._faust.setup import Setup
from actors.admin.operation import Answer, Caller, Operation, argument, option
from actors.coordination.cli.service import (
    MAX_TIMEOUT_S,
    NAME,
    TIMEOUT,
    TIMEOUT_S,
    UnknownNameError,
    client_of,
    is_text,
)
from actors.coordination.messages import MAX_DATA
from actors.errors import UsageError
from stores._core.printable import printable

STDIN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetNode(Operation):
    """Write node NAME, and print its new version.

    Exits with 1 where the node has another version, or can't be deleted because it doesn't exist. VALUE - is read from
    stdin, without one newline at its end. A value that begins with a dash comes behind a `--`.
    """

    command: ClassVar[str] = "locks set"
    examples: ClassVar[tuple[str, ...]] = (
        "faust -A actors.coordination.app locks set prices/vat 19 --version 3",
        "faust -A actors.coordination.app locks set prices/table - < table.json",
        "faust -A actors.coordination.app locks set prices/vat --delete",
    )
    name: str = argument("NAME", type=NAME)
    value: str | None = None
    version: int | None = option("Only if this is its version now; 0: none yet.", metavar="N")
    delete: bool = option("Delete the node; no VALUE.", False)
    timeout: float = option(TIMEOUT, TIMEOUT_S, least=0.1, most=MAX_TIMEOUT_S)

    async def run(self, setup: Setup, caller: Caller) -> Answer:
        """Write or delete the node."""
        name, data = self.name, self._data()
        async with client_of(setup, self.timeout) as client:
            if data is not None:
                written = await client.put(name, data, version=self.version)
            elif await client.get(name) is None:
                text = f"app {setup.app.conf.id} has no node {name!r}: see `locks list --all`"
                raise UnknownNameError(text, "unknown")
            else:
                written = await client.delete(name, version=self.version)
        line = f"{printable(name)} is {'deleted, ' if self.delete else ''}at version {written}"
        return Answer(content={"name": name, "version": written}, lines=[line])

    def _data(self) -> str | None:
        """Return what is to be written, None to delete the node."""
        if self.delete == (self.value is not None):
            raise UsageError("give a VALUE, or --delete")
        data = _from_stdin() if self.value == STDIN else self.value
        if data is not None and not is_text(data):
            raise UsageError("VALUE isn't UTF-8 text: nodes hold text, encode it, as with base64")
        if data is not None and len(data) > MAX_DATA:
            raise UsageError(f"VALUE has more than {MAX_DATA} characters: keep it elsewhere and its name in the node")
        return data


def _from_stdin() -> str:
    """Read a value, no more of it than shows that it is too long.

    Raises:
        UsageError: it isn't text.
    """
    # Characters have up to four bytes; a newline at the end is taken off.
    raw = sys.stdin.buffer.read(4 * (MAX_DATA + 2))
    try:
        return raw.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin isn't UTF-8 text ({error.reason} at byte {error.start}): encode it") from error
