"""The user's app, found by its module's name: this package doesn't know what an app is made of.

An app is whatever has `stores` and `actors`, mappings by name, and `decoder(store)` (see `spark_replay.fold.decoding`).
`Replayer.of(app, actor)` in `actors.replay.replay`, which is imported by its name too, returns an object with

    actor, topics, group    names; several topics are inputs in the order of their declaration
    changelogs, others      by store, the changelog: of what follows from the input, of what also follows from time
    follows_time            whether something happens to its state without a message
    timed                   the topics whose values have their time in a field
    event_times(count)      the function that gives a record's time, called as (place of the input, record)
    topics_of(metadata)     of the topics that the commit of an offset was about: `input_id`, `changelog_id(store)`, and
                            `is_recreated`, `since`: the first epoch of the input if that replaced another topic
    run(partition, records, *, partition_count, starts, kept, until_ms, stores, topic_ids, metadata)
                            the replay, as `Replayer.run` describes it
"""

from __future__ import annotations

import importlib
from typing import Any

from spark_replay.errors import AppError
from spark_replay.session import first_line

REPLAYS = "actors.replay.replay"
HERE = "here: is its folder on PYTHONPATH?"
THERE = "where Spark runs it: hand it over with --py-files, or install it on the executors and set PYTHONPATH there"


def load_replayer(module: str, actor: str | None, *, where: str = HERE) -> Any:
    """Return a function that replays an actor's input.

    Args:
        module: `package.module`, or `package.module:name_of_the_app`.
        actor: its name; may be left out if the app has one only.
        where: for the error, where the module was looked for, and what to do.

    Raises:
        AppError: There is no such module, app or actor; the text lists those that exist.
    """
    app = load_app(module, where=where)
    names = sorted(app.actors)
    if actor is None:
        if len(names) != 1:
            raise AppError(f"app {module} has the actors {', '.join(names) or '(none)'}: choose one with --actor")
        actor = names[0]
    if actor not in names:
        raise AppError(f"app {module} has no actor {actor!r}, it has {', '.join(names) or 'none'}")
    return importlib.import_module(REPLAYS).Replayer.of(app, actor)


def load_app(module: str, *, where: str = HERE) -> Any:
    """Import an app; else as `load_replayer`.

    Raises:
        AppError: There is no such module or app; the text lists those that exist.
    """
    name, _, attribute = module.partition(":")
    loaded = _imported(name, where)
    if attribute:
        app = getattr(loaded, attribute, None)
        if not _is_app(app):
            raise AppError(f"{module}: there is no app of this name in the module")
        return app
    if _is_app(getattr(loaded, "app", None)):
        return loaded.app
    apps = {key: value for key, value in vars(loaded).items() if _is_app(value)}
    if len({id(app) for app in apps.values()}) != 1:
        names = f"the apps {', '.join(sorted(apps))}" if apps else "no app"
        raise AppError(f"module {name!r} has {names}: name the app as in --app {name}:app")
    return next(iter(apps.values()))


def load_function(name: str) -> Any:
    """Import a function, `module:function`; `AppError` if there is none."""
    module, _, attribute = name.partition(":")
    function = getattr(_imported(module, HERE), attribute, None)
    if not callable(function):
        raise AppError(f"{name}: there is no such function, give module:function")
    return function


def _imported(name: str, where: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise AppError(f"module {name!r} can't be imported ({first_line(error)}) {where}") from error
    except Exception as error:
        said = f"{type(error).__name__}: {first_line(error)}"
        raise AppError(f"module {name!r} raised {said} while it was imported {where}") from error


def _is_app(value: Any) -> bool:
    return callable(getattr(value, "decoder", None)) and hasattr(value, "actors")
