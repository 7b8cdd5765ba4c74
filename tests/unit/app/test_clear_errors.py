"""What can't start says so in one line, with an exit code, in the place of a traceback."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors import App, ConfigurationError, Context
from actors._faust.setup import Setup
from actors._kafka.admin.control import TopicInfo
from dev.kafka import free_port
from tests.kafka import forked

HEAD = "from actors import *\nfrom datetime import timedelta\n"
APP = 'app = App("clear", broker="kafka://127.0.0.1:1"'
NO_BROKER = (
    "clear can't start: no broker answers at 127.0.0.1:1: Connection refused. Check that the broker runs, and the "
    "app's setting `broker` (BROKER_URL in the environment)"
)


def faust(folder: Path, text: str, *arguments: str, spawned: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command of `faust` with a module of that text as its app, `spawned` as an operator starts it."""
    (folder / "clear_app.py").write_text(HEAD + text)
    path = {"PYTHONPATH": f"{folder}:{forked.ROOT}"}
    if not spawned:
        return forked.faust("-A", "clear_app", *arguments, environment=path, folder=folder, timeout_s=120)
    command = [sys.executable, "-m", "faust", "-A", "clear_app", *arguments]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **path}, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (f"{APP}, revoke_timeout=3)", 3, "revoke_timeout=3 has to be a timedelta: write revoke_timeout=timedelta(sec"),
        pytest.param(
            f'{APP})\napp.store("s", ttl=60)',
            4,
            "store s: ttl=60 has to be a timedelta",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            f'{APP})\n@app.actor(app.topic("a", "b"))\nasync def place(ctx, order): ...',
            4,
            "actor place: its input has to be one topic, not a, b",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_declaration_that_cannot_work_ends_a_command_with_its_line(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    ended = faust(tmp_path, text, "actors", spawned=True)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"Error: {tmp_path}/clear_app.py:{line}: ")
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr + ended.stdout
    assert len(ended.stderr.splitlines()) == 1


def test_a_data_folder_is_made_with_those_above_it_or_named(tmp_path: Path) -> None:
    text = f'{APP})\n@app.actor(app.topic("a"))\nasync def place(ctx, order): ...'
    (tmp_path / "file").write_text("")
    ended = faust(tmp_path, text, "-D", str(tmp_path / "a/b/c"), "worker", "--without-web")
    assert ended.returncode == 1
    assert (tmp_path / "a/b/c").is_dir()
    # One line: the client's own complaint is in it.
    said = [line for line in (ended.stdout + ended.stderr).splitlines() if "127.0.0.1" in line]
    assert [line.strip().endswith(NO_BROKER) for line in said if not line.startswith(("|", "│"))] == [True]
    ended = faust(tmp_path, text, "-D", str(tmp_path / "file/b"), "worker", "--without-web")
    assert ended.returncode != 0
    assert f"datadir (-D) {tmp_path}/file/b can't be made" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_several_processes_say_once_that_no_broker_answers(tmp_path: Path) -> None:
    text = f'{APP})\n@app.actor(app.topic("a"))\nasync def place(ctx, order): ...'
    ended = faust(tmp_path, text, "worker", "--without-web", "--processes", "2")
    (line,) = (ended.stdout + ended.stderr).splitlines()
    assert (ended.returncode, line) == (1, NO_BROKER.replace("clear can't start", "Error"))


async def test_a_port_that_is_taken_is_named(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    app = App("clear", broker="kafka://127.0.0.1:1", web_port=port)
    web = app.web
    app.on_webserver_init(web)
    app.on_webserver_init(web)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(SystemExit) as ended:
            await web.start_server()
    assert ended.value.code == 1
    assert f"web_port={port}: another process listens there. Choose another port" in caplog.text
    await web.stop_server()


async def test_all_missing_topics_are_named_with_one_command() -> None:
    app = App("clear", broker="kafka://there:9094")
    for name in ("orders", "refunds", "known"):

        @app.actor(app.topic(name), name=name)
        async def handle(ctx: Context, value: Any) -> None: ...

    @app.actor(app.topic("keyed"), by="order")
    async def rekeyed(ctx: Context, value: Any) -> None: ...

    app.topic("paid")
    app.topic("one", "two")
    app.store("s", publish=app.topic("model"))

    async def existing(names: Any) -> dict[str, TopicInfo]:
        return {name: SimpleNamespace() for name in names if name == "known"}  # type: ignore[misc]

    with pytest.raises(ConfigurationError) as caught:
        await Setup(app).check_topics(SimpleNamespace(existing=existing))  # type: ignore[arg-type]
    text = str(caught.value)
    assert "topic orders, the input of actor orders, isn't on the broker" in text
    assert "topic refunds, the input of actor refunds, isn't on the broker" in text
    assert "topic paid, declared with app.topic(...), is missing too" in text
    assert (
        "for t in orders refunds keyed paid; do kafka-topics.sh --bootstrap-server there:9094 --create --topic $t"
        in text
    )
    assert "known" not in text
    assert "model" not in text


async def test_a_broker_need_not_know_a_repartition_topic_that_was_just_made() -> None:
    app = App("clear", broker="kafka://there:9094")

    payments = app.topic("payments")

    @app.actor(app.topic("orders"), payments, by={payments: lambda value: value["order"]})
    async def join(ctx: Context, value: Any) -> None: ...

    async def existing(names: Any) -> dict[str, TopicInfo]:
        return {name: SimpleNamespace(partitions=4) for name in names if "repartition" not in name}  # type: ignore[misc]

    found = await Setup(app).check_topics(SimpleNamespace(existing=existing))  # type: ignore[arg-type]
    assert found.keys() == {"orders", "payments"}


async def test_inputs_of_one_actor_with_different_partition_counts_are_refused_with_all_of_them() -> None:
    app = App("clear", broker="kafka://there:9094")

    @app.actor(app.topic("orders"), app.topic("payments"), app.topic("refunds"))
    async def join(ctx: Context, value: Any) -> None: ...

    async def existing(names: Any) -> dict[str, TopicInfo]:
        return {name: SimpleNamespace(partitions=4 if name == "payments" else 8) for name in names}  # type: ignore[misc]

    with pytest.raises(ConfigurationError) as caught:
        await Setup(app).check_topics(SimpleNamespace(existing=existing))  # type: ignore[arg-type]
    assert "actor join: its inputs have different numbers of partitions (orders 8, payments 4, refunds 8)" in str(
        caught.value
    )
    assert "topics with 8 partitions each" in str(caught.value)
