"""`faust -A APP settings`: what each setting is, and where that comes from."""

from __future__ import annotations

import json
from typing import Any

import click
from click.core import ParameterSource

from actors._faust.settings.shown import shown_settings
from actors.cli.session import Session, with_session

_COLUMNS = ("setting", "value", "from")


@click.command("settings")
@click.pass_context
def settings(context: click.Context) -> None:
    """List the app's settings, first those that aren't the defaults, each with its value and where it comes from.

    The command line goes before the environment, the environment before `pyproject.toml`, and this before the
    arguments of `App`. Secrets are shown as `***`.
    """
    root = context.find_root()
    is_given = root.get_parameter_source("datadir") not in (None, ParameterSource.DEFAULT)
    context.invoke(_list, datadir_option=is_given)


@with_session
def _list(session: Session, *, datadir_option: bool) -> None:
    rows = shown_settings(session.app, datadir_option=datadir_option)
    if session.as_json:
        session.say_json([{"setting": row.name, "value": row.value, "from": row.source} for row in rows])
        return
    session.say_table(
        f"Settings of {session.app.conf.id}", _COLUMNS, ([row.name, _text(row.value), row.source] for row in rows)
    )


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
