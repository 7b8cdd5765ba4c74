"""Ports of this machine for what is about to be started."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

from actors.local_kafka.errors import LocalKafkaError
from actors.local_kafka.settings import HOST


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now.

    They lie below the range from which the kernel takes a client's ports: there some connection could take one before
    it is listened on, or while a broker is down.

    Raises:
        LocalKafkaError: There are fewer.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = range(max(1024, low - 12_000), low) if low > 2048 else range(1024, 32_768)
    found: list[int] = []
    for port in random.sample(candidates, len(candidates)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            found.append(port)
        if len(found) == count:
            return found
    raise LocalKafkaError(f"fewer than {count} free ports on {HOST}")


def is_free(port: int) -> bool:
    """Tell whether nobody listens on a port now."""
    with socket.socket() as probe:
        # As a broker does: a connection that was closed a moment ago doesn't hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return one of `free_ports`."""
    return free_ports(1)[0]
