"""A worker's log as JSON: one object a line, with the message that a line is about."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from actors import App, ConfigurationError, Context
from actors._core.logs import escaping
from actors.cli.run.json_logs import JsonFormatter
from actors.ports import TopicPartition
from actors.testing import ActorTestDriver
from tests.unit.app.test_clear_errors import NO_BROKER, faust

logger = escaping(logging.getLogger("tests.json_logs"))


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(JsonFormatter("shop"))
    logging.root.addHandler(handler)
    yield handler.stream
    logging.root.removeHandler(handler)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_object_whatever_is_in_it(stream: io.StringIO) -> None:
    hostile = 'a\n{"level": "INFO"}\x1b[31m\u2028\ud800"'
    logger.error("%s", hostile, exc_info=ValueError(hostile))
    logging.getLogger("plain").warning("%s", hostile)
    ours, plain = lines(stream)
    assert len(stream.getvalue().splitlines()) == 2
    assert stream.getvalue().replace("\n", "").isprintable()
    assert (ours["level"], ours["logger"], ours["app"]) == ("ERROR", "tests.json_logs", "shop")
    assert ours["time"].endswith("Z")
    assert datetime.fromisoformat(ours["time"]).utcoffset() == timedelta(0)
    assert "ValueError" in ours["exception"]
    assert plain["message"] == hostile
    assert "exception" not in plain


def test_a_partition_that_is_an_argument_is_named(stream: io.StringIO) -> None:
    logger.warning("%s is slow", TopicPartition("orders", 3))
    (line,) = lines(stream)
    assert (line["topic"], line["partition"]) == ("orders", 3)
    assert "offset" not in line


def test_lines_of_a_handler_and_of_its_failure_name_the_message(stream: io.StringIO) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    orders = app.topic("orders", key_type=str, value_type=str)

    @app.actor(orders, on_error="skip")
    async def place(ctx: Context, value: str) -> None:
        logger.warning("handling %s", value)
        if value == "bad":
            raise ValueError(value)

    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(orders, key="ada", value="good")
        driver.send(orders, key="bob\x00", value="bad")
    found = lines(stream)
    about = {"actor": "place", "topic": "orders", "partition": 0, "offset": 0, "key": "ada"}
    (handled,) = [line for line in found if line["message"] == "handling good"]
    assert handled.items() >= about.items()
    (skipped,) = [line for line in found if "skipped after" in line["message"]]
    assert skipped.items() >= {**about, "offset": 1, "key": "bob\x00"}.items()
    assert "ValueError: bad" in skipped["exception"]


@pytest.mark.parametrize(
    ("to_file", "processes"),
    [
        (False, ()),
        (True, ("--processes", "2")),
        pytest.param(True, (), marks=pytest.mark.nightly),
        pytest.param(False, ("--processes", "2"), marks=pytest.mark.nightly),
    ],
)
def test_a_worker_writes_nothing_but_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to_file: bool, processes: tuple[str, ...]
) -> None:
    monkeypatch.setenv("FAUST_ACTORS_LOG_FORMAT", "json")
    actor = '@app.actor(app.topic("a"))\nasync def f(c, v): ...'
    text = f'app = App("clear", broker="kafka://127.0.0.1:1")\n{actor}'
    options = ("--logfile", str(tmp_path / "log")) if to_file else ()
    ended = faust(tmp_path, text, "worker", "-l", "info", "--without-web", *options, *processes)
    assert ended.returncode == 1
    written = (tmp_path / "log").read_text() if to_file else ended.stdout + ended.stderr
    found = [json.loads(line) for line in written.splitlines()]
    (refused,) = [line for line in found if line["level"] == "CRITICAL"]
    assert refused["message"] == NO_BROKER
    assert {line["app"] for line in found} == {"clear"}
    assert not to_file or ended.stdout + ended.stderr == ""


@pytest.mark.nightly
def test_a_supervisor_and_its_workers_write_nothing_but_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An app without actors gets as far as its workers, which end: Faust's producer needs the broker."""
    monkeypatch.setenv("FAUST_ACTORS_LOG_FORMAT", "json")
    text = 'app = App("clear", broker="kafka://127.0.0.1:1")'
    ended = faust(tmp_path, text, "worker", "-l", "info", "--without-web", "--processes", "2", spawned=True)
    found = [json.loads(line) for line in (ended.stdout + ended.stderr).splitlines()]
    assert (ended.returncode, {line["app"] for line in found}) == (1, {"clear"})
    assert sum("Closing event loop" in line["message"] for line in found) == 2
    began, gave_up = [line for line in found if line["logger"] == "actors.cli.run.spawned"]
    assert (began["level"], "2 processes; SIGHUP replaces" in began["message"]) == ("INFO", True)
    assert (gave_up["level"], "ended before any was ready" in gave_up["message"]) == ("CRITICAL", True)


def test_a_format_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="log_format='jsn' can't be used: write text or json"):
        App("clear", log_format="jsn")
    ended = faust(tmp_path, 'app = App("clear", log_format="json", logging_config={"version": 1})', "worker")
    assert ended.returncode == 1
    assert "log_format='json' and logging_config contradict each other" in ended.stderr
