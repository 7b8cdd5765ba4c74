"""Does once, in the process that `tests.kafka.forked` forks, what each fork would do again: two thirds of its start."""

from __future__ import annotations

import functools
import inspect
import tomllib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

from actors._faust.settings import sources

# Faust imports them by name, when an app is set up.
for name in (
    "actors._kafka.consume.group",
    "actors.sinks.extension",
    "actors.snapshots.extension",
    "faust.app.router",
    "faust.assignor.leader_assignor",
    "faust.fixups.django",
    "faust.tables.globaltable",
    "faust.tables.manager",
    "faust.tables.objects",
    "faust.tables.sets",
    "faust.web.apps.production_index",
    "faust.web.apps.router",
    "faust.web.apps.tables",
    "faust.web.drivers.aiohttp",
    "faust.windows",
):
    import_module(name)

# The file of this project says the same to each app.
cached = functools.cache(tomllib.loads)
cached((Path(__file__).parents[2] / "pyproject.toml").read_text())
sources.tomllib = SimpleNamespace(loads=cached)  # type: ignore[assignment]
# Faust asks it for the module of each blueprint: the first answer looks at the files of all modules.
inspect.getmodule(inspect.currentframe())
