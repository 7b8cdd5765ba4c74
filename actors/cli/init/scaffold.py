"""Makes a project from the templates in `templates`.

`project` has the files of every project. Each other folder is a template: an app, its tests, and `template.toml` with
what the files of `project` say about it. A word between two `@` is replaced.
"""

from __future__ import annotations

import keyword
import re
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from importlib.machinery import PathFinder
from importlib.metadata import version
from pathlib import Path

from actors.errors import ActorsError

TEMPLATES = ("run-once", "join", "window", "locks", "jobs")
MAX_NAME_CHARACTERS = 50
"""The name begins those of topics, which Kafka limits to 249."""

_FOLDER = Path(__file__).with_name("templates")
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_WORD = re.compile(r"@(\w+)@")


class ProjectError(ActorsError):
    """A project can't be made: its name or its folder can't be used."""


def make_project(parent: Path, name: str, template: str) -> Path:
    """Make a project in the folder `name` below `parent`, and return the folder: complete, or not at all.

    Args:
        parent: an existing folder.
        name: of folder, project and app. The module's name has `_` in place of `-`.
        template: one of `TEMPLATES`.

    Raises:
        ProjectError: the name can't be used, or the folder exists and isn't empty.
        OSError: the folder can't be written.
    """
    module = _module_of(name)
    target = parent / name
    if target.is_symlink() or (target.exists() and not (target.is_dir() and not any(target.iterdir()))):
        raise ProjectError(f"{target} exists and isn't an empty folder: choose another name, or move it away")
    _refuse_hiding(name, module)
    files = _files(name, module, template)
    with tempfile.TemporaryDirectory(dir=parent, prefix=f".{name}-") as folder:
        draft = Path(folder) / name
        for place, text in files.items():
            file = draft / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        draft.rename(target)
    return target


def _module_of(name: str) -> str:
    module = name.replace("-", "_")
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME_CHARACTERS or keyword.iskeyword(module):
        raise ProjectError(
            f"{name!r} can't be a project's name: use lower-case letters, digits and single '-' or '_' between them, "
            f"a letter first, at most {MAX_NAME_CHARACTERS} characters, no word of Python: such as shop-carts"
        )
    return module


def _refuse_hiding(name: str, module: str) -> None:
    """Refuse a module that others would import in place of the one that they mean."""
    for taken in (module, f"test_{module}"):
        spec = None if taken in sys.stdlib_module_names else PathFinder.find_spec(taken)
        # A folder without modules is found too: it has no origin.
        if taken in sys.stdlib_module_names or (spec is not None and spec.origin is not None):
            raise ProjectError(
                f"{name!r} can't be a project's name: {taken}.py would hide the module {taken} that this Python has: "
                f"choose another one, such as {name}-app"
            )


def _files(name: str, module: str, template: str) -> dict[str, str]:
    """Return the texts of all files by their place in the project."""
    about = tomllib.loads((_FOLDER / template / "template.toml").read_text(encoding="utf-8"))
    installed = version("faust-actors")
    words = {
        "name": name,
        "module": module,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "requirement": f"faust-actors>={installed},<{int(installed.partition('.')[0]) + 1}",
        "does": about["does"],
        "topics": " ".join(f"{name}-{topic}" for topic in about["topics"]),
    }
    words["send"] = "\n".join(f"    faust -A {module} send {_filled(line, words)}" for line in about["send"])
    sources = {
        f"{module}.py": f"{template}/app.py.in",
        f"test_{module}.py": f"{template}/test_app.py.in",
        "pyproject.toml": "project/pyproject.toml.in",
        "README.md": "project/README.md.in",
        "Dockerfile": "project/Dockerfile.in",
        "compose.yaml": "project/compose.yaml.in",
        ".dockerignore": "project/dockerignore.in",
        ".gitignore": "project/gitignore.in",
        ".github/workflows/test.yml": "project/test.yml.in",
    }
    return {place: _filled((_FOLDER / source).read_text(encoding="utf-8"), words) for place, source in sources.items()}


def _filled(text: str, words: Mapping[str, str]) -> str:
    return _WORD.sub(lambda found: words[found[1]], text)
