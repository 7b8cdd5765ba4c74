"""A worker that is the child of a supervisor: what it is told at its start, and what it tells.

The supervisor and the child share a socket. The child writes one byte when it is ready, and ends when the socket
closes: a supervisor that was killed leaves no worker behind.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
import warnings
from pathlib import Path
from typing import Any

import msgspec
from faust.exceptions import AlreadyConfiguredWarning

from actors._core.logs import escaping
from actors.web.front import Front, set_front
from actors.web.health import what_is_missing

logger = escaping(logging.getLogger(__name__))

VARIABLE = "SUPERVISED_WORKER"
"""Not with the prefix of settings: the app's module reads those before this is taken away."""
READY = b"R"
_LOOK_S = 0.1


class Assignment(msgspec.Struct, kw_only=True):
    """A child's part of the work, as the supervisor sends it.

    Attributes:
        control: the file descriptor of the socket that it shares with the supervisor.
        index: its number among `count` processes; None for the worker of `faust dev`.
        count: how many processes there are.
        front: the file descriptors of the listening sockets that all processes share.
    """

    control: int
    index: int | None = None
    count: int = 1
    front: list[int] = []


def take_assignment() -> Assignment | None:
    """Return what this process was told, None if it is no child. The process's own children aren't told."""
    told = os.environ.pop(VARIABLE, None)
    if told is None:
        return None
    found = msgspec.json.decode(told, type=Assignment)
    for descriptor in (found.control, *found.front):
        os.set_inheritable(descriptor, False)
    return found


def apply(assignment: Assignment, app: Any) -> None:
    """Set a worker's own data folder, port and instance id, and have it report that it is ready.

    The supervisor's port is shared by all. Process `index` has the port `index + 1` above it too, which it announces
    to other workers.
    """
    index = assignment.index
    if index is not None:
        with warnings.catch_warnings():
            # The worker isn't made yet: nothing has used the values.
            warnings.simplefilter("ignore", AlreadyConfiguredWarning)
            _separate(app, index, assignment)
    control = socket.socket(fileno=assignment.control)
    threading.Thread(target=_end_with, args=(control,), name="supervisor", daemon=True).start()

    async def tell() -> None:
        while app.actors and what_is_missing(app):  # noqa: ASYNC110  its states have no event
            await asyncio.sleep(_LOOK_S)
        control.send(READY)
        if index == 0:
            _warn_idle(app, assignment.count)

    app.task(tell)


def _separate(app: Any, index: int, assignment: Assignment) -> None:
    conf = app.conf
    conf.datadir = Path(conf.datadir) / str(index)
    if conf.consumer_group_instance_id:
        conf.consumer_group_instance_id = f"{conf.consumer_group_instance_id}-{index}"
    if conf.web_enabled:
        front = Front(index=index, count=assignment.count, port=conf.web_port, sockets=assignment.front)
        conf.canonical_url = conf.canonical_url.with_port(front.own_port(index))
        conf.web_port = front.own_port(index)
        set_front(app, front)


def _end_with(control: socket.socket) -> None:
    """End this process, in good order, when the supervisor's end of the socket closes."""
    try:
        control.recv(1)
    except OSError:
        logger.debug("the supervisor's socket is closed")
    os.kill(os.getpid(), signal.SIGTERM)


def _warn_idle(app: Any, count: int) -> None:
    worker = app.actor_service.worker
    most = max(worker.partitions.values(), default=count) if worker is not None else count
    if count > most:
        logger.warning(
            "--processes %d is more than the %d partitions of any actor: %d processes have nothing to do, or only keep "
            "standbys. Give the inputs more partitions before the first start, or start fewer processes",
            count,
            most,
            count - most,
        )
