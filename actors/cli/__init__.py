"""Commands on Faust's command line: `init`, `actors`, `topics`, `parked …`, `stopped …`, `state …`, and others.

operations.py    the commands of the operations of other packages: `parked …`, `locks …`, `pause`, and others
settings.py      a command
actors.py, reset.py   an operation each that needs more than the brokers; the last one replaces Faust's own command
run              `dev`, and `worker` and `send`, which replace Faust's own
state            the commands of this group
init             the command and the templates of new projects
deploy           what is asked around a deploy: `asyncapi`, `doctor`, `plan`, `schemas`, `topics`
project.py       the app of a folder, for commands without `-A`; an app that can't be imported, as one line
session.py       one run of a command: the app, where it prints, and errors as one line
cluster.py       the state of the app's tasks as the brokers have it
nearest.py       what an unknown command may have meant
output.py        tables
progress.py      progress over partitions

Importing this package adds the commands to Faust's own. The extension `cli` has every worker do so, therefore packages
that only a command needs and that are slow to import (rich, pyarrow) are imported where they are used.
"""

from importlib.metadata import version

import click
from faust.cli import base
from faust.cli.faust import cli

from actors._faust.extensions import WorkerExtension
from actors.admin.operations import OPERATIONS
from actors.cli.actors import ListActors
from actors.cli.deploy import asyncapi, doctor, plan, schemas, topics
from actors.cli.init import init
from actors.cli.nearest import name_nearest
from actors.cli.operations import add_operations
from actors.cli.project import load_app
from actors.cli.reset import Reset
from actors.cli.run.dev import dev
from actors.cli.run.send import send as send
from actors.cli.run.worker import worker as worker
from actors.cli.settings import settings
from actors.cli.state import state
from actors.coordination.cli import OPERATIONS as LOCKS

cli.params = [option for option in cli.params if option.name != "version"]
click.version_option(version("faust-actors"), message=f"faust-actors %(version)s, Faust {version('faust-streaming')}")(
    cli
)
# Faust's group imports the app of `-A` before any command runs, and each command looks it up again.
base.find_app = load_app

for command in (
    asyncapi,
    dev,
    doctor,
    init,
    plan,
    schemas,
    settings,
    state,
    topics,
):
    cli.add_command(command)
add_operations(cli, [*OPERATIONS, *LOCKS, ListActors, Reset])
for group in (cli, *(one for one in cli.commands.values() if isinstance(one, click.Group))):
    name_nearest(group)


class Commands(WorkerExtension):
    """Adds the commands to Faust's command line where an app runs that: `app.main()`, `python -m faust`."""
