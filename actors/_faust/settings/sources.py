"""Reads settings from the environment and from `pyproject.toml`.

The environment goes before `pyproject.toml`, and this before the arguments of `App`: as with Faust's own variables,
what is nearer to the start of the process counts. The program says what it was written for, the file what the project
runs it with, a variable what one process is started with.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import Field, dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

from faust.types.settings import params

from actors._core.logs import text_of
from actors._faust.settings.values import LISTS, OWN, Read, of_faust, path
from actors.declare.arguments import check_span, say_unknown
from actors.declare.options import FAUST_DEFAULTS, SECRETS, ActorOptions
from actors.errors import ConfigurationError
from stores._core.printable import one_line

PREFIX = "FAUST_ACTORS_"
FILE = "pyproject.toml"
TABLE = "[tool.faust-actors]"
ARGUMENT = "App(…)"
OBJECT = "app.config_from_object(…)"
"""Settings that a file may have in their place: `query_tokens_file`."""
HIDDEN = (*SECRETS, "broker_credentials")
"""Settings whose values are shown nowhere."""
OWN_VARIABLES = (*(one.name for one in fields(ActorOptions) if one.metadata.get("has_variable")), *SECRETS)
"""Settings that have a variable without `PREFIX` too, as those of Faust's do."""
_FAUST_APP = ("monitor", "config_source", "loop", "beacon")
"""Arguments of `faust.App` that are no settings."""
_OLD_FAUST_NAMES = (
    "client_id",
    "commit_interval",
    "create_reply_topic",
    "num_standby_replicas",
    "default_partitions",
    "replication_factor",
)
_SERVICE = re.compile(r"SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?")
"""Variables that Kubernetes sets where a service is called `faust-actors`."""
SHOWN_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class Known:
    """A setting that may be given by text.

    Attributes:
        name: the argument of `App`.
        read: how its value is read.
        variable: the variable of Faust's that sets it too; empty if there is none.
    """

    name: str
    read: Read
    variable: str = ""


def known_settings(faust_settings: Mapping[str, Any]) -> dict[str, Known]:
    """Return the settings by their key in `pyproject.toml`; `faust_settings` are Faust's parameters by name."""
    found = {
        name: Known(name, of_faust(param), param.env_name or "")
        for name, param in faust_settings.items()
        if param.active and not param.deprecated
    }
    for option in fields(ActorOptions):
        found[option.name] = Known(option.name, OWN[str(option.type)].read)
    for name in SECRETS:
        found[f"{name}_file"] = Known(name, path)
    return found


def read_settings(
    given: Mapping[str, Any],
    faust_settings: Mapping[str, Any],
    *,
    environment: Mapping[str, str] = os.environ,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arguments of `App` with what environment and `pyproject.toml` say, and where each comes from.

    Args:
        given: the arguments of `App`.
        faust_settings: Faust's parameters by name.
        environment: the variables of the process.

    Raises:
        ConfigurationError: a setting is unknown or has a value that can't be used. The text has the place.
    """
    known = known_settings(faust_settings)
    found, origins = dict(given), dict.fromkeys(given, ARGUMENT)

    def take(settings: Iterator[tuple[str, str, Any]]) -> None:
        seen: dict[str, str] = {}
        for place, key, value in settings:
            name = known[key].name
            if name in seen:
                raise ConfigurationError(f"{seen[name]} and {place} are the same setting: leave one out")
            seen[name] = place
            found[name], origins[name] = _value(known[key], key, value, place), place

    take(_in_file(known))
    start = environment_prefix(found, environment)
    take(_in_environment(known, environment, start))
    _refuse_twice(known, origins, environment, start)
    return found, origins


def environment_prefix(given: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """Return the prefix of this app's variables, by Faust's `env_prefix`."""
    prefix = environment.get("APP_ENV_PREFIX", given.get("env_prefix")) or ""
    return f"{str(prefix).rstrip('_')}_" if prefix else ""


def _in_file(known: Mapping[str, Known]) -> Iterator[tuple[str, str, Any]]:
    file = Path(FILE)
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{file.absolute()} can't be read, so its settings are unknown: {error}") from error
    tools = content.get("tool")
    table = tools.get("faust-actors", {}) if isinstance(tools, dict) else {}
    place = f"{file.absolute()} {TABLE}"
    if not isinstance(table, dict):
        raise ConfigurationError(f"{place} has to be a table of settings")
    unknown = sorted(table.keys() - known.keys())
    if unknown:
        raise ConfigurationError(f"{place}: {say_unknown('setting', unknown, known)}")
    for name in SECRETS:
        if name in table:
            raise ConfigurationError(
                f"{place}: {name} is a secret, which doesn't belong in a project's file: name a file that holds it "
                f"with {name}_file, or set {name.upper()} in the environment"
            )
    for name, value in table.items():
        yield place, name, value


def _in_environment(
    known: Mapping[str, Known], environment: Mapping[str, str], start: str
) -> Iterator[tuple[str, str, Any]]:
    keys = {f"{start}{PREFIX}{key.upper()}": key for key in known}
    for variable, value in sorted(environment.items()):
        if not variable.startswith(start + PREFIX) or not value:
            continue
        if variable in keys:
            yield f"{variable} in the environment", keys[variable], value
        elif not _SERVICE.fullmatch(variable.removeprefix(start + PREFIX)):
            raise ConfigurationError(f"environment: {say_unknown('setting', [variable], keys)}")
    for name in OWN_VARIABLES:
        # An empty secret is refused where it is read: it must not leave the worker open.
        of_file = [f"{name}_file"] if name in SECRETS else []
        for key in [*of_file, name]:
            variable = f"{start}{key.upper()}"
            if environment.get(variable) or (of_file and variable in environment):
                yield f"{variable} in the environment", key, environment[variable]
                break


def _refuse_twice(
    known: Mapping[str, Known], origins: Mapping[str, str], environment: Mapping[str, str], start: str
) -> None:
    """Refuse a setting that two variables set: Faust's own would go before ours."""
    for one in known.values():
        place = origins.get(one.name, "")
        if one.variable and place.endswith("in the environment") and (start + one.variable) in environment:
            raise ConfigurationError(
                f"{place} and {start}{one.variable} in the environment are the same setting: leave one out"
            )


def _value(known: Known, key: str, given: Any, place: str) -> Any:
    try:
        return known.read(given)
    except ValueError as error:
        shown = "…" if known.name in HIDDEN and known.name == key else one_line(repr(given), SHOWN_CHARACTERS)
        raise ConfigurationError(f"{place}: {key}={shown} can't be used: {error}") from error


def split_options(
    given: Mapping[str, Any], faust_names: Collection[str], origins: Mapping[str, str] | None = None
) -> tuple[ActorOptions, dict[str, Any]]:
    """Take ours out of the keyword arguments of `App`, and return what is left for Faust with our defaults.

    `origins` has where settings come from that aren't arguments.

    Raises:
        ConfigurationError: one of them is unknown, or isn't what it has to be.
    """
    ours = {one.name: one for one in fields(ActorOptions)}
    known = {*ours, *faust_names, *_FAUST_APP, *_OLD_FAUST_NAMES}
    unknown = sorted(given.keys() - known)
    if unknown:
        raise ConfigurationError(f"{ARGUMENT}: {say_unknown('setting', unknown, known)}")
    for name in ours.keys() & given.keys():
        _check((origins or {}).get(name, ARGUMENT), ours[name], given[name])
    options = ActorOptions(**{name: value for name, value in given.items() if name in ours})
    return options, {**FAUST_DEFAULTS, **{name: value for name, value in given.items() if name not in ours}}


def _check(place: str, option: Field[Any], value: Any) -> None:
    """Refuse a value of another type, or one that is none of the choices, or too small.

    Raises:
        ConfigurationError: naming it.
    """
    name, kind, least = option.name, OWN[str(option.type)], int(option.metadata.get("is_positive", False))
    if timedelta in kind.types:
        check_span(place, name, value, may_be_zero=not least)
        return
    wrong = ""
    if (
        not isinstance(value, kind.types)
        or (isinstance(value, bool) and bool not in kind.types)
        or (isinstance(value, LISTS) and not all(isinstance(part, str) for part in value))
    ):
        wrong = f"write {kind.words}"
    elif value not in (choices := option.metadata.get("choices", (value,))):
        wrong = f"write {' or '.join(map(str, filter(None, choices)))}"
    elif isinstance(value, int) and value < least and bool not in kind.types:
        wrong = f"it has to be {least} or more"
    if wrong:
        shown = "…" if name in SECRETS else repr(value)
        raise ConfigurationError(f"{place}: {name}={shown} can't be used: {wrong}")


def unusable(
    faust_settings: Mapping[str, Any],
    *,
    given: Mapping[str, Any],
    origins: Mapping[str, str],
    getenv: Callable[[str], Any],
) -> ConfigurationError | None:
    """Return the setting of Faust's with a value that Faust doesn't take, None if each is fine by itself.

    Args:
        faust_settings: Faust's parameters by name.
        given: the arguments that Faust was given.
        origins: where these come from.
        getenv: returns a variable of the app by the name that a parameter has for it.
    """
    for name, param in faust_settings.items():
        variable = param.env_name
        told = None if variable is None else getenv(variable)
        value = told if told is not None else given.get(name)
        if value is None or (isinstance(param, params.Path) and isinstance(value, str | os.PathLike)):
            # A path is relative to others, and any text is one.
            continue
        try:
            param.prepare_set(None, value)
        except Exception as error:
            place = f"{variable} in the environment" if told is not None else origins.get(name, ARGUMENT)
            shown = "…" if name in HIDDEN else one_line(repr(value), SHOWN_CHARACTERS)
            return ConfigurationError(
                f"{place}: {name}={shown} can't be used: {_remedy(param, value) or text_of(error)}"
            )
    return None


def _remedy(param: Any, value: Any) -> str:
    """Return the values that may be written instead; empty if only Faust knows why the value isn't fit."""
    try:
        of_faust(param)(value)
    except ValueError as error:
        return str(error)
    return ""
