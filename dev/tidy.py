"""Keeps the house in order: what ruff, mypy and import-linter don't look at.

Files and functions have a size that a reader can hold, comments don't tell history, and no file names a host to
install from.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 600
_HISTORY = re.compile(r"#.*\b(formerly|used to be|no longer|was changed|TODO|FIXME|XXX|issue #?\d+)\b", re.IGNORECASE)
_SOURCES = re.compile(r"--(extra-)?index-url|<repository>")
_PINS = ("constraints.txt", "pyproject.toml")
_BARE_ASSERT = ("actors", "stores", "spark_replay")


def main() -> int:
    """Print every finding, and give 1 if there is one."""
    findings = [finding for path in _files() for finding in _look_at(path)]
    for finding in findings:
        print(finding)
    return 1 if findings else 0


def _files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\n")
    return [Path(name) for name in listed if name and Path(name).is_file()]


def _look_at(path: Path) -> Iterator[str]:
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        return
    for number, line in enumerate(text.splitlines(), 1):
        if path != Path("dev/tidy.py") and (_SOURCES.search(line) or (path.name in _PINS and "://" in line)):
            yield f"{path}:{number}: names where packages are fetched from: that is the machine's to say"
        if path.suffix == ".py" and path != Path("dev/tidy.py") and _HISTORY.search(line):
            yield f"{path}:{number}: a comment that tells history or puts off work"
    if path.suffix == ".py":
        yield from _look_at_code(path, text)


def _look_at_code(path: Path, text: str) -> Iterator[str]:
    lines = text.count("\n")
    if lines > MAX_FILE_LINES:
        yield f"{path}: {lines} lines, more than {MAX_FILE_LINES}: give it a second file"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"{path}:{node.lineno}: {node.name} has {length} lines, more than {MAX_FUNCTION_LINES}"
        if isinstance(node, ast.Assert) and path.parts[0] in _BARE_ASSERT:
            yield f"{path}:{node.lineno}: a bare assert disappears under python -O: raise"


if __name__ == "__main__":
    sys.exit(main())
