"""What documents show, and how tests run it: `curl` commands at another port, code with the names that it needs."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
[EDGES] = (contract["forbidden_modules"] for contract in CONTRACTS if "nothing of the edges" in contract["name"])
ADDRESS = "localhost:6066"
EVERY_S = 20.0

_SHOWN = re.compile(r"^\$ (?P<line>curl .*)(?:\n(?P<answer>[\[{].*))?$|`(?P<inline>curl [^`\n]*)`", re.MULTILINE)
RUN_ELSEWHERE = {
    "docs/how-to/from-temporal.md#An agent": "tests/programs/test_timers_and_effects.py",
    "docs/how-to/from-temporal.md#An agent/2": "tests/programs/test_timers_and_effects.py",
    "docs/how-to/from-temporal.md#A saga": "tests/programs/test_timers_and_effects.py",
    "docs/how-to/from-temporal.md#A saga/2": "tests/programs/test_timers_and_effects.py",
    "docs/how-to/snapshots.md#A corrected state": "tests/spark/snapshot/test_publish.py",
    "docs/how-to/extensions.md#Run something of your own in each worker": "tests/unit/app/test_extensions.py",
    "docs/how-to/extensions.md#Install it/2": "tests/unit/app/test_extensions.py",
    "docs/how-to/asgi.md#Actors in a FastAPI or other ASGI app": "tests/kafka/app/test_asgi.py",
    "README.md#Example": "tests/kafka/docs/test_readme.py",
    "docs/how-to/coordination.md#Locks, leaders and shared configuration/2": "tests/kafka/docs/test_documents.py",
    "docs/how-to/coordination.md#Guarding a resource": "tests/unit/coordination/test_coordination_fencing.py",
    "docs/how-to/coordination.md#Guarding a resource/2": "tests/unit/coordination/test_coordination_fencing.py",
    "docs/how-to/coordination.md#Guarding a resource/3": "tests/unit/coordination/test_coordination_fencing.py",
    "docs/reference/api/client.md#Example": "tests/unit/web/queries/test_window_queries.py",
    "docs/reference/api/coordination.md#Example": "tests/unit/coordination/test_coordination_client.py",
    "docs/reference/api/coordination.md#Example/2": "tests/kafka/docs/test_documents.py",
    "docs/reference/api/spark_replay.md#Examples": "tests/spark/test_examples.py",
    "docs/reference/api/spark_replay.md#Examples/2": "tests/spark/test_examples.py",
    "docs/reference/api/spark_replay.md#Examples/3": "tests/spark/comparison/test_live.py",
    "docs/reference/api/spark_replay.md#Examples/4": "tests/spark/recompute/test_recompute.py",
    "docs/reference/api/spark_replay.md#Examples/5": "tests/spark/test_examples.py",
    "docs/reference/api/spark_replay.md#Examples/6": "tests/spark/fold/test_tables.py",
    "docs/how-to/notebooks.md#An audit as a notebook": "tests/spark/test_notebook.py",
    "docs/how-to/notebooks.md#An audit as a notebook/2": "tests/spark/test_notebook.py",
    "docs/how-to/notebooks.md#An audit as a notebook/3": "tests/spark/test_notebook.py",
    "docs/how-to/notebooks.md#An audit as a notebook/4": "tests/spark/test_notebook.py",
    "docs/reference/inputs.md#Several inputs": "tests/unit/docs/test_examples.py",
    "docs/reference/queries.md#From Python": "tests/kafka/web/test_queries.py",
    "docs/how-to/schemas.md#State: schemas and `state_version` together": "tests/unit/docs/test_schemas_page.py",
    "docs/reference/tables.md#Tables": "tests/unit/docs/test_tables_page.py",
    "docs/reference/tables.md#Joins of two tables": "tests/unit/docs/test_tables_page.py",
    "docs/reference/tables.md#Joins by a foreign key": "tests/unit/docs/test_tables_page.py",
    "docs/reference/tables.md#Aggregates": "tests/unit/docs/test_tables_page.py",
    "docs/reference/windows.md#Windows": "tests/unit/docs/test_windows_page.py",
    "docs/reference/windows.md#Topics between actors": "tests/unit/docs/test_windows_page.py",
    "docs/reference/windows.md#Changes once per interval": "tests/unit/docs/test_windows_page.py",
    "docs/reference/windows.md#Windows over keys": "tests/unit/docs/test_windows_page.py",
    "docs/reference/windows.md#Aggregates": "tests/unit/docs/test_windows_page.py",
    "docs/reference/joins.md#Streams with streams": "tests/unit/docs/test_joins_page.py",
    "docs/reference/joins.md#One with many": "tests/unit/docs/test_joins_page.py",
    "docs/reference/joins.md#Streams with a view": "tests/unit/docs/test_joins_page.py",
    "docs/how-to/windows-and-joins.md#Sales per minute": "tests/unit/docs/test_programs_page.py",
    "docs/how-to/windows-and-joins.md#Sessions of clicks": "tests/unit/docs/test_programs_page.py",
    "docs/how-to/windows-and-joins.md#Orders with payments": "tests/unit/docs/test_programs_page.py",
    "docs/how-to/windows-and-joins.md#Orders with customers": "tests/unit/docs/test_programs_page.py",
    "docs/how-to/windows-and-joins.md#The most viewed pages": "tests/unit/docs/test_programs_page.py",
    "docs/how-to/windows-and-joins.md#Failed logins": "tests/unit/docs/test_programs_page.py",
    "docs/tutorial/shop.md#2. Write an actor with state": "tests/unit/docs/test_tutorial.py",
    "docs/tutorial/shop.md#3. Test it without a broker": "tests/unit/docs/test_tutorial.py",
    "docs/reference/timers-and-effects.md#Timers": "tests/unit/docs/test_timers_page.py",
    "docs/reference/timers-and-effects.md#Effects outside Kafka": "tests/unit/docs/test_timers_page.py",
    "docs/reference/timers-and-effects.md#Calls that may not be repeated": "tests/unit/docs/test_timers_page.py",
    **dict.fromkeys(
        (
            "docs/how-to/formats.md#Formats: Avro, Protobuf and JSON Schema with a schema registry",
            "docs/how-to/formats.md#Where schemas are",
            "docs/how-to/formats.md#A format of your own",
            "docs/how-to/formats.md#Protobuf/3",
            "docs/how-to/formats.md#Stores",
            "docs/how-to/formats.md#Tests",
        ),
        "tests/unit/docs/test_formats_page.py",
    ),
    **dict.fromkeys(
        (
            "docs/how-to/cloudevents.md#CloudEvents",
            "docs/how-to/debezium.md#Debezium: follow a table of PostgreSQL",
            "docs/how-to/debezium.md#Tests",
            "docs/how-to/headers.md#Pass headers on",
            "docs/how-to/headers.md#Read a header",
        ),
        "tests/unit/docs/test_envelopes_pages.py",
    ),
    **dict.fromkeys(
        (
            "docs/how-to/around-handlers.md#A session of a database",
            "docs/how-to/around-handlers.md#A tenant for each message",
            "docs/how-to/from-celery.md#The program",
            "docs/how-to/from-celery.md#The program/2",
            "docs/how-to/logs.md#Lines of a handler",
            "docs/reference/inputs.md#Several actors of one topic",
            "docs/reference/timers-and-effects.md#A calendar",
            "docs/reference/timers-and-effects.md#Limits of effects",
        ),
        "tests/unit/docs/test_calendar_pages.py",
    ),
    "docs/how-to/job-queue.md#From Python": "tests/unit/docs/test_job_queue_page.py",
    "docs/how-to/http-commands.md#Take commands by HTTP": "tests/unit/docs/test_http_page.py",
    "docs/how-to/http-commands.md#The same in FastAPI": "tests/unit/docs/test_http_page.py",
    "docs/how-to/http-commands.md#The same in FastAPI/2": "tests/unit/docs/test_http_page.py",
    **dict.fromkeys(
        (
            "docs/how-to/postgres.md#Write to PostgreSQL",
            "docs/how-to/sinks.md#A function",
            "docs/how-to/sinks.md#Any DB-API driver, exactly once",
            "docs/how-to/sinks.md#Parquet files, exactly once",
            "docs/how-to/sinks.md#Webhooks",
            "docs/how-to/sinks.md#A target of your own",
            "docs/how-to/lookups.md#Look up",
            "docs/how-to/sources.md#Poll a source",
            "docs/how-to/large-values.md#Large values",
        ),
        "tests/unit/docs/test_sinks_pages.py",
    ),
    "docs/how-to/views.md#Views": "tests/kafka/docs/test_documents.py",
    "docs/how-to/rows.md#Rows below a key": "tests/unit/docs/test_rows_page.py",
    "docs/how-to/rows.md#Reading pages/2": "tests/unit/docs/test_rows_page.py",
}
"""Blocks of the documents that a test of their own runs, by that test's file."""


@dataclass(frozen=True)
class Command:
    """A command, and what the document says that it answers; None where it doesn't say."""

    text: str
    answer: Any = None


def commands_in(text: str) -> list[Command]:
    """Return the commands: lines of a console that begin with `$`, with the line below, and those between backticks."""
    found = []
    for match in _SHOWN.finditer(text):
        answer = match["answer"]
        found.append(Command(match["line"] or match["inline"], None if answer is None else json.loads(answer)))
    return found


def commands_of(document: str) -> list[Command]:
    """Return the commands of a document, by its path in the repository; there is at least one."""
    found = commands_in((ROOT / document).read_text())
    assert found, f"{document} shows no command"
    return found


async def run(
    command: Command, port: int, *, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> Any:
    """Run a command in a shell, with another port than the document's; give the JSON that it prints."""
    assert ADDRESS in command.text, command
    text = command.text.replace(ADDRESS, f"localhost:{port}").replace("curl ", "curl -s ", 1)
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", text),
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(EVERY_S):
        said, trouble = await process.communicate()
    assert process.returncode == 0, (command, process.returncode, trouble)
    return json.loads(said)


def shows(said: Any, shown: Any) -> bool:
    """Return whether `said` contains everything in `shown`; it may contain more."""
    if isinstance(shown, dict):
        return isinstance(said, dict) and all(name in said and shows(said[name], part) for name, part in shown.items())
    if isinstance(shown, list):
        return len(said) == len(shown) and all(map(shows, said, shown))
    return bool(said == shown)


# --- blocks of code --------------------------------------------------------------------------------------------------

_HEADING = re.compile(r"#+ (?P<title>.+)")
_FENCE = re.compile(r"(?P<indent> *)```(?P<language>\w*)")
INDENTED = "indented"


@dataclass(frozen=True)
class Block:
    """A block of code of a document.

    Attributes:
        label: the document, the heading above, and which one below that, counted from 1.
        language: as the fence names it; `indented` where there is no fence.
        line: the number of its first line in the document.
    """

    label: str
    language: str
    code: str
    line: int

    def run(
        self, names: Mapping[str, Any], *, changes: Mapping[str, str] | None = None, after: str = ""
    ) -> dict[str, Any]:
        """Run Python code.

        Args:
            names: what the code may use.
            changes: text that takes the place of what the document leaves out.
            after: code that follows.

        Returns:
            The names that are there then.
        """
        found = {**names}
        result = eval(self._compiled(changes or {}, after), found)
        assert not inspect.iscoroutine(result), f"{self.label} awaits: use run_async"
        return found

    async def run_async(
        self, names: Mapping[str, Any], *, changes: Mapping[str, str] | None = None, after: str = ""
    ) -> dict[str, Any]:
        """Run Python code that awaits; as `run`."""
        found = {**names}
        await eval(self._compiled(changes or {}, after), found)
        return found

    def _compiled(self, changes: Mapping[str, str], after: str) -> CodeType:
        code = self.code
        for old, new in changes.items():
            assert code.count(old) == 1, f"{self.label}: {old!r} isn't there once"
            code = code.replace(old, new)
        # With the document's line numbers in tracebacks.
        padded = "\n" * (self.line - 1) + code + "\n" + after
        return compile(padded, self.label, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)

    def commands(self) -> Iterator[str]:
        """Return the commands of a shell block, each on one line and without its comment."""
        for line in self.code.replace("\\\n", " ").splitlines():
            command = re.sub(r"(^|\s)#.*", "", line).strip()
            if command:
                yield command


def blocks_of(document: str) -> list[Block]:
    """Return the blocks of code of a document, by its path in the repository."""
    return list(_blocks(document, (ROOT / document).read_text().splitlines()))


def block(document: str, title: str, number: int = 1) -> Block:
    """Return one block: which one below a heading, counted from 1."""
    label = f"{document}#{title}" + (f"/{number}" if number > 1 else "")
    (found,) = [one for one in blocks_of(document) if one.label == label]
    return found


def _blocks(document: str, lines: list[str]) -> Iterator[Block]:
    title, count, at = "", 0, 0
    while at < len(lines):
        begin, heading, fence = at, _HEADING.fullmatch(lines[at]), _FENCE.fullmatch(lines[at])
        at += 1
        language = None
        if heading is not None:
            title, count = heading["title"], 0
        elif fence is not None:
            language, end = fence["language"], fence["indent"] + "```"
            begin, at = at, lines.index(end, at) + 1
            code = lines[begin : at - 1]
        elif lines[begin].startswith("    ") and begin and not lines[begin - 1]:
            language = INDENTED
            while at < len(lines) and lines[at].startswith("    "):
                at += 1
            code = lines[begin:at]
        if language is not None:
            count += 1
            label = f"{document}#{title}" + (f"/{count}" if count > 1 else "")
            yield Block(label, language, textwrap.dedent("\n".join(code)) + "\n", begin + 1)


# --- programs --------------------------------------------------------------------------------------------------------


def program(source: str) -> list[str]:
    """What the code does: without comments, docstrings and the broker's address."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in body if not _is_text(line) and not _is_import_of_os(line)]
        if isinstance(node, ast.keyword) and node.arg == "broker":
            node.value = ast.Constant("kafka://…")
    return [ast.unparse(statement) for statement in tree.body]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_import_of_os(node: ast.AST) -> bool:
    return isinstance(node, ast.Import) and [name.name for name in node.names] == ["os"]
