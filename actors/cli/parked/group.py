"""`faust -A APP parked list | show | retry | drop`: messages and effects that were put aside."""

from __future__ import annotations

import click

from actors.cli.parked.control import drop, retry
from actors.cli.parked.list import list_parked
from actors.cli.parked.show import show


@click.group("parked")
def parked() -> None:
    """Look at what was put aside because it failed, hand it to its actor again, or drop it."""


parked.add_command(list_parked)
parked.add_command(show)
parked.add_command(retry)
parked.add_command(drop)
