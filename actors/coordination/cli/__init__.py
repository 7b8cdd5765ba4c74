"""The lock service on Faust's command line: `locks list | show | break`, `config get | set | delete | watch | list`.

service.py   the app's service: whether it has one, and a client for the time of a command
reading.py   what is committed, from the service's changelog: works when no worker runs
text.py      names, values and durations for people
locks.py, breaking.py, nodes.py, config.py   the commands: those that read, and those that ask the service

`actors.cli.coordination` has the groups and imports this when one of them is called.
"""

from __future__ import annotations

import click

from actors.coordination.cli.breaking import break_lock
from actors.coordination.cli.config import delete_node, set_node, watch_node
from actors.coordination.cli.locks import list_locks, show_name
from actors.coordination.cli.nodes import get_node, list_nodes

COMMANDS: dict[str, dict[str, click.Command]] = {
    "locks": {"list": list_locks, "show": show_name, "break": break_lock},
    "config": {"list": list_nodes, "get": get_node, "set": set_node, "delete": delete_node, "watch": watch_node},
}
"""By group, its commands by name."""
