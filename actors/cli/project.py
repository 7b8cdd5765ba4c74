"""Finds the app of a folder, for commands without `-A`, and imports it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click
from faust.cli.base import State, find_app

from actors.errors import place_of
from stores._core.printable import printable

# Not by parsing: a module with a syntax error is the folder's app all the same.
_MAKES_APP = re.compile(r"^app\s*(:[^=\n]+)?=\s*[\w.]*App\(", re.MULTILINE)


def name_app(context: click.Context) -> str:
    """Return the app's name as `-A` takes it, and note it for Faust's commands: as given, or the folder's only app.

    Empty where a program runs the commands of its own app (`app.main()`).

    Raises:
        click.UsageError: none is given, and the folder hasn't exactly one.
    """
    state = context.ensure_object(State)
    if getattr(context.find_root(), "app", None) is not None:
        return ""
    if not state.app:
        state.app = find_app_module(Path.cwd())
    return str(state.app)


def find_app_module(folder: Path) -> str:
    """Return the name of the folder's only module that makes an app: `app = App(…)`.

    Raises:
        click.UsageError: there is none, or several.
    """
    found = [
        path.stem
        for path in sorted(folder.glob("*.py"))
        if path.stem.isidentifier() and _MAKES_APP.search(path.read_text(encoding="utf-8", errors="replace"))
    ]
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} modules of {folder} make an app ({', '.join(found)})" if found else f"no app in {folder}"
    raise click.UsageError(f"{what}: name the app's module with -A, as in `faust -A shop …`")


def load_app(name: str, **options: Any) -> Any:
    """Return the app that `-A` names; takes Faust's place of `find_app`.

    Raises:
        click.ClickException: it can't be imported. The line names the last of the user's own files that led to the
            error; with `--debug` the error itself is raised.
    """
    try:
        return find_app(name, **options)
    except click.ClickException:
        raise
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        raise click.ClickException(printable(_why(name, error))) from error


def _why(name: str, error: Exception) -> str:
    said = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    place = place_of(error)
    if place:
        return f"{place}{said} (while -A {name} was imported; --debug shows the traceback)"
    return (
        f"-A {name}: {said}. Name the app's module as in `import`, seen from {Path.cwd()}, and its variable unless "
        "that is `app`: -A shop, -A shop.main:my_app"
    )
