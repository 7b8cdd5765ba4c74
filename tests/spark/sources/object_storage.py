"""An S3 of its own for tests: moto's server, behind a gate that fails as a real one does at times."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

KEY = "a-key-of-tests"
LATE = 500
"""A request that is answered so has been carried out."""
Refusal = tuple[int, str] | None
Refuse = Callable[[str, str], Refusal]


@dataclass
class Storage:
    """The server, and what it refuses.

    Attributes:
        refuse: Called with method and path of each request; returns a status and S3's code to fail it.
        requests: Method, path, and answer if it was refused.
    """

    url: str = ""
    refuse: Refuse = lambda method, path: None
    requests: list[tuple[str, str, int]] = field(default_factory=list)
    app: Any = field(default_factory=lambda: DomainDispatcherApplication(create_backend_app))

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        refusal = self.refuse(method, path)
        self.requests.append((method, path, refusal[0] if refusal else 0))
        if refusal is None:
            return self.app(environ, start)
        status, code = refusal
        if status == LATE:
            list(self.app(environ, lambda status, headers, *rest: None))
        else:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        body = f"<Error><Code>{code}</Code><Message>{code} of the test</Message></Error>".encode()
        start(f"{status} {code}", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]

    @contextmanager
    def refusing(self, refuse: Refuse) -> Iterator[None]:
        """Refuse requests while the block runs."""
        self.refuse = refuse
        try:
            yield
        finally:
            self.refuse = lambda method, path: None

    @property
    def client(self) -> Any:
        """A client that isn't Hadoop's."""
        return boto3.client(
            "s3", endpoint_url=self.url, aws_access_key_id=KEY, aws_secret_access_key=KEY, region_name="us-east-1"
        )

    @property
    def settings(self) -> dict[str, str]:
        """Hadoop's settings for it."""
        return {
            "fs.s3a.endpoint": self.url,
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.connection.ssl.enabled": "false",
            "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
            "fs.s3a.access.key": KEY,
            "fs.s3a.secret.key": KEY,
            "fs.s3a.attempts.maximum": "3",
            "fs.s3a.retry.limit": "3",
            "fs.s3a.retry.interval": "10ms",
            "fs.s3a.retry.throttle.limit": "5",
            "fs.s3a.retry.throttle.interval": "10ms",
        }

    def names(self, bucket: str) -> list[str]:
        """The keys of a bucket."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]


@contextmanager
def serving() -> Iterator[Storage]:
    """Run the server while the block runs."""
    storage = Storage()
    server = make_server("127.0.0.1", 0, storage, threaded=True)
    storage.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield storage
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
