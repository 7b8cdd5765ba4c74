"""Answers each request with as many bytes as a worker would, always the same: what an asker itself costs a machine.

python -m benchmarks.queries_stand_in PORT
"""

from __future__ import annotations

import select
import socket
import sys

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 450\r\n\r\n" + b"x" * 450


def main() -> None:
    """Serve until somebody ends the process. Requests come whole: they are small, and one at a time."""
    listening = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=128)
    poll = select.epoll()
    connections: dict[int, socket.socket] = {}
    poll.register(listening.fileno(), select.EPOLLIN)
    while True:
        for number, _ in poll.poll():
            connection = connections.get(number)
            if connection is None:
                connection, _ = listening.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[connection.fileno()] = connection
                poll.register(connection.fileno(), select.EPOLLIN)
            elif connection.recv(65536):
                connection.sendall(ANSWER)
            else:
                poll.unregister(number)
                connections.pop(number).close()


if __name__ == "__main__":
    main()
