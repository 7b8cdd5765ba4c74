"""Checks what ruff, mypy and import-linter don't: sizes, names and comments.

Functions, files and folders have a size that a reader can hold, module names say what is in the module, locals are
nouns, comments tell no history, and no file names a host to install from.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 600
MAX_MODULES = 12
"""In one folder of the product, without its rooms and its `__init__`."""
LARGER_FOLDERS: dict[str, int] = {}
"""The limits of folders that may hold more. A limit that isn't needed any more is a finding."""
MAX_PARTICIPLES = 755
"""How many locals of the product may still be named by one of `_PARTICIPLES`. This number only falls."""
_PARTICIPLES = frozenset(("found", "given", "held", "known", "made", "one"))
_PRODUCT = ("actors", "stores", "spark_replay")
_DOCUMENTED = (*_PRODUCT, "dev", "examples")
MAX_VAGUE_DOCSTRINGS = 0
"""How many docstrings of these may begin so instead of with a verb or a noun. This number only falls."""
_NO_BEGINNING = re.compile(r"(Who|What|Whether|See|Tells?|Gives?)\b")
_MODULE_NAME = re.compile(r"_?[a-z][a-z0-9]*(_[a-z0-9]+){0,2}")
_EMPTY_NAMES = frozenset(("common", "helper", "helpers", "misc", "stuff", "util", "utils"))
_HISTORY = re.compile(r"#.*\b(formerly|used to be|no longer|was changed|TODO|FIXME|XXX|issue #?\d+)\b", re.IGNORECASE)
_BANNER = re.compile(r"\s*# ?[-=#*]{3,}")
_SOURCES = re.compile(r"--(extra-)?index-url|<repository>")
_PINS = ("constraints.txt", "pyproject.toml")


def main() -> int:
    """Print every finding, and return 1 if there is one."""
    files = _files()
    findings = [
        *look_at_folders(files),
        *look_at_locals(path for path in files if path.suffix == ".py" and path.parts[0] in _PRODUCT),
        *look_at_docstrings(path for path in files if path.suffix == ".py" and path.parts[0] in _DOCUMENTED),
        *(finding for path in files for finding in _look_at(path)),
    ]
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


def look_at_folders(files: Iterable[Path]) -> Iterator[str]:
    """Yield what is wrong with the product's module names and with the sizes of its folders."""
    modules = [path for path in files if path.suffix == ".py" and path.parts[0] in _PRODUCT and path.stem[:2] != "__"]
    for path in modules:
        if not _MODULE_NAME.fullmatch(path.stem) or path.stem in _EMPTY_NAMES:
            yield f"{path}: name it after what is in it, in at most three words"
    sizes = Counter(path.parent.as_posix() for path in modules)
    for folder, size in sorted(sizes.items()):
        limit = LARGER_FOLDERS.get(folder, MAX_MODULES)
        if size > limit:
            yield f"{folder}: {size} modules, more than {limit}: give a concern of its own a room"
    for folder in LARGER_FOLDERS:
        if sizes[folder] <= MAX_MODULES:
            yield f"dev/tidy.py: {folder} has {sizes[folder]} modules: it needs no larger limit"


def look_at_locals(files: Iterable[Path]) -> Iterator[str]:
    """Yield a finding unless as many locals as `MAX_PARTICIPLES` are named by a participle instead of a noun."""
    problem = f"locals are named {', '.join(sorted(_PARTICIPLES))}"
    remedy = "name the new ones after the thing they hold"
    yield from _look_at_number(files, count_participles, "MAX_PARTICIPLES", MAX_PARTICIPLES, problem, remedy)


def count_participles(text: str) -> int:
    """Return how many times a source binds a local with such a name, in assignments, loops and comprehensions."""
    nodes = ast.walk(ast.parse(text))
    return sum(
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in _PARTICIPLES for node in nodes
    )


def look_at_docstrings(files: Iterable[Path]) -> Iterator[str]:
    """Yield a finding unless as many docstrings as `MAX_VAGUE_DOCSTRINGS` begin with a word of `_NO_BEGINNING`."""
    problem, remedy = "docstrings begin with Who, What, Whether, See, Tell or Give", "begin with a verb or a noun"
    limit = MAX_VAGUE_DOCSTRINGS
    yield from _look_at_number(files, count_vague_docstrings, "MAX_VAGUE_DOCSTRINGS", limit, problem, remedy)


def _look_at_number(
    files: Iterable[Path], count: Callable[[str], int], name: str, limit: int, problem: str, remedy: str
) -> Iterator[str]:
    """Yield a finding unless `count` of all sources is `limit`, the number in `name`, which only falls."""
    counts = Counter({path.as_posix(): count(path.read_text()) for path in files})
    total = counts.total()
    if total > limit:
        most = ", ".join(f"{path} {number}" for path, number in counts.most_common(3))
        yield f"{total} {problem}, more than {limit}: {remedy} (most are in {most})"
    if total < limit:
        yield f"dev/tidy.py: {name} falls to {total}: write that number"


def count_vague_docstrings(text: str) -> int:
    """Return how many docstrings of a source begin with such a word, those of attributes included."""
    nodes = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
    values = (node.value for node in nodes if isinstance(node, ast.Constant))
    return sum(isinstance(value, str) and _NO_BEGINNING.match(value) is not None for value in values)


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
        if path.suffix == ".py" and path.parts[0] in _PRODUCT and _BANNER.match(line):
            yield f"{path}:{number}: a banner marks a class or a module that should be two"
    if path.suffix == ".py":
        yield from _look_at_code(path, text)


def _look_at_code(path: Path, text: str) -> Iterator[str]:
    lines = text.count("\n")
    if lines > MAX_FILE_LINES:
        yield f"{path}: {lines} lines, more than {MAX_FILE_LINES}: give it a second file"
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"{path}:{node.lineno}: {node.name} has {length} lines, more than {MAX_FUNCTION_LINES}"
        if isinstance(node, ast.ExceptHandler) and path.parts[0] == "actors" and _is_broad(node):
            for line in _texts_of(node):
                yield f"{path}:{line}: the text of an error of any type may raise: actors._core.logs.text_of makes it"
        if isinstance(node, ast.Assert) and path.parts[0] in _PRODUCT:
            yield f"{path}:{node.lineno}: a bare assert disappears under python -O: raise"


def _is_broad(handler: ast.ExceptHandler) -> bool:
    return isinstance(handler.type, ast.Name) and handler.type.id in ("Exception", "BaseException")


def _texts_of(handler: ast.ExceptHandler) -> Iterator[int]:
    """Yield the lines of a handler that make a text of what it caught."""
    for node in ast.walk(handler):
        if not isinstance(node, ast.expr):
            continue
        values = [node.value] if isinstance(node, ast.FormattedValue) else []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "repr", "format"):
            values = node.args
        for value in values:
            parts = value.values if isinstance(value, ast.BoolOp) else [value]
            if any(isinstance(part, ast.Name) and part.id == handler.name for part in parts):
                yield node.lineno


if __name__ == "__main__":
    sys.exit(main())
