"""Ports of this machine for what is about to be started."""

from __future__ import annotations

import fcntl
import os
import random
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path

from actors.local_kafka.errors import LocalKafkaError
from actors.local_kafka.jars import jars_folder
from actors.local_kafka.settings import HOST
from stores._core.printable import counted

_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now, and that no other process is given here while this one lives.

    They lie below the range from which the kernel takes a client's ports: there some connection could take one before
    it is listened on, or while a broker is down.

    Raises:
        LocalKafkaError: There are fewer.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = range(max(1024, low - 12_000), low) if low > 2048 else range(1024, 32_768)
    reservations, found = _reservations(), list[int]()
    for port in random.sample(candidates, len(candidates)):
        if port not in _given:
            with socket.socket() as probe, suppress(OSError):
                # The lock comes first: a probe binds the port, and the port's owner can't bind it at that moment.
                fcntl.lockf(reservations, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                probe.bind((HOST, port))
                found.append(port)
        if len(found) == count:
            _given.update(found)
            return found
    raise LocalKafkaError(f"fewer than {counted(count, 'free port')} on {HOST}")


@cache
def _reservations() -> int:
    # The byte at a port's number is locked by the process that was given the port, until that process ends.
    # Open for as long as the process lives: closing any descriptor of the file would free all its locks.
    folder = jars_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return os.open(folder / "ports.lock", os.O_RDWR | os.O_CREAT, 0o600)


def is_free(port: int) -> bool:
    """Return whether no program listens on a port now."""
    with socket.socket() as probe:
        # As a broker does: a connection that was closed a moment ago doesn't hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
