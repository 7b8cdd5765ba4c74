"""A server with the S3 API, of moto, in a process of its own."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

START_S = 120.0


class S3Server:
    """A running server; `environment` leads clients to it."""

    def __init__(self, port: int) -> None:
        self.uri = f"http://127.0.0.1:{port}"
        self.environment: Mapping[str, str] = {
            "AWS_ENDPOINT_URL": self.uri,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }

    def make_bucket(self, name: str) -> str:
        """Make a bucket; return its URI."""
        with urllib.request.urlopen(urllib.request.Request(f"{self.uri}/{name}", method="PUT")):
            return f"s3://{name}"


@contextmanager
def running_s3(folder: Path) -> Iterator[S3Server]:
    """Run a server on a free port, for the time of the context."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (folder / "s3.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    try:
        _wait(port, server, folder / "s3.log")
        yield S3Server(port)
    finally:
        server.kill()
        server.wait()


def _wait(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    end_s = time.monotonic() + START_S
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/moto-api/")
            connection.getresponse().read()
            connection.close()
        except OSError:
            if server.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError(f"the S3 server doesn't start: {log.read_text()[-2000:]}") from None
            time.sleep(0.05)
        else:
            return
