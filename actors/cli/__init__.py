"""Commands on Faust's command line: `actors`, `parked …`, `stopped …`, `state …`, `topics`, `locks …`, `config …`.

session.py   a run of a command: the app, how it speaks, errors as one line
cluster.py   what the broker knows of the app's tasks
keys.py      a key and its value, as text and as the store's bytes
reading.py   what this machine's disk holds of a key or a partition
actors.py, parked.py, state.py, topics.py   the commands, those of `parked` and `state` in parked_*.py and state_*.py
topics_as.py what `topics` prints for Kafka's tools, Terraform and Strimzi
reset.py     Faust's `reset`, for stores and views too
coordination.py   the groups `locks` and `config`, whose commands are in actors.coordination.cli
output.py    tables
worker.py    Faust's `worker` with another banner; its class registers itself
progress.py  progress

Importing it puts the commands beside Faust's own. That happens in every worker too, so whatever only a command
needs and is slow to import (rich, pyarrow) is imported where it is used.
"""

from faust.cli.base import cli

from actors.cli.actors import actors
from actors.cli.coordination import config, locks
from actors.cli.parked.group import parked
from actors.cli.reset import reset as reset
from actors.cli.state.group import state
from actors.cli.stopped import stopped
from actors.cli.topics import topics
from actors.cli.worker import worker as worker

cli.add_command(actors)
cli.add_command(config)
cli.add_command(locks)
cli.add_command(parked)
cli.add_command(stopped)
cli.add_command(state)
cli.add_command(topics)
