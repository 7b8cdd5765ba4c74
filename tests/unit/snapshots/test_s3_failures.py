"""Failures of object storage: one line, soon, and the changelog is read."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from actors.snapshots import objects as module
from actors.snapshots.objects import Objects
from stores._core.snapshot import SnapshotTable
from stores.errors import SnapshotError

EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[BaseHTTPRequestHandler], None]]]:
    """Run a server; its requests are answered by the last function of the list."""
    answers: list[Callable[[BaseHTTPRequestHandler], None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers[-1](self)

        do_PUT = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    for name, text in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(module, "RETRIES_S", 0.5)
    monkeypatch.setattr(module, "REQUEST_S", 0.5)
    yield answers
    server.shutdown()
    server.server_close()
    thread.join()


def say(status: int, body: bytes = b"") -> Callable[[BaseHTTPRequestHandler], None]:
    def reply(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return reply


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (503, b"<Error><Code>SlowDown</Code></Error>", "503"),
        (403, EXPIRED, "ExpiredToken"),
        (403, b"<Error><Code>AccessDenied</Code></Error>", "AccessDenied"),
        (404, b"<Error><Code>NoSuchBucket</Code></Error>", "the bucket doesn't exist"),
        (500, b"", "500"),
    ],
    ids=["throttled", "expired", "forbidden", "no bucket", "broken"],
)
def test_a_failure_is_one_line(answer: list, tmp_path: Path, status: int, body: bytes, text: str) -> None:
    answer.append(say(status, body))
    objects = Objects.open("s3://bucket/prefix", app="app", folder=tmp_path)
    with pytest.raises(SnapshotError, match=text) as failure:
        objects.find("store", 0)
    assert str(failure.value).startswith("s3://bucket/prefix/store/seed.json: ")
    assert "\n" not in str(failure.value)
    with pytest.raises(SnapshotError, match=text):
        asyncio.run(objects.read("store/partition-00000/seed.json"))


def test_a_server_that_does_not_answer_is_given_up(answer: list, tmp_path: Path) -> None:
    done = threading.Event()
    answer.append(lambda _: done.wait(30) and None)
    objects = Objects.open("s3://bucket/prefix", app="app", folder=tmp_path)
    began_s = time.monotonic()
    try:
        with pytest.raises(SnapshotError):
            objects.find("store", 0)
    finally:
        done.set()
    assert time.monotonic() - began_s < 20


def test_a_download_that_is_cut_short_is_no_file(answer: list, tmp_path: Path) -> None:
    def cut(request: BaseHTTPRequestHandler) -> None:
        request.send_response(206)
        request.send_header("Content-Range", "bytes 0-9/10")
        request.send_header("Content-Length", "10")
        request.send_header("Last-Modified", "Sun, 29 Nov 2026 12:00:00 GMT")
        request.send_header("ETag", '"a"')
        request.end_headers()
        request.wfile.write(b"123")

    answer.append(cut)
    objects = Objects.open("s3://bucket/prefix", app="app", folder=tmp_path)
    with pytest.raises(SnapshotError, match=r"store/1-2-a/000001\.sst"):
        asyncio.run(objects.fetch("store/1-2-a/000001.sst", SnapshotTable("000001.sst", 10, 0, 1), tmp_path / "file"))
