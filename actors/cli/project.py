"""Finds the app of a folder, for commands without `-A`."""

from __future__ import annotations

import re
from pathlib import Path

import click
from faust.cli.base import State

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
