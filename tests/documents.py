"""The `curl` commands that documents show, and how tests run them: as they stand there, at another port."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = "localhost:6066"
EVERY_S = 20.0

_SHOWN = re.compile(r"^\$ (?P<line>curl .*)(?:\n(?P<answer>[\[{].*))?$|`(?P<inline>curl [^`\n]*)`", re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """A command, and what the document says that it answers; None where it doesn't say."""

    text: str
    answer: Any = None


def commands_in(text: str) -> list[Command]:
    """Give the commands: lines of a console that begin with `$`, with the line below, and those between backticks."""
    found = []
    for match in _SHOWN.finditer(text):
        answer = match["answer"]
        found.append(Command(match["line"] or match["inline"], None if answer is None else json.loads(answer)))
    return found


def commands_of(document: str) -> list[Command]:
    """Give the commands of a document, by its path in the repository; there is at least one."""
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
    """Whether all that is shown was said, and more perhaps."""
    if isinstance(shown, dict):
        return isinstance(said, dict) and all(name in said and shows(said[name], part) for name, part in shown.items())
    if isinstance(shown, list):
        return len(said) == len(shown) and all(map(shows, said, shown))
    return bool(said == shown)
