"""`faust -A APP state …`: a module for each command.

reading.py reads this machine's disk, keys.py converts keys and values between text and bytes.
"""

from __future__ import annotations

import click

from actors.cli.state.export import export
from actors.cli.state.get import get
from actors.cli.state.list import list_stores
from actors.cli.state.publish import publish
from actors.cli.state.scan import scan


@click.group("state", commands=[get, scan, list_stores, export, publish])
def state() -> None:
    """Look at the committed state on this machine's disk, also while a worker runs."""
