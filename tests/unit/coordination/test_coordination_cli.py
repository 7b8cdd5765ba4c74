"""What the lock service's commands show, without a broker."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from actors.cli import cli, session
from actors.coordination import messages as m
from actors.coordination.cli import OPERATIONS, breaking
from actors.coordination.cli.locks import how_held
from actors.coordination.cli.reading import Found
from actors.coordination.cli.text import SHOWN_CHARS, duration, left, quoted, short
from actors.coordination.locks import Holder, Lock
from actors.coordination.registry import Node
from actors.coordination.service.resource import Resource
from stores._core.printable import printable


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-5, "0.0 s"),
        (0, "0.0 s"),
        (1_260, "1.3 s"),
        (9_999, "10.0 s"),
        (10_000, "10 s"),
        (59_999, "59 s"),
        (60_000, "1 min 0 s"),
        (3_599_999, "59 min 59 s"),
        (7_500_000, "2 h 5 min"),
    ],
)
def test_durations(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_what_ends_now_is_over() -> None:
    assert left(1_000, 1_000) == "over"
    assert left(1_001, 1_000) == "0.0 s"


@pytest.mark.parametrize("text", ["a\x1b[2Jb", "a\nb", "a\x9bb", "a\u202eb", "\ud800"])
def test_nothing_of_a_user_moves_the_cursor(text: str) -> None:
    for shown in (printable(text), short(text), quoted(text)):
        assert shown.isprintable()
        shown.encode()


def test_a_long_text_is_cut_in_a_table() -> None:
    assert short("x" * SHOWN_CHARS) == "x" * SHOWN_CHARS
    assert short("x" * (SHOWN_CHARS + 1)) == "x" * (SHOWN_CHARS - 1) + "…"


def holder(**more: object) -> Holder:
    given = {"owner": "o", "token": 1, "shared": False, "permits": 1, "count": 1, "expires_ms": 50, "data": ""}
    return Holder(**{**given, **more})


def found(resource: Resource, now_ms: int) -> Found:
    return Found(name="n", partition=0, resource=resource, changed_at_ms=0, now_ms=now_ms)


def test_how_a_lock_is_held() -> None:
    assert how_held(Lock(), holder()) == "alone"
    assert how_held(Lock(), holder(shared=True, count=3)) == "shared, 3 times"
    assert how_held(Lock(kind="semaphore", limit=5), holder(permits=2)) == "2 of 5"


def test_a_lease_and_an_ephemeral_node_are_over_at_their_end() -> None:
    resource = Resource(
        lock=Lock(holders=(holder(),), last_token=1), node=Node(version=1, data="d", session="s", expires_ms=50)
    )
    before, after = found(resource, 49), found(resource, 50)
    assert (before.is_held, before.node) == (True, resource.node)
    assert (after.is_held, after.node) == (False, None)
    assert after.lock_json()["holders"][0]["over"]


def test_uses_of_a_name() -> None:
    assert found(Resource(), 0).kind == "(nothing)"
    both = Resource(lock=Lock(kind="semaphore", limit=3, last_token=9), node=Node(version=2))
    assert found(both, 0).uses == ["lock", "node"]
    assert found(both, 0).kind == "semaphore of 3, node"


def test_help_of_each_command_has_an_example_of_it() -> None:
    for path in ([], *([operation.command.split()[-1]] for operation in OPERATIONS)):
        done = CliRunner().invoke(cli.commands["locks"], [*path, "--help"])
        assert done.exit_code == 0, done.output
        examples = [line.strip() for line in done.output.splitlines() if line.strip().startswith("faust ")]
        assert examples
        for example in examples:
            assert f" -A actors.coordination.app {' '.join(['locks', *path])}" in example


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["show"], "'NAME'"),
        (["show", ""], "at least one character"),
        (["show", "\udcff"], "isn't UTF-8 text"),
        (["burn"], "'burn'"),
        (["break", "x", "--timeout", "0"], "--timeout"),
        (["break", "x", "--timeout", "inf"], "--timeout"),
        (["set", "x", "1", "--timeout", "1e300"], "--timeout"),
        (["set", "x", "1", "--version", "-1"], "--version"),
        (["set", "x", "--delete", "--version", "two"], "'two'"),
        (["set", "x", "-5"], "-5"),
    ],
)
def test_bad_arguments_are_usage_errors(arguments: list[str], part: str) -> None:
    done = CliRunner().invoke(cli.commands["locks"], arguments)
    assert done.exit_code == 2, done.output
    assert part in done.stderr


def test_a_question_ends_with_the_first_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = []

    class Client:
        async def look(self, name: str) -> m.View:
            told = {"version": 1, "waiting": 0, "last_token": 1, "data": None, "data_version": 0, "members": ()}
            return m.View(holders=(holder(),), **told)

    @asynccontextmanager
    async def client_of(*_: object) -> AsyncIterator[Client]:
        yield Client()

    def confirm(*_: object, **__: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise click.Abort from None
        answered.append("the question still stands")

    monkeypatch.setattr(session, "_session", lambda context: SimpleNamespace(setup=None, as_json=False))
    monkeypatch.setattr(breaking, "client_of", client_of)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(click, "confirm", confirm)
    former: Any = signal.getsignal(signal.SIGINT)
    with pytest.raises(click.ClickException, match="x wasn't broken"):
        cli.commands["locks"].main(["break", "x"], standalone_mode=False)
    assert answered == []
    assert signal.getsignal(signal.SIGINT) is former


def test_a_worker_doesnt_import_the_commands() -> None:
    program = "import sys, actors; print('actors.coordination' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
