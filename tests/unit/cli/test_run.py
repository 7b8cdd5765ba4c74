"""`worker --processes` and `dev`: what they refuse, and which files count as changed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from yarl import URL

from actors.cli import cli
from actors.cli.run.reload import changed, look
from actors.cli.run.supervisor import front_sockets
from actors.errors import ConfigurationError


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
