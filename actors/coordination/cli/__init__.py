"""The lock service on Faust's command line: `locks list | show | break | set`.

service.py   the app's service: whether it has one, and a client for the time of a command
reading.py   what is committed, from the service's changelog: works when no worker runs
text.py      names, values and durations for people
locks.py, breaking.py, writing.py   the commands: those that read, and those that ask the service

`actors.cli.coordination` has the group and imports this when it is called.
"""

from __future__ import annotations

import click

from actors.coordination.cli.breaking import break_lock
from actors.coordination.cli.locks import list_locks, show_name
from actors.coordination.cli.writing import set_node

COMMANDS: dict[str, click.Command] = {
    "list": list_locks,
    "show": show_name,
    "break": break_lock,
    "set": set_node,
}
"""The commands of the group, by name."""
