"""The listening sockets of the web server, and how many connections they keep open.

A connection costs a file descriptor before anything is known of its client, and the stores need theirs. When too many
are open, the one that has been open longest without a request under way is closed for the new one: a client that
connects always gets in, and one that connects and says nothing holds nobody up.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any

MAX_CONNECTIONS = 512
"""More than `guard` has places for requests: there is always one without a request."""
UNREAD_S = 30.0
"""A connection whose client takes nothing of what it is sent for so long is closed, on Linux."""


class Connections:
    """The open connections of one web server.

    Attributes:
        busy: the clients' addresses of those with a request under way.
    """

    def __init__(self) -> None:
        self.busy: set[Any] = set()
        self._open: list[tuple[socket.socket, Any]] = []

    def add(self, connection: socket.socket, address: Any) -> None:
        """Count a client's connection, and close another one if that makes too many."""
        if len(self._open) >= MAX_CONNECTIONS:
            self._open = [one for one in self._open if one[0].fileno() >= 0]
        if len(self._open) >= MAX_CONNECTIONS:
            oldest = next((one for one in self._open if one[1] not in self.busy), self._open[0])
            self._open.remove(oldest)
            with contextlib.suppress(OSError):
                # Its transport sees the end, and closes it.
                oldest[0].shutdown(socket.SHUT_RDWR)
        self._open.append((connection, address))


class Door(socket.socket):
    """A listening socket whose connections are counted."""

    connections: Connections

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, as `socket.accept` does."""
        connection, address = super().accept()
        self.connections.add(connection, address)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_S * 1000))
        return connection, address


def doors(host: str, port: int, connections: Connections) -> list[Door]:
    """Give a socket, bound and not listening yet, for each address of a host.

    Raises:
        OSError: an address can't be bound.
    """
    found: list[Door] = []
    try:
        for family, kind, proto, _, address in socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            door = Door(family, kind, proto)
            found.append(door)
            door.connections = connections
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            door.bind(address)
    except OSError:
        for door in found:
            door.close()
        raise
    return found
