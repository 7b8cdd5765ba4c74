"""Each block of code of README and docs runs, with what it says of its results; commands are checked by their parsers.

A block that needs a broker is run by a test in `tests/kafka`. A fragment gets the names that it uses, and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import ssl
import types
import zlib
from collections.abc import Callable
from datetime import timedelta
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import click
import faust
import faust.cli.faust
import msgspec
import pytest
import yaml

import actors.cli
import dev.kafka.__main__
import spark_replay.cli
from actors import (
    Actor,
    AnswerLater,
    App,
    AskRejectedError,
    Context,
    OnError,
    Rejected,
    query,
    receive,
)
from actors.testing import ActorTestDriver
from tests.certificates import Authority
from tests.documents import INDENTED, ROOT, RUN_ELSEWHERE, Block, block, blocks_of

PICTURES = {"CONTRIBUTING.md#Layout": "a tree of folders"}
OTHERS_COMMANDS = {
    **dict.fromkeys(("java", "kafka-topics.sh", "kafka-consumer-groups.sh", "kafka-log-dirs.sh"), "Kafka's own tool"),
    **dict.fromkeys(("cd", "cp", "export", "mkdir", "rm", "source"), "of the shell"),
    "make": "the project's own targets",
    "uvicorn": "the ASGI server's own program",
    "spark-submit": "Spark's own tool; what follows the program's name is checked",
    "python -m grpc_tools.protoc": "gRPC's own compiler",
    "JARS=$(python": "a line of a shell, whose Python is imported by tests/spark",
}
COMMANDS = {
    "faust": actors.cli.cli,
    "python -m spark_replay": spark_replay.cli.main,
    "python -m dev.kafka": dev.kafka.__main__.main,
}

Run = Callable[[Block, Path], None]
RUNS: dict[str, Run] = {}


def runs(document: str, title: str, number: int = 1) -> Callable[[Run], Run]:
    def register(run: Run) -> Run:
        RUNS[block(document, title, number).label] = run
        return run

    return register


def an_app() -> App:
    return App("bank", broker="kafka://127.0.0.1:1")


class Thing(msgspec.Struct):
    """A type for topics whose values don't matter."""

    id: str = ""


# --- the blocks ------------------------------------------------------------------------------------------------------


@runs("docs/reference/actors.md", "Function actors and stores")
@runs("docs/how-to/from-faust.md", "The consumer", 2)
def adds_up(code: Block, _: Path) -> None:
    names = code.run({})
    with ActorTestDriver(names["app"]) as driver:
        for amount in (2, 3):
            driver.send(names["orders"], key="anna", value=amount)
        assert [sent.value for sent in driver.outputs(names["totals"])] == [2, 5]
        assert driver.get(names["spent"], "anna") == 5


@runs("docs/how-to/from-faust.md", "The consumer")
def a_consumer(code: Block, _: Path) -> None:
    names = code.run({})
    assert iscoroutinefunction(names["main"])


@runs("docs/how-to/from-kafka-streams.md", "A word count")
def counts_words(code: Block, _: Path) -> None:
    names = code.run({})
    with ActorTestDriver(names["app"]) as driver:
        driver.send(names["lines"], key="1", value="a rose is a rose")
        assert driver.items(names["seen"]) == {"a": 2, "rose": 2, "is": 1}


@runs("docs/reference/actors.md", "Class actors")
def a_class_actor(code: Block, _: Path) -> None:
    names = code.run({})
    with ActorTestDriver(names["app"]) as driver:
        driver.tell("Account", "ada", names["Deposit"](5))
        driver.tell("Account", "ada", names["Withdraw"](2))
        assert driver.get("Account", "ada") == names["Balance"](3)
        with pytest.raises(Exception, match="account ada has 3"):
            driver.tell("Account", "ada", names["Withdraw"](4))


@runs("docs/how-to/asgi.md", "Test the routes")
def a_route(code: Block, _: Path) -> None:
    names = block("docs/how-to/asgi.md", "Actors in a FastAPI or other ASGI app").run({})
    code.run(names)["test_a_deposit_is_kept"]()


@runs("docs/reference/inputs.md", "Tombstones")
def tombstones(code: Block, _: Path) -> None:
    app, items = an_app(), msgspec.defstruct("Items", [("items", list[Thing], msgspec.field(default_factory=list))])
    given = {"app": app, "Customer": Thing, "Item": Thing, "Items": items, "Context": Context}
    names = code.run({**given, "Actor": Actor, "receive": receive})
    with ActorTestDriver(app) as driver:
        driver.send(names["customers"], key="ada", value=Thing("1"))
        driver.send(names["customers"], key="bob", value=Thing("2"))
        driver.send(names["customers"], key="ada")
        assert driver.items(names["known"]) == {"bob": Thing("2")}
        for item in (Thing("1"), None):
            driver.send(app.topic("carts", key_type=str, value_type=Thing), key="ada", value=item)
        assert driver.get("Cart", "ada") is None


@runs("docs/reference/actors.md", "When the state's type changes")
def a_state_that_changes(code: Block, _: Path) -> None:
    app, newer, older = an_app(), an_app(), block("docs/reference/actors.md", "Class actors").run({})
    del app
    handler = "\n    @receive\n    async def look(self, _: str) -> None:\n        self.state.cents += 1\n"
    names = code.run({"msgspec": msgspec, "Actor": Actor, "receive": receive}, after=handler)
    newer.actor(newer.topic("accounts", key_type=str, value_type=str))(names["Account"])
    with ActorTestDriver(older["app"]) as driver:
        driver.tell("Account", "ada", older["Deposit"](5))
        driver.restart(newer)
        assert driver.get("Account", "ada") == names["Balance"](500)
        driver.tell("Account", "ada", "look")
        assert driver.get("Account", "ada") == names["Balance"](501)


class Deposit(msgspec.Struct, tag="deposit"):
    amount: int


class Withdraw(msgspec.Struct, tag="withdraw"):
    amount: int


class Balance(msgspec.Struct):
    cents: int = 0


class Transfer(msgspec.Struct):
    sender: str
    receiver: str
    amount: int


@runs("docs/reference/messages.md", "Ask")
def a_question(code: Block, _: Path) -> None:
    app = an_app()
    transfers = app.topic("transfers", key_type=str, value_type=Transfer)
    refused = app.topic("refused", key_type=str, value_type=str)
    drivers: list[ActorTestDriver] = []

    def begin() -> None:
        drivers.append(ActorTestDriver(app).__enter__())
        drivers[0].tell("Account", "ada", Deposit(100))

    given = {"Actor": Actor, "receive": receive, "Rejected": Rejected, "Context": Context, "timedelta": timedelta}
    messages = {"Balance": Balance, "Withdraw": Withdraw, "Deposit": Deposit, "Transfer": Transfer}
    topics = {"app": app, "transfers": transfers, "refused": refused, "AskRejectedError": AskRejectedError}
    # The page's account has its other handlers above.
    line = "class Account(Actor[Balance, str]):\n"
    handlers = f"{line}    @receive\n    async def deposit(self, message: Deposit) -> None:\n"
    changes = {
        line: f"{handlers}        self.state.cents += message.amount\n\n",
        "left = await": "begin()\nleft = await",
    }
    names = asyncio.run(code.run_async({**given, **messages, **topics, "begin": begin}, changes=changes))
    (driver,) = drivers
    try:
        assert names["left"] == 95
        for amount in (1_000, 90, 10):
            driver.send(transfers, key="t", value=Transfer("ada", "bob", amount))
        reasons = [sent.value.rpartition(": rejected: ")[2] for sent in driver.outputs(refused)]
        assert reasons == ["ada has 95 cents", "ada has 5 cents"]
        assert driver.items("Account") == {"ada": Balance(5), "bob": Balance(90)}
    finally:
        driver.close()


class Take(msgspec.Struct, tag="take"):
    pass


class GiveBack(msgspec.Struct, tag="give-back"):
    pass


class Seat(msgspec.Struct):
    taken: bool = False
    waiting: list[AnswerLater] = []


@runs("docs/reference/messages.md", "Answers that come later")
def a_late_answer(code: Block, _: Path) -> None:
    app, given = an_app(), {"receive": receive, "Take": Take, "GiveBack": GiveBack}
    names = code.run(given)
    methods = {name: names[name] for name in ("take", "give_back")}
    members = {**methods, "__module__": __name__}
    seat: Any = types.new_class("Chair", (Actor[Seat],), exec_body=lambda namespace: namespace.update(members))
    app.actor(app.topic("seats", key_type=str))(seat)
    asking, got = (app.topic(name, key_type=str, value_type=str) for name in ("asking", "got"))

    @app.actor(asking, concurrency=4)
    async def asker(ctx: Context, who: str) -> None:
        ctx.send(got, key=ctx.key, value=await ctx.ask(seat, "window", Take()))

    with ActorTestDriver(app) as driver:
        for who in ("ada", "bob"):
            driver.post(asking, key=who, value=who)
        driver.advance(1, settle=False)
        first = [sent.value for sent in driver.outputs(got)]
        driver.tell(seat, "window", GiveBack())
        assert (first, [sent.value for sent in driver.outputs(got)]) == (["yours"], ["yours"])


@runs("docs/reference/failures.md", "Messages that can't be handled")
def a_message_that_fails(code: Block, _: Path) -> None:
    app = an_app()
    topic = app.topic("in", key_type=str, value_type=str)
    handler = "async def work(ctx, value):\n    raise ValueError(value)\n"
    code.run({"app": app, "topic": topic, "OnError": OnError, "timedelta": timedelta}, after=handler)
    with ActorTestDriver(app) as driver:
        driver.send(topic, key="ada", value="no")
        (parked,) = driver.parked("work", "ada")
        assert parked.attempts == 6


@runs("docs/reference/failures.md", "Messages that can't be handled", 2)
def errors_by_class(code: Block, _: Path) -> None:
    policy = eval(code.code, {"OnError": OnError})
    assert [policy.then_for(error(), is_asked=False) for error in (KeyError, RuntimeError, OSError)] == [
        "skip",
        "park",
        "stop",
    ]


@runs("docs/reference/inputs.md", "Messages that come twice")
def repeats(code: Block, _: Path) -> None:
    app = an_app()
    payments, refunds = (app.topic(name, key_type=str, value_type=Thing) for name in ("payments", "refunds"))
    given = {"app": app, "payments": payments, "refunds": refunds, "Payment": Thing, "Context": Context}
    code.run({**given, "timedelta": timedelta})
    with ActorTestDriver(app) as driver:
        for _ in range(2):
            driver.send(payments, key="ada", value=Thing("1"), headers={"payment-id": b"1"})
            driver.send(refunds, key="ada", value=Thing("1"))
        assert [len(driver.items(app.stores[f"{name}-ids"])) for name in ("pay", "pay_back")] == [1, 1]


class Reading(msgspec.Struct):
    celsius: float = 0.0


@runs("docs/reference/inputs.md", "Which partition a key lives in")
def a_partitioner(code: Block, _: Path) -> None:
    app = an_app()
    readings = code.run({"app": app, "Reading": Reading})["readings"]

    @app.actor(readings, stores=[app.store("latest", key_type=str, value_type=Reading)])
    async def keep(ctx: Context, reading: Reading) -> None:
        app.stores["latest"].set(ctx.key, reading)

    with ActorTestDriver(app) as driver:
        for key in ("ada", "bob", "eve"):
            driver.send(readings, key=key, value=Reading(1.5), partition=zlib.crc32(key.encode()) % 3)
        assert driver.items(app.stores["latest"]) == dict.fromkeys(("ada", "bob", "eve"), Reading(1.5))


@runs("docs/how-to/test.md", "Testing without a broker")
def a_test(code: Block, _: Path) -> None:
    code.run(block("docs/reference/actors.md", "Class actors").run({}))["test_deposits_add_up"]()


@runs("docs/reference/queries.md", "Queries of an actor")
def a_query(code: Block, _: Path) -> None:
    app = an_app()
    seen = app.store("seen", key_type=str, value_type=str)
    runs_topic = app.topic("runs", key_type=str, value_type=str)

    @app.actor(runs_topic, stores=[seen])
    async def run_once(ctx: Context, value: str) -> None:
        seen[ctx.key] = value

    given = {"app": app, "accounts": app.topic("accounts", key_type=str), "seen": seen, "run_once": run_once}
    handler = (
        "@receive\n    async def deposit(self, message: Deposit) -> None:\n        self.state.cents += message.amount"
    )
    code.run(
        {**given, "Actor": Actor, "Balance": Balance, "Deposit": Deposit, "Context": Context}
        | {"query": query, "receive": receive},
        changes={"...  # its handlers, marked with @receive": handler},
    )
    with ActorTestDriver(app) as driver:
        driver.tell("Account", "ada", Deposit(500))
        driver.send(runs_topic, key="a", value="x")
        assert [driver.query("Account", "can_pay", "ada", cents=cents) for cents in (500, 501)] == [True, False]
        assert [driver.query(run_once, "was_run", key) for key in "ab"] == [True, False]


@runs("docs/how-to/read-models.md", "Read models")
def a_read_model(code: Block, _: Path) -> None:
    app = an_app()
    given = {"app": app, "scans": app.topic("scans", key_type=str), "Actor": Actor, "receive": receive}
    handler = "\n    @receive\n    async def scan(self, message: Order) -> None:\n        self.state.id = message.id"
    names = code.run(
        {**given, "Status": Thing, "Order": type("Order", (Thing,), {})},
        changes={" ...  # its handlers, marked with @receive": handler},
    )

    @app.actor(app.topic("orders", key_type=str, value_type=str), stores=[names["orders"]])
    async def order(ctx: Context, value: str) -> None:
        names["orders"][ctx.key] = names["Order"](value)

    with ActorTestDriver(app) as driver:
        driver.tell("Parcel", "p1", names["Order"]("Rome"))
        assert [(sent.key, sent.value) for sent in driver.outputs(names["statuses"])] == [("p1", Thing("Rome"))]


@runs("docs/reference/metrics.md", "Traces")
@runs("docs/how-to/standbys.md", "Standbys and warm-ups")
def an_apps_settings(code: Block, _: Path) -> None:
    assert isinstance(code.run({"App": App})["app"], App)


@runs("docs/how-to/security.md", "Who may ask")
@runs("docs/how-to/security.md", "Faust's pages and your own")
def an_app_that_asks_for_tokens(code: Block, folder: Path) -> None:
    folder.joinpath("query-tokens").write_text("a-token-of-enough-characters-for-anybody\n")
    folder.joinpath("admin-tokens").write_text("another-token-of-enough-characters-for-it\n")
    authority = Authority(folder)
    for made, name in zip(authority.certificate("worker"), ("worker.pem", "worker.key"), strict=True):
        assert made == folder / name
    found = code.run({"App": App, "Path": lambda path: folder / Path(path).name})
    assert isinstance(found["app"], App)


@runs("docs/how-to/security.md", "Brokers")
def an_app_with_a_secure_broker(code: Block, folder: Path) -> None:
    Authority(folder).file.rename(folder / "kafka-ca.pem")
    os.environ["BROKER_PASSWORD"] = "secret"
    try:
        names = code.run({"App": App, "faust": faust, "os": os, "ssl": ssl})
    finally:
        del os.environ["BROKER_PASSWORD"]
    assert names["app"].conf.ssl_context is names["context"]


def checks_names(code: Block, _: Path) -> None:
    """Check the names and arguments of what runs on Spark: `tests/spark` runs the functions themselves."""
    given = {name: create_autospec(getattr(spark_replay, name)) for name in spark_replay.__all__}
    module = type("spark_replay", (), given)
    without_import = {"import spark_replay\n": ""} if "import spark_replay" in code.code else None
    code.run({"spark_replay": module, "spark": object()}, changes=without_import)


RUNS[block("docs/how-to/replay.md", "Where the log is").label] = checks_names
RUNS[block("docs/how-to/recompute.md", "Recompute: the input through the app's own code", 2).label] = checks_names


# --- all of them -----------------------------------------------------------------------------------------------------


def documents() -> list[str]:
    paths = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in paths)


BLOCKS = [one for document in documents() for one in blocks_of(document)]


def of(*languages: str) -> list[Block]:
    return [one for one in BLOCKS if one.language in languages]


def test_blocks_of_all_languages_are_looked_at() -> None:
    languages = {one.language for one in BLOCKS}
    assert languages == {"python", "bash", "console", "ini", "json", "proto", "toml", "yaml", "", INDENTED}
    assert len({one.label for one in BLOCKS}) == len(BLOCKS)
    assert PICTURES.keys() <= {one.label for one in BLOCKS}


@pytest.mark.parametrize("code", of("python"), ids=lambda one: one.label)
def test_python_runs(code: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if code.label.startswith("docs/how-to/recipes.md#"):
        # tests/unit/docs/test_recipes.py counts and runs them.
        return
    if code.label in RUN_ELSEWHERE:
        document, _, title = code.label.partition("#")
        test = (ROOT / RUN_ELSEWHERE[code.label]).read_text()
        called = f'block("{document}", "{title.partition("/")[0]}"'
        assert called in test or "python_blocks(" in test, f"{RUN_ELSEWHERE[code.label]} doesn't run {code.label}"
        return
    assert code.label in RUNS, f"{code.label}, line {code.line}: write what runs it, with @runs"
    RUNS[code.label](code, tmp_path)


def test_nothing_is_named_that_is_not_there() -> None:
    assert {*RUNS, *RUN_ELSEWHERE} <= {one.label for one in of("python")}


@pytest.mark.parametrize("code", of("json"), ids=lambda one: one.label)
def test_json_is_json(code: Block) -> None:
    content = json.loads(code.code)
    assert content.get("format") == 1 or not code.label.startswith("docs/design/")


@pytest.mark.parametrize("code", of("yaml"), ids=lambda one: one.label)
def test_yaml_is_yaml_and_the_paths_are_served(code: Block) -> None:
    found = yaml.safe_load(code.code)
    if "groups" in found:
        # tests/unit/web/operations/test_alerts.py has the tool that checks rules.
        return
    paths = {probe["httpGet"]["path"] for probe in found.values() if "httpGet" in probe}
    assert paths == (set() if "scrape_configs" in found else {"/health/live", "/health/ready", "/health/startup"})


# --- commands --------------------------------------------------------------------------------------------------------


def check_command(text: str) -> None:
    """Parse a command as its program would.

    Raises:
        click.UsageError: an option or a command isn't there, or an argument is missing.
        LookupError: nobody knows the program.
    """
    words = shlex.split(re.sub(r"[][]", "", text))
    if text.split()[0] in OTHERS_COMMANDS or " ".join(words[:3]) in OTHERS_COMMANDS:
        if text.startswith("spark-submit"):
            _parse(spark_replay.cli.main, words[words.index("rebuild.py") + 1 :])
        return
    while re.match(r"[A-Z_]+=", words[0]):
        words.pop(0)
    for program, command in COMMANDS.items():
        own = program.split()
        if words[: len(own)] == own:
            _parse(command, words[len(own) :])
            return
    raise LookupError(f"{text}: no program of this repository")


def _parse(command: click.Command, words: list[str], parent: click.Context | None = None) -> None:
    name = command.name or "faust"
    if not isinstance(command, click.Group):
        # Without the program's own callbacks: they may start it.
        command.make_context(name, list(words), parent=parent)
        return
    context = click.Context(command, parent=parent, info_name=name)
    _, rest, _ = command.make_parser(context).parse_args(list(words))
    if not rest and command.invoke_without_command:
        return
    if not rest:
        raise click.UsageError(f"{name} takes a command")
    found = command.get_command(context, rest[0])
    if found is None:
        raise click.UsageError(f"{name} has no command {rest[0]}")
    _parse(found, rest[1:], context)


def shown_commands() -> list[tuple[str, str]]:
    found = [
        (one.label, command) for one in of("", INDENTED) if one.label not in PICTURES for command in one.commands()
    ]
    inline = re.compile(r"`((?:\w+=\S+ )*(?:faust -A \S+|python -m (?:spark_replay|dev\.kafka)) [^`…|]+)`")
    for path in [*map(Path, documents()), *(one.relative_to(ROOT) for one in ROOT.glob("examples/*.py"))]:
        found += [(str(path), command) for command in inline.findall((ROOT / path).read_text())]
    return found


@pytest.mark.parametrize(("where", "command"), shown_commands())
def test_commands_can_be_given_as_shown(where: str, command: str) -> None:
    try:
        check_command(command)
    except click.MissingParameter:
        # Within a sentence a command may be a name.
        assert "#" not in where


@pytest.mark.parametrize(
    "command",
    [
        "faust -A shop state grt spent anna",
        "faust -A shop worker --web-prt 6066",
        "faust -A shop",
        "faust -A shop state get spent",
        "python -m spark_replay validate --chagelog x",
        "python -m dev.kafka upp",
        "fautsy -A shop worker",
    ],
)
def test_a_wrong_command_is_noticed(command: str) -> None:
    with pytest.raises((click.UsageError, LookupError)):
        check_command(command)
