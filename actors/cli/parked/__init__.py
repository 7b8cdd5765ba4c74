"""`faust -A APP parked …`: a module for each command; `control` has what `retry` and `drop` share."""

from __future__ import annotations

import click

from actors.cli.parked.drop import drop
from actors.cli.parked.list import list_parked
from actors.cli.parked.retry import retry
from actors.cli.parked.show import show


@click.group("parked", commands=[list_parked, show, retry, drop])
def parked() -> None:
    """Look at what was put aside because it failed, hand it to its actor again, or drop it."""
