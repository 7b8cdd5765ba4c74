"""`faust -A APP state get | list | export`: what this machine's disk has; `publish | adopt | forget`: topics."""

from __future__ import annotations

import click

from actors.cli.state.adopt import adopt
from actors.cli.state.export import export
from actors.cli.state.forget import forget
from actors.cli.state.get import get
from actors.cli.state.list import list_stores
from actors.cli.state.publish import publish


@click.group("state")
def state() -> None:
    """Look at the committed state on this machine's disk, also while a worker runs."""


state.add_command(get)
state.add_command(list_stores)
state.add_command(export)
state.add_command(publish)
state.add_command(adopt)
state.add_command(forget)
