"""The listening sockets of the web server, with a limit on open connections.

A connection costs a file descriptor before its client is known, and the stores need descriptors too. At the limit, a
new connection closes one without a request under way: the oldest of the address that has most of them. A client can
always connect, and a client that opens many silent connections closes only its own.
"""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from typing import Any, NamedTuple

MAX_CONNECTIONS = 768
"""More than the places for requests: one connection is always without a request."""
UNREAD_S = 30.0
"""On Linux, a connection whose client acknowledges no data for so long is closed."""


class _Open(NamedTuple):
    connection: socket.socket
    address: Any
    origin: Any


class Connections:
    """The open connections of one web server.

    Attributes:
        busy: the clients' addresses of those with a request under way.
        streams: how many of them are streams, which have a limit of their own.
    """

    def __init__(self) -> None:
        self.busy: set[Any] = set()
        self.streams = 0
        self._open: list[_Open] = []

    def add(self, connection: socket.socket, address: Any) -> None:
        """Count a client's connection, and close another one if that makes too many."""
        if len(self._open) - self.streams >= MAX_CONNECTIONS:
            self._open = [one for one in self._open if one.connection.fileno() >= 0]
        if len(self._open) - self.streams >= MAX_CONNECTIONS:
            idle = [one for one in self._open if one.address not in self.busy] or self._open[:1]
            # The first of those that have as many as any: the one that has been open longest.
            crowd, _ = Counter(one.origin for one in idle).most_common(1)[0]
            oldest = next(one for one in idle if one.origin == crowd)
            self._open.remove(oldest)
            with contextlib.suppress(OSError):
                # Its transport sees the end, and closes it.
                oldest.connection.shutdown(socket.SHUT_RDWR)
        self._open.append(_Open(connection, address, _origin_of(connection, address)))


def _origin_of(connection: socket.socket, address: Any) -> Any:
    """Return what the connections of one client have in common: its address, the network of an IPv6 address."""
    if connection.family == socket.AF_INET6:
        return socket.inet_pton(socket.AF_INET6, address[0].partition("%")[0])[:8]
    return address[0]


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
    """Return a socket, bound and not listening yet, for each address of a host.

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
