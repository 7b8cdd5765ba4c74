"""`faust -A APP settings`: what each setting is, and where that comes from; secrets aren't shown."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from yarl import URL

from actors._faust.settings.sources import HIDDEN, environment_prefix
from actors._faust.settings.values import span_text
from actors.cli.session import Session, with_session
from actors.declare.options import ActorOptions

_COLUMNS = ("setting", "value", "from")
DEFAULT = "default"
HIDDEN_TEXT = "***"
NOT_FAUSTS = {"topic_replication_factor": None, "table_standby_replicas": 0}
"""Where Faust's default isn't used; None is what the broker says."""
OF_THE_PROCESS = ("origin", "reply_to")
"""Settings that each start makes up."""


@click.command("settings")
@with_session
def settings(session: Session) -> None:
    """List the app's settings, first those that aren't the defaults, each with its value and where it comes from.

    The command line goes before the environment, the environment before `pyproject.toml`, and this before the
    arguments of `App`. Secrets are shown as `***`.
    """
    root = click.get_current_context().find_root()
    is_given = root.get_parameter_source("datadir") not in (None, ParameterSource.DEFAULT)
    rows = shown_settings(session.app, datadir_option=is_given)
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


@dataclass(frozen=True, slots=True)
class Shown:
    """A setting.

    Attributes:
        name: the argument of `App`.
        value: what JSON can say: a text, a number, true or false, a list, a table, None where it isn't set.
        source: where the value comes from, as "default" or "SHOP_WEB_PORT in the environment".
    """

    name: str
    value: Any
    source: str


def shown_settings(app: Any, *, datadir_option: bool = False) -> list[Shown]:
    """Return the settings of an app by name, first those that are set.

    Args:
        app: an `App`.
        datadir_option: whether the command line says where the data folder is.
    """
    fresh = app._load_settings()
    names = (option.name for option in fields(ActorOptions))
    rows = [_shown(name, getattr(app.actor_options, name), app.setting_origins.get(name, DEFAULT)) for name in names]
    rows += [
        _fausts(app, fresh, name, param)
        for name, param in app.Settings.SETTINGS.items()
        if param.active and not param.deprecated
    ]
    if datadir_option:
        rows = [Shown(row.name, row.value, "-D") if row.name == "datadir" else row for row in rows]
    return sorted(rows, key=lambda row: (row.source == DEFAULT, row.name.lower()))


def _fausts(app: Any, fresh: Any, name: str, param: Any) -> Shown:
    value, source = getattr(app.conf, name), app.setting_origins.get(name, DEFAULT)
    if param.env_name is not None and app.conf.getenv(param.env_name) is not None:
        source = f"{environment_prefix(app._default_options[1], os.environ)}{param.env_name} in the environment"
    if getattr(fresh, name) != value and name not in OF_THE_PROCESS:
        source = f"app.conf.{name} = …"
    if source == DEFAULT:
        value = NOT_FAUSTS.get(name, value)
    return _shown(name, value, source)


def _shown(name: str, value: Any, source: str) -> Shown:
    is_hidden = name in HIDDEN and not (value is None or isinstance(value, Path))
    return Shown(name, HIDDEN_TEXT if is_hidden else shown_value(value), source)


def shown_value(value: Any) -> Any:
    """Return a value as JSON can say it; of objects the name of their class, of a URL no password."""
    match value:
        case None | bool() | int() | float() | str():
            return _without_password(value) if isinstance(value, str) and "://" in value else value
        case timedelta():
            return span_text(value)
        case Enum():
            return value.value
        case URL():
            return _without_password(str(value))
        case Path():
            return str(value)
        case Mapping():
            return {str(key): one if isinstance(one, str) else type(one).__name__ for key, one in value.items()}
        case list() | tuple() | set() | frozenset():
            return [shown_value(one) for one in value]
        case type():
            return f"{value.__module__}:{value.__qualname__}"
        case _:
            return type(value).__name__


def _without_password(url: str) -> str:
    try:
        parsed = URL(url)
        return url if parsed.password is None else str(parsed.with_password(HIDDEN_TEXT))
    except ValueError:
        return HIDDEN_TEXT
