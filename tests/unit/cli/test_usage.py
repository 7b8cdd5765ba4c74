"""What commands answer to what can't be: names that don't exist, wrong values, brokers that aren't there."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from actors import App
from actors._faust.setup import Setup
from actors._kafka.admin.control import ControlPlane, TopicInfo
from actors.cli import cli
from actors.cli.output import print_table
from actors.cli.run import send
from actors.errors import ConfigurationError
from dev.kafka import free_port

APP = "tests.unit.cli.send_app"


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["-A", APP, *words])


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("stopped", "retry", "nobody", "1", "x"), "app sends has no actor 'nobody'. Its actors: Account, Log, count"),
        (("parked", "list", "--actor", "nobody"), "app sends has no actor 'nobody'"),
        (("parked", "show", "nobody", "k"), "app sends has no actor 'nobody'"),
        (("state", "get", "nothing", "k"), "app sends has no store 'nothing'. Its stores: "),
        (("state", "scan", "nothing"), "app sends has no store 'nothing'"),
        (("state", "export", "nothing", "--to", "out"), "app sends has no store 'nothing'"),
        (("state", "publish", "Account"), "store Account isn't published"),
        (("reset", "--to", "earliest", "--actor", "nobody"), "no actor 'nobody'"),
        (("pause", "nobody"), "nobody"),
    ],
)
def test_a_name_that_does_not_exist_is_one_line_and_ends_with_1(words: tuple[str, ...], error: str) -> None:
    done = run(*words)
    assert done.exit_code == 1, done.output
    assert error in done.output
    assert "Usage:" not in done.output


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("pause", "Account:x"), "'Account:x': 'x' isn't a partition's number"),
        (("stopped", "drop", "Account", "x", "id"), "'x' is not a valid integer"),
        (("parked", "list", "--limit", "0"), "0 is not in the range x>=1"),
        (("parked", "retry", "--what", "timer", "--all"), "'timer' is not one of 'message', 'effect'"),
        (("parked", "drop", "Account"), "name ACTOR and KEY"),
        (("parked", "drop", "--all", "--since", "soon"), "'soon' does not match the formats"),
        (("reset", "--actor", "Account"), "say where they go with --to"),
    ],
)
def test_an_argument_of_another_form_is_wrong_usage(words: tuple[str, ...], error: str) -> None:
    done = run(*words)
    assert (done.exit_code, error in done.output) == (2, True), done.output


def test_the_version_is_that_of_this_package() -> None:
    done = CliRunner().invoke(cli, ["--version"])
    assert done.output == f"faust-actors {version('faust-actors')}, Faust {version('faust-streaming')}\n"


@pytest.mark.parametrize(
    ("topic", "value", "error"),
    [
        ("tagged", '{"type":"deposit"', "Account takes Deposit, Withdraw"),
        ("tagged", '{"type":"transfer","cents":5}', "a message of the unknown type 'transfer'"),
        ("tagged", '{"type":"deposit","dollars":5}', "cents"),
        ("headed", '"text"', "the header fa-type"),
        ("words", None, None),
        ("tagged", '{"type":"deposit","cents":5}', None),
    ],
)
def test_a_class_actors_messages_are_checked_before_they_are_sent(
    topic: str, value: str | None, error: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []

    monkeypatch.setattr(send.send, "_existing", lambda _, name: TopicInfo(name, UUID(int=1), 4))
    monkeypatch.setattr(send.FaustSend, "__call__", lambda self, *_, **__: sent.append(self.kwargs))
    done = run("send", topic, "--key", "ada", *([] if value is None else ["--value", value]))
    if error is None:
        assert (done.exit_code, sent[0]["key"]) == (0, b"ada"), done.output
        assert sent[0]["value"] == (None if value is None else value.encode())
    else:
        assert (done.exit_code, sent) == (1 if topic == "headed" else 2, []), done.output
        assert error in done.output


def test_a_record_in_the_place_of_a_topics_writers_is_refused() -> None:
    done = run("send", "told", "--key", "ada", "--value", "text")
    assert (done.exit_code, done.output.count("\n")) == (1, 1), done.output
    assert "Error: topic told is declared with writers= count" in done.output


@pytest.mark.parametrize("scheme", ["http", "redis", "kafkaa"])
def test_another_scheme_than_kafkas_is_refused(scheme: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"broker: {scheme}://127.0.0.1:9092: .*kafka://127.0.0.1:9092"):
        Setup(App("shop", broker=f"{scheme}://127.0.0.1:9092"))
    assert Setup(App("shop", broker="127.0.0.1:9092")).connection.bootstrap == ("127.0.0.1:9092",)


@pytest.mark.parametrize(
    "broker", [pytest.param("http://127.0.0.1:9092", marks=pytest.mark.nightly), "kafka://127.0.0.1:1"]
)
def test_a_worker_that_cannot_start_says_so_in_one_line_without_escape_codes(broker: str, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from actors.cli import cli; cli()",
        "-A",
        APP,
        "-D",
        str(tmp_path),
        "worker",
        "--without-web",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "BROKER_URL": broker}
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "sends can't start: " in line
    assert "\x1b" not in done.stdout + done.stderr


def test_dev_with_a_broker_that_is_not_there_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = f"127.0.0.1:{free_port()}"
    done = run("dev", "--broker", broker, "--web-port", str(free_port()))
    assert done.exit_code == 1, done.output
    assert f"Error: no broker answers at {broker}" in done.output


def test_a_partition_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Control:
        async def topics(self, names: list[str]) -> dict[str, TopicInfo]:
            return {name: TopicInfo(name, UUID(int=1), 4) for name in names}

        async def __aenter__(self) -> Control:
            return self

        async def __aexit__(self, *_: object) -> None: ...

    monkeypatch.setattr(ControlPlane, "connect", lambda *_: Control())
    done = run("stopped", "retry", "Account", "4", "x")
    assert done.exit_code == 1
    assert "actor Account has no partition 4: its input tagged has 4, from 0 to 3" in done.output


def test_names_in_a_narrow_terminal_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    name, out = "abcdefghij" * 12, Terminal()
    print_table(out, "Topics", ("topic", "what for", "#partitions", "settings"), [(name, "input", "8", "a=b " * 30)])
    lines = [line.split() for line in out.getvalue().splitlines()[3:]]
    assert name in "".join(words[0] for words in lines if words)
