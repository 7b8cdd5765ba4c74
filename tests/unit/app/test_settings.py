"""Settings come from the command line, the environment, `pyproject.toml` and the program, in this order."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import faust
import pytest
from click.testing import CliRunner
from faust.types import ProcessingGuarantee
from hypothesis import given
from hypothesis import strategies as st

import actors.cli
from actors import App, ConfigurationError
from actors._faust.settings.sources import PREFIX, known_settings, read_settings
from actors._faust.settings.values import span, span_text
from actors._faust.setup import Setup
from actors.cli.settings import shown_settings
from actors.declare.options import ActorOptions
from tests.documents import blocks_of
from tests.unit.app.test_clear_errors import faust as run_faust

BROKER = "kafka://127.0.0.1:1"
TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, *lines: str) -> None:
    (folder / "pyproject.toml").write_text("[tool.faust-actors]\n" + "\n".join(lines))


def made(**options: Any) -> App:
    return App("shop", **{"broker": BROKER, **options})


def sources(app: App) -> dict[str, tuple[Any, str]]:
    return {row.name: (row.value, row.source) for row in shown_settings(app)}


# --- precedence ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "argument", "in_file", "in_environment", "read"),
    [
        ("queue_records", 1, 2, "3", lambda app: app.actor_options.queue_records),
        ("web_port", 1, 2, "3", lambda app: app.conf.web_port),
        ("broker_session_timeout", 1.0, "2s", "3000ms", lambda app: app.conf.broker_session_timeout),
        ("changelog_segment", timedelta(seconds=1), 2, "3s", lambda app: app.actor_options.changelog_segment.seconds),
    ],
)
def test_the_environment_goes_before_the_file_and_this_before_arguments(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    argument: Any,
    in_file: Any,
    in_environment: str,
    read: Any,
) -> None:
    assert read(made(**{setting: argument})) == 1
    write(folder, f"{setting} = {json.dumps(in_file)}")
    assert read(made(**{setting: argument})) == 2
    monkeypatch.setenv(f"{PREFIX}{setting.upper()}", in_environment)
    assert read(made(**{setting: argument})) == 3
    monkeypatch.setenv(f"{PREFIX}{setting.upper()}", "")
    assert read(made(**{setting: argument})) == 2


def test_fausts_own_variable_goes_before_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "web_port = 2")
    monkeypatch.setenv("WEB_PORT", "3")
    app = made(web_port=1)
    assert app.conf.web_port == 3
    assert sources(app)["web_port"] == (3, "WEB_PORT in the environment")


def test_a_configuration_object_is_part_of_the_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "web_port = 2")
    monkeypatch.setenv(f"{PREFIX}WEB_HOST", "here")
    app = made(web_bind="127.0.0.2")
    app.config_from_object({"web_port": 7, "web_host": "there", "web_bind": "127.0.0.3"})
    assert (app.conf.web_port, app.conf.web_host, app.conf.web_bind) == (2, "here", "127.0.0.3")
    assert sources(app)["web_bind"] == ("127.0.0.3", "app.config_from_object(…)")


def test_an_apps_prefix_is_that_of_all_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}QUEUE_RECORDS", "3")
    monkeypatch.setenv(f"SHOP_{PREFIX}QUEUE_RECORDS", "4")
    assert made().actor_options.queue_records == 3
    app = made(env_prefix="SHOP")
    assert app.actor_options.queue_records == 4
    assert sources(app)["queue_records"] == (4, f"SHOP_{PREFIX}QUEUE_RECORDS in the environment")


def test_settings_that_count_only_where_they_are_given_count_from_everywhere(folder: Path) -> None:
    assert Setup(made()).changelog_settings.replication_factor == -1
    assert sources(made())["topic_replication_factor"] == (None, "default")
    assert sources(made())["table_standby_replicas"] == (0, "default")
    write(folder, "topic_replication_factor = 1", "table_standby_replicas = 1")
    setup = Setup(made())
    assert (setup.changelog_settings.replication_factor, setup.placement_rules().standbys) == (1, 1)


def test_every_setting_has_a_variable_of_its_own_and_can_be_read() -> None:
    known = known_settings(faust.Settings.SETTINGS)
    variables = [key.upper() for key in known] + [one.variable for one in known.values() if one.variable]
    assert {name for name in variables if variables.count(name) > 2} == set()
    assert len({key.upper() for key in known}) == len(known)


def test_the_worker_serves_http_as_the_settings_say_unless_its_option_is_given(tmp_path: Path) -> None:
    text = (
        f'app = App("clear", broker="{BROKER}", web_enabled=False)\n@app.actor(app.topic("a"))\nasync def f(c, v): ...'
    )
    assert "\n| web " not in run_faust(tmp_path, text, "worker").stdout
    assert "\n| web " in run_faust(tmp_path, text, "worker", "--with-web").stdout


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("queue_record = 7", "there is no setting 'queue_record', did you mean queue_records?"),
        ("queue_records = true", "queue_records=True can't be used: write a whole number"),
        ("queue_records = '7k'", "queue_records='7k' can't be used: write a whole number"),
        ("queries = 'perhaps'", "queries='perhaps' can't be used: write true or false"),
        ("commit_deadline = '20 seconds'", "commit_deadline='20 seconds' can't be used: write a number of seconds"),
        ("commit_deadline = nan", "commit_deadline=nan can't be used"),
        ("commit_deadline = 1e99", "commit_deadline=1e+99 can't be used: it is longer than any"),
        ("open_pages = 1", "open_pages=1 can't be used: write a list of texts"),
        ("changelogs = {a = 1}", "can't be used: each entry has to be a text"),
        ("web_port = 70000", "web_port=70000 can't be used: Value 70000 is out of range"),
        ("processing_guarantee = 'twice'", "processing_guarantee='twice' can't be used"),
        ("broker_credentials = 'me:secret'", "broker_credentials=… can't be used: it can't be written as text"),
        (f"query_tokens = '{TOKEN}'", "query_tokens is a secret"),
        ("commit_deadline = -1", "commit_deadline=-1 day, 23:59:59 has to be more than 0"),
        ("[other", "can't be read, so its settings are unknown"),
    ],
)
def test_a_setting_in_the_file_that_cannot_be_used_is_named_with_the_file(folder: Path, lines: str, said: str) -> None:
    write(folder, lines)
    with pytest.raises(ConfigurationError) as refused:
        made()
    assert said in str(refused.value)
    assert "secret'" not in str(refused.value)
    assert TOKEN not in str(refused.value)
    if "has to be 0" not in said:
        assert f"{folder}/pyproject.toml" in str(refused.value)


def test_a_file_without_our_table_counts_as_none(folder: Path) -> None:
    for text in ("", "[project]\nname = 'x'", "tool = 3"):
        (folder / "pyproject.toml").write_text(text)
        assert made().actor_options.queue_records == 1_000
    (folder / "pyproject.toml").write_text("[tool]\nfaust-actors = 3")
    with pytest.raises(ConfigurationError, match="has to be a table of settings"):
        made()
    (folder / "pyproject.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="can't be read"):
        made()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"QUEUE_RECORD": "7"}, f"no setting '{PREFIX}QUEUE_RECORD', did you mean {PREFIX}QUEUE_RECORDS?"),
        ({"QUEUE_RECORDS": "many"}, f"{PREFIX}QUEUE_RECORDS in the environment: queue_records='many' can't be used"),
        ({"CHANGELOGS": "a=b"}, "in the environment a JSON object"),
        ({"QUERY_TOKENS": TOKEN, "QUERY_TOKENS_FILE": "x"}, "are the same setting: leave one out"),
        ({"MISSING_OFFSET": "latest"}, f"{PREFIX}MISSING_OFFSET in the environment and MISSING_OFFSET in the env"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    monkeypatch.setenv("MISSING_OFFSET", "earliest")
    for name, value in variables.items():
        monkeypatch.setenv(PREFIX + name, value)
    with pytest.raises(ConfigurationError) as refused:
        made()
    assert said in str(refused.value)
    assert TOKEN not in str(refused.value)


def test_a_variable_without_our_prefix_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOVED_OFFSET", "acept")
    with pytest.raises(ConfigurationError) as refused:
        made(moved_offset="accept")
    assert str(refused.value) == (
        "MOVED_OFFSET in the environment: moved_offset='acept' can't be used: write stop or accept"
    )


LISTS = [option.name for option in fields(ActorOptions) if option.type == "Sequence[str]"]


@pytest.mark.parametrize("value", ["web", Path("web"), None, ["web", 3]], ids=repr)
@pytest.mark.parametrize("name", LISTS)
def test_a_setting_that_takes_a_list_takes_nothing_else(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        made(**{name: value})
    assert str(refused.value) == f"App(…): {name}={value!r} can't be used: write a list of texts, as ['a', 'b']"


def test_a_token_that_is_no_text_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigurationError, match="query_tokens=… can't be used: write a list of texts, or the Path"):
        made(query_tokens=[TOKEN, 3])


@pytest.mark.parametrize("variable", ["QUERY_TOKENS", "QUERY_TOKENS_FILE"])
def test_an_empty_variable_of_a_secret_leaves_no_worker_open(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "")
    with pytest.raises(ConfigurationError, match="query_tokens"):
        _ = made().secrets


@pytest.mark.parametrize("name", ["SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT", "PORT_6066_TCP_ADDR"])
def test_what_kubernetes_adds_for_a_service_is_no_setting(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(PREFIX + name, "tcp://10.0.0.1:6066")
    assert made().actor_options.queue_records == 1_000


@pytest.mark.parametrize(
    ("variables", "options", "said"),
    [
        ({"WEB_PORT": "abc"}, {}, "WEB_PORT in the environment: web_port='abc' can't be used"),
        ({}, {"web_port": 70_000}, r"App\(…\): web_port=70000 can't be used: Value 70000"),
        (
            {"PROCESSING_GUARANTEE": "twice"},
            {},
            "PROCESSING_GUARANTEE in the environment: processing_guarantee='twice'",
        ),
    ],
)
def test_a_value_that_faust_does_not_take_is_named_with_its_place(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], options: dict[str, Any], said: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=said):
        _ = made(**options).conf


def test_another_mode_than_exactly_once_is_refused_wherever_it_is_set(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = r": processing_guarantee=at_least_once can't be used: exactly once is the only mode.*: leave the setting out"
    with pytest.raises(ConfigurationError, match=r"^App\(…\)" + said):
        _ = made(processing_guarantee=ProcessingGuarantee.AT_LEAST_ONCE).conf
    app = made()
    app.config_from_object({"processing_guarantee": "at_least_once"})
    with pytest.raises(ConfigurationError, match=r"^app\.config_from_object\(…\)" + said):
        _ = app.conf
    write(folder, "processing_guarantee = 'at_least_once'")
    with pytest.raises(ConfigurationError, match=r"/pyproject\.toml \[tool\.faust-actors\]" + said):
        _ = made().conf
    monkeypatch.setenv("PROCESSING_GUARANTEE", "at_least_once")
    with pytest.raises(ConfigurationError, match="^PROCESSING_GUARANTEE in the environment" + said):
        _ = made(processing_guarantee="exactly_once").conf


def test_a_command_ends_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEB_PORT", "abc")
    ended = run_faust(tmp_path, f'app = App("clear", broker="{BROKER}")', "settings")
    assert ended.returncode == 1
    assert "WEB_PORT in the environment: web_port='abc' can't be used" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


# --- values --------------------------------------------------------------------------------------------------------


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=9_999)))
def test_a_span_that_is_shown_can_be_written(value: timedelta) -> None:
    whole_ms = value - timedelta(microseconds=value.microseconds % 1_000)
    assert span(span_text(whole_ms)) == whole_ms


@pytest.mark.parametrize(
    ("text", "seconds"), [("1h 30min", 5400), ("1h30min", 5400), ("90", 90), (90, 90), ("1.5s", 1.5), ("2d", 172_800)]
)
def test_spans(text: Any, seconds: float) -> None:
    assert span(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "s", "1 2s", "1s,", "inf", "1w", True, None, []])
def test_what_is_no_span(text: Any) -> None:
    with pytest.raises(ValueError, match="seconds"):
        span(text)


def test_all_kinds_from_both_places(folder: Path) -> None:
    write(folder, 'open_pages = ["/a/"]', 'query_tokens_file = "tokens"', "broker = ['kafka://b:1', 'kafka://c:2']")
    environment = {
        f"{PREFIX}WORKER_HOSTS": "10.0.*, x.internal",
        f"{PREFIX}CHANGELOGS": '{"a": "shop-b"}',
        f"{PREFIX}QUEUE_RECORDS": "25",
        f"{PREFIX}AUTODISCOVER": "one,two",
        f"{PREFIX}BROKER_COMMIT_INTERVAL": "250ms",
    }
    found, _ = read_settings({}, faust.Settings.SETTINGS, environment=environment)
    assert found == {
        "open_pages": ["/a/"],
        "query_tokens": Path("tokens"),
        "broker": "kafka://b:1;kafka://c:2",
        "worker_hosts": ["10.0.*", "x.internal"],
        "changelogs": {"a": "shop-b"},
        "queue_records": 25,
        "autodiscover": ["one", "two"],
        "broker_commit_interval": 0.25,
    }


def test_the_page_shows_a_file_that_can_be_used(folder: Path) -> None:
    (code,) = [one for one in blocks_of("docs/reference/settings.md") if one.language == "toml"]
    (folder / "pyproject.toml").write_text(code.code)
    app = made()
    assert app.actor_options.commit_deadline == timedelta(seconds=90)
    assert [str(url) for url in app.conf.broker] == ["kafka://10.0.0.1:9092", "kafka://10.0.0.2:9092"]
    assert app.actor_options.query_tokens == Path("/run/secrets/query-tokens")


# --- what is shown -------------------------------------------------------------------------------------------------


def test_no_secret_is_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_TOKENS", f"{TOKEN}-admin")
    monkeypatch.setenv(f"{PREFIX}WORKER_SECRET", f"{TOKEN}-{TOKEN}")
    app = made(
        query_tokens=[TOKEN],
        cache=f"redis://me:{TOKEN}@here/1",
        broker_credentials=faust.SASLCredentials(username="me", password=TOKEN),
        logging_config={"version": 1, "smtp": {"password": TOKEN}},
    )
    shown = sources(app)
    assert TOKEN not in repr(shown)
    assert shown["query_tokens"] == ("***", "App(…)")
    assert shown["admin_tokens"] == ("***", "ADMIN_TOKENS in the environment")
    assert shown["worker_secret"] == ("***", f"{PREFIX}WORKER_SECRET in the environment")
    assert shown["cache"] == ("redis://me:***@here/1", "App(…)")
    assert shown["broker_credentials"] == ("***", "App(…)")
    monkeypatch.setenv("QUERY_TOKENS_FILE", "/run/tokens")
    assert sources(made(query_tokens=[TOKEN]))["query_tokens"] == (
        "/run/tokens",
        "QUERY_TOKENS_FILE in the environment",
    )


def test_what_the_program_changes_later_is_shown() -> None:
    app = made()
    app.conf.web_port = 7
    assert sources(app)["web_port"] == (7, "app.conf.web_port = …")


def test_the_command_lists_settings_and_sources(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The variable that Faust sets for `-D` ends with the test.
    monkeypatch.setenv("F_DATADIR", "")
    write(folder, "queue_records = 7")
    (folder / "shown_app.py").write_text(f'from actors import App\napp = App("shown", broker="{BROKER}")')
    monkeypatch.syspath_prepend(str(folder))
    words = ["-A", "shown_app", "-D", str(folder / "data")]
    done = CliRunner().invoke(actors.cli.cli, [*words, "--json", "settings"])
    assert done.exit_code == 0, done.output
    rows = {row["setting"]: row for row in json.loads(done.output)}
    place = f"{folder}/pyproject.toml [tool.faust-actors]"
    assert rows["queue_records"] == {"setting": "queue_records", "value": 7, "from": place}
    assert rows["datadir"] == {"setting": "datadir", "value": str(folder / "data"), "from": "-D"}
    assert rows["commit_deadline"] == {"setting": "commit_deadline", "value": "20s", "from": "default"}
    table = CliRunner().invoke(actors.cli.cli, [*words[:2], "settings"])
    assert table.exit_code == 0, table
    assert ["queue_records", "7"] in [line.split()[:2] for line in table.output.splitlines()]
    assert os.environ["F_DATADIR"]
