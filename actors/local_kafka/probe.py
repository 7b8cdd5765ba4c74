"""Asks a broker which brokers it sees, by one Metadata request.

Written on a plain socket so that it works in a test with a running event loop as well as without one.
"""

import socket
import struct
from dataclasses import dataclass

_METADATA, _VERSION = 3, 1
_MAX_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A broker as another one sees it: registered, and not fenced."""

    id: int
    host: str
    port: int


def alive_brokers(host: str, port: int, *, timeout_s: float = 2.0) -> tuple[Endpoint, ...]:
    """Returns the brokers that the broker at `host:port` sees registered and not fenced.

    Raises:
        OSError: It does not answer in `timeout_s` seconds, or does not answer as a Kafka broker.
    """
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        connection.sendall(_request())
        (size,) = struct.unpack(">i", _read(connection, 4))
        if not 0 < size <= _MAX_ANSWER_BYTES:
            raise ConnectionError(f"{host}:{port} does not answer as a Kafka broker")
        answer = _read(connection, size)
    try:
        return _parse(answer)
    except (struct.error, UnicodeDecodeError) as error:
        raise ConnectionError(f"{host}:{port} does not answer as a Kafka broker") from error


def _request() -> bytes:
    client = b"faust dev"
    head = struct.pack(">hhih", _METADATA, _VERSION, 1, len(client))
    body = head + client + struct.pack(">i", 0)  # no topics: brokers only
    return struct.pack(">i", len(body)) + body


def _read(connection: socket.socket, size: int) -> bytes:
    chunks = bytearray()
    while len(chunks) < size:
        chunk = connection.recv(size - len(chunks))
        if not chunk:
            raise ConnectionError("the connection was closed before the answer was complete")
        chunks += chunk
    return bytes(chunks)


def _parse(answer: bytes) -> tuple[Endpoint, ...]:
    (count,) = struct.unpack_from(">i", answer, 4)
    at = 8
    brokers = []
    for _ in range(count):
        (node,) = struct.unpack_from(">i", answer, at)
        host, at = _string(answer, at + 4)
        (port,) = struct.unpack_from(">i", answer, at)
        _, at = _string(answer, at + 4)
        brokers.append(Endpoint(node, host, port))
    return tuple(brokers)


def _string(answer: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", answer, at)
    end = at + 2 + max(size, 0)  # -1 is null
    return answer[at + 2 : end].decode(), end
