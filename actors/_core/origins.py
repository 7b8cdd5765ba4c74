"""Addresses of workers' web servers, as workers send them to each other: an origin and nothing else."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

_ORIGIN = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?)"
    r"(?::(?P<port>[0-9]{1,5}))?/?",
    re.ASCII,
)
_PORTS = {"http": 80, "https": 443}
MAX_CHARACTERS = 300


def origin_of(address: str) -> str:
    """Return an address as `scheme://host:port`, the same for all spellings of one origin.

    Raises:
        ValueError: it is no such address, or has a path, a query, a fragment or a user; the text shows none of it.
    """
    match = _ORIGIN.fullmatch(address) if len(address) <= MAX_CHARACTERS else None
    if match is None:
        raise ValueError("its address isn't http://HOST:PORT or https://HOST:PORT, without path and user")
    scheme, host = match["scheme"], match["host"].lower()
    port = _PORTS[scheme] if match["port"] is None else int(match["port"])
    if not 1 <= port <= 65535:
        raise ValueError(f"its address has port {port}, and ports go from 1 to 65535")
    if host.startswith("["):
        try:
            host = f"[{ipaddress.IPv6Address(host[1:-1])}]"
        except ValueError:
            raise ValueError("its address has brackets around what isn't an IPv6 address") from None
    elif len(host) > 253:
        raise ValueError("its address has a host's name of more than 253 characters")
    return f"{scheme}://{host}:{port}"


def is_on(origin: str, hosts: Iterable[str]) -> bool:
    """Return whether an origin of `origin_of` is on one of some hosts, as `10.0.*`, `*.bank.internal` or `[::1]`."""
    host = origin.partition("://")[2].rpartition(":")[0]
    return any(host == one.lower() or fnmatchcase(host, one.lower()) for one in hosts)
