"""Keys, error texts and names from elsewhere can't move a cursor, forge a line of a log, or turn a text around."""

from __future__ import annotations

import io
import json
import logging
import re
import time
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st
from rich.console import Console

from actors import App, Context, OnError
from actors._core import logs
from actors._core.logs import escape, escaping
from actors.admin.parked import operations as parked
from actors.admin.parked.reader import Entry, ParkedQueue, chosen
from actors.cli.output import print_table
from actors.cli.session import Session, one_line_errors
from actors.errors import ActorsError, ConfigurationError, HandlerFailedError, RecordError
from actors.testing import ActorTestDriver
from actors.web.dashboard.rendering import Pages
from spark_replay.comparison import report
from spark_replay.printing import say
from spark_replay.report import html, tables
from stores._core.printable import moment, moment_ms, one_line, printable, printable_json

HOSTILE = "k\x1b]0;x\x07\n2026-01-01 ERROR forged\r\x9b2J\x7f\u2028\u202e\u2066\x85\ud800"
ESCAPED = r"k\x1b]0;x\x07\n2026-01-01 ERROR forged\r\x9b2J\x7f\u2028\u202e\u2066\x85\ud800"
WORST = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def is_sound(text: str) -> bool:
    """Tell whether nothing in a text acts on a medium, and no line of it is another program's."""
    return not WORST.search(text) and not any(line.lstrip().startswith("2026-01-01") for line in text.splitlines())


def test_each_character_that_is_not_printable_is_escaped() -> None:
    assert printable(HOSTILE) == ESCAPED
    assert printable("a\tb\nc\x1b", keep="\n\t") == "a\tb\nc\\x1b"
    assert one_line("a\n b\x1b" + "c" * 100, 10) == "a b\\x1bccc…"[:9] + "…"


@hypothesis.given(st.text())
def test_a_printable_text_stays_as_it_is_and_any_other_becomes_one(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    if text.isprintable():
        assert shown is text


@hypothesis.given(st.recursive(st.text() | st.none() | st.integers(), st.lists))
def test_json_is_one_printable_line_and_is_read_back(content: Any) -> None:
    line = printable_json(content)
    assert line.isprintable()
    assert json.loads(line) == content


# --- logs ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def log() -> Any:
    stream, logger = io.StringIO(), escaping(logging.getLogger("tests.printable"))
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("2026-01-02 %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    yield SimpleNamespace(to=logger, text=stream.getvalue)
    logger.removeHandler(handler)


def test_log_lines_escape_arguments_texts_and_errors(log: Any) -> None:
    log.to.warning("key %s", HOSTILE)
    log.to.warning("key %r", HOSTILE)
    log.to.warning("%d of %5.1f: %s", 3, 2.5, ValueError(HOSTILE))
    log.to.warning("%s", {"key": HOSTILE})
    log.to.warning(HOSTILE)
    log.to.warning(ValueError(HOSTILE))
    lines = log.text().splitlines()
    assert len(lines) == 6
    assert is_sound(log.text())
    assert lines[0] == f"2026-01-02 WARNING key {ESCAPED}"
    assert lines[1] == f"2026-01-02 WARNING key '{ESCAPED}'"
    assert lines[2] == f"2026-01-02 WARNING 3 of   2.5: {ESCAPED}"


@pytest.mark.parametrize("kind", ["cause", "context", "group", "note"])
def test_tracebacks_keep_their_lines_and_none_is_forged(log: Any, kind: str) -> None:
    def fail() -> None:
        inner = KeyError(HOSTILE)
        outer = RuntimeError(HOSTILE)
        if kind == "group":
            raise ExceptionGroup(HOSTILE, [inner, outer])
        try:
            raise inner
        except KeyError:
            raise outer from (inner if kind == "cause" else None)

    try:
        fail()
    except Exception as error:
        log.to.exception("it failed: %s", error)
    text = log.text()
    assert not WORST.search(text)
    assert not re.search(r"^\s*2026-01-01", text, re.MULTILINE)
    assert "in fail" in text
    assert "Traceback (most recent call last):\n" in text
    assert text.count("\n") > 4


def test_a_record_without_anything_odd_stays_as_it_is() -> None:
    error = HandlerFailedError(HOSTILE, topic="in", partition=0, offset=1, key=b"k")
    record = logging.LogRecord("x", logging.INFO, "x.py", 1, "%s of %d: %s", ("a", 1, error), None)
    assert escape(record)
    assert (record.msg, record.args, record.exc_text) == ("%s of %d: %s", ("a", 1, error), None)


def test_every_module_logs_with_escapes() -> None:
    bare = re.compile(r"^\w+ = logging\.getLogger\(__name__\)", re.MULTILINE)
    found = [path for root in ("actors", "stores", "spark_replay") for path in Path(root).rglob("*.py")]
    # `stores` stands below `actors`, and its one line shows a path, escaped.
    assert [str(path) for path in found if bare.search(path.read_text())] == ["stores/folder.py"]
    assert bare.search("import logging\nlogger = logging.getLogger(__name__)\n")


def test_a_worker_s_log_shows_keys_and_handlers_errors_escaped(caplog: pytest.LogCaptureFixture) -> None:
    app = App("shop", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str)

    @app.actor(topic, on_error=OnError(then="skip", dead_letters=True))
    async def work(ctx: Context, value: str) -> None:
        raise ValueError(value)

    text = HOSTILE.rstrip("\ud800")
    with ActorTestDriver(app, partitions=1) as driver:
        driver.send(topic, key=text, value=text, headers={"note": text.encode()})
    formatted = [logging.Formatter("%(message)s").format(record) for record in caplog.records]
    assert any("forged" in line for line in formatted)
    assert all(is_sound(line) for line in formatted)


def test_the_error_that_stops_a_partition_is_one_line() -> None:
    failed = HandlerFailedError(HOSTILE, topic="in", partition=0, offset=1, key=HOSTILE.encode(errors="replace"))
    assert str(failed).isprintable()
    failed.internal = ("actor", HOSTILE)
    assert str(failed).isprintable()


# --- terminals -------------------------------------------------------------------------------------------------------


PRINTS = re.compile(r"click\.s?echo\(|console\.print\(|(?<![\w.])print\(")
FIT = re.compile(r"printable\(|escaped\(|json\.dumps\(|\(table\)|_table\(")
PLAIN = {
    "actors/cli/progress.py": "numbers",
    "actors/cli/session.py": "what it is given was made fit in the line before",
    "spark_replay/cli/archive.py": "numbers",
    "spark_replay/cli/options.py": "its own text",
    "spark_replay/report/progress.py": "numbers",
}


def test_commands_print_through_what_escapes() -> None:
    found = [
        f"{path}:{number}"
        for root in ("actors/_faust/cli", "actors/coordination/cli", "spark_replay")
        for path in sorted(Path(root).rglob("*.py"))
        if str(path) not in PLAIN
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if PRINTS.search(line) and not FIT.search(line)
    ]
    assert found == []
    assert PRINTS.search("click.echo(key)")
    assert not FIT.search("click.echo(key)")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def session(stdout: Any) -> Session:
    return Session(None, None, False, False, stdout, stdout)  # type: ignore[arg-type]


def test_what_commands_print_is_escaped() -> None:
    out = io.StringIO()
    told = session(out)
    told.say(HOSTILE)
    told.remark(HOSTILE)
    told.say_json({HOSTILE: [HOSTILE]})
    print_table(out, HOSTILE, ("key", "#count"), [(HOSTILE, "1")])
    assert is_sound(out.getvalue())
    assert out.getvalue().splitlines()[:2] == [ESCAPED, ESCAPED]
    assert json.loads(out.getvalue().splitlines()[2]) == {HOSTILE: [HOSTILE]}


def test_content_is_escaped_for_a_terminal_and_exact_for_a_program() -> None:
    shown, piped = Terminal(), io.StringIO()
    session(shown).say_content("a\nb\x1b[2J")
    session(piped).say_content("a\nb\x1b[2J")
    assert shown.getvalue() == "a\nb\\x1b[2J\n"
    assert piped.getvalue() == "a\nb\x1b[2J\n"


@pytest.mark.parametrize("kind", [ActorsError, ConfigurationError, click.UsageError, OSError])
def test_a_command_s_error_is_one_line(kind: type[Exception], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.ClickException) as caught, one_line_errors():
        raise kind(HOSTILE)
    caught.value.show()
    assert is_sound(capsys.readouterr().err)


def a_line() -> ParkedQueue:
    entry = Entry(sequence=1, id=HOSTILE, error=HOSTILE, attempts=1, since_ms=2**63)
    key = HOSTILE.encode(errors="replace")
    return ParkedQueue(actor="a", topic="in", what="message", partition=0, key=key, entries=[entry])


def test_parked_messages_are_shown_escaped_and_found_by_what_is_shown() -> None:
    line, out = a_line(), io.StringIO()
    print_table(out, "Parked", parked._COLUMNS, [parked.line_row(line)])
    shown = [word for word in out.getvalue().splitlines() if "forged" in word]
    assert len(shown) == 1
    entry = {
        **parked.line_json(line),
        "id": HOSTILE,
        "timestamp_ms": 2**63,
        "value": {"a": HOSTILE},
        "timer": HOSTILE,
        "is_shown": True,
    }
    for text in parked.entry_lines({**entry, "headers": [[HOSTILE, HOSTILE]]}):
        session(out).say(text)
    assert is_sound(out.getvalue())
    definition: Any = SimpleNamespace(name="a", topic=App("shop").topic("in", key_type=str))
    assert chosen(definition, [line], printable(line.shown_key)) == [line]


@pytest.mark.parametrize("at_ms", [2**63, -(2**63), 10**30, 0])
def test_a_time_that_no_calendar_has_is_a_number(at_ms: int) -> None:
    assert moment(at_ms).startswith(("1970-01-01", str(at_ms)))


# --- pages and reports -----------------------------------------------------------------------------------------------


def test_pages_show_texts_escaped_and_forms_send_them_back_exactly() -> None:
    environment = Pages()._environment
    page = environment.from_string("<p>{{ text }}</p><b title='{{ text }}'>{{ 1|count }}{{ none|count }}</b>").render(
        text="<i>" + HOSTILE, none=None
    )
    assert not WORST.search(page)
    assert "&lt;i&gt;k\\x1b]0;x\\x07\n2026" in page
    assert '<span class="soft"' in page
    exact = environment.from_string('<input value="{{ text|exact }}">').render(text='"\u202e')
    assert exact == '<input value="&#34;\u202e">'


def a_report() -> report.Report:
    side = {"value": HOSTILE, "offset": 1}
    example = report.Example(partition=0, key=HOSTILE, cause=HOSTILE, seen=HOSTILE, log=side, export=side)
    counts = dict.fromkeys(report.KINDS, 0) | {"different": 1}
    return report.Report(
        changelog=HOSTILE, app=HOSTILE, store=HOSTILE, counts=counts, by_partition={0: counts}, keys=1, records=1,
        seconds=1.0, positions={0: 1}, ends=[1], against=HOSTILE, stale_copies=[HOSTILE], notes=[HOSTILE],
        examples={"different": [example]},
    )  # fmt: skip


def test_a_validation_s_report_is_escaped_on_the_terminal_and_in_html() -> None:
    out = io.StringIO()
    console = Console(file=out, width=10_000)
    tables.show(a_report(), console)
    say(console, f"[red]:smile: {HOSTILE}")
    assert is_sound(out.getvalue())
    assert out.getvalue().endswith(f"[red]:smile: {ESCAPED}\n")
    page = html.render_report(a_report(), made=html.Made(command=HOSTILE, source=HOSTILE))
    assert not WORST.search(page)
    assert ESCAPED.replace("\\n", "\n") in page


@pytest.mark.parametrize("policy", ["skip", "park", "stop"])
@pytest.mark.parametrize("kind", ["error", "tag", "cause"])
def test_a_long_text_of_a_record_makes_no_long_line(policy: str, kind: str, caplog: pytest.LogCaptureFixture):
    class Known(msgspec.Struct, tag=True):
        pass

    app = App("loud", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=Known if kind == "tag" else str)
    raw = app.topic("in", key_type=str, value_type=bytes)

    @app.actor(topic, on_error=policy)
    async def work(ctx: Context, value: Any) -> None:
        if kind == "error":
            raise ValueError(value)
        raise RuntimeError("short") from KeyError(value)

    text = "\x01" * 300_000
    value = json.dumps({"type": text}) if kind == "tag" else text
    stopped: Any = (
        pytest.raises(RecordError) if policy == "stop" or (kind, policy) == ("tag", "skip") else nullcontext()
    )
    with ActorTestDriver(app, partitions=1) as driver, caplog.at_level("INFO"):
        with stopped as caught:
            driver.send(raw, key="a", value=value.encode())
        if policy == "park":
            assert all(len(one.error) < 10_000 for one in driver.parked("work"))
    if caught is not None:
        assert len(str(caught.value)) < 20_000
    assert len(caplog.text) < 200_000


def test_a_long_text_is_escaped_in_little_time():
    began_s = time.process_time()
    assert len(printable("\x01\n" * 500_000)) == 3_000_000
    assert time.process_time() - began_s < 0.25


@pytest.mark.parametrize("policy", ["skip", "park"])
def test_many_records_that_fail_make_a_limited_number_of_lines(policy: str, caplog: pytest.LogCaptureFixture):
    app = App("loud", broker="kafka://127.0.0.1:1")
    topic = app.topic("in", key_type=str, value_type=str)

    @app.actor(topic, on_error=policy)
    async def work(ctx: Context, value: str) -> None:
        raise ValueError(value)

    logs._written.clear()
    with ActorTestDriver(app, partitions=1) as driver:
        began_s = time.time()
        for number in range(600):
            driver.post(topic, key=str(number), value="bad")
        driver.settle()
        seconds = int(time.time()) - int(began_s) + 1
    told = [record for record in caplog.records if "bad" in record.getMessage()]
    assert 0 < len(told) <= seconds * logs.LINES_PER_S
    assert 0 < sum(record.exc_text is not None for record in told) <= seconds * logs.TRACEBACKS_PER_S


def test_a_statement_says_how_many_of_its_lines_were_left_out():
    def line(at_s: float) -> logging.LogRecord:
        record = logging.LogRecord("x", logging.INFO, "a file", 7, "%s is bad", ("it",), None)
        record.created = at_s
        return record

    assert sum(logs.limited(line(5.0 + number / 1000)) for number in range(130)) == logs.LINES_PER_S
    later = line(7.5)
    assert logs.limited(later)
    assert later.getMessage() == "it is bad (before this one 30 such lines of one second were left out)"
    again = line(7.6)
    assert logs.limited(again)
    assert again.getMessage() == "it is bad"


@hypothesis.given(at_ms=st.integers(0, 253_402_300_799_999), rest=st.integers(0, 999), hours=st.integers(-12, 14))
@hypothesis.example(at_ms=1001, rest=0, hours=0)
@hypothesis.example(at_ms=1_085_643_552_241, rest=0, hours=0)
def test_a_time_is_read_to_the_millisecond(at_ms: int, rest: int, hours: int) -> None:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms, microseconds=rest)
    assert moment_ms(at) == at_ms
    near = datetime(9000, 1, 1, tzinfo=UTC)
    if at < near:
        assert moment_ms(at.astimezone(timezone(timedelta(hours=hours)))) == at_ms
