"""The one place where a worker finds what runs beside the engine, such as its web server."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from actors._faust.setup import Setup
from actors._kafka.admin.control import ControlPlane
from actors._kafka.admin.owners import KafkaOwners
from actors.errors import ConfigurationError
from actors.runtime.replicas.standbys import Standbys
from actors.runtime.spec import ActorSpec
from actors.runtime.worker import Worker

GROUP = "faust_actors.extensions"
ALL = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingWorker:
    """The parts of a worker that is about to join its group. `App.worker_status` has what most extensions need."""

    setup: Setup
    specs: Sequence[ActorSpec]
    worker: Worker
    standbys: Standbys
    control: ControlPlane
    owners: KafkaOwners


class WorkerExtension:
    """Something that runs in a worker beside its actors; subclass it, and override the moments that are needed.

    An entry point of the group `faust_actors.extensions` names the class, or the setting `extensions` does as
    `module:Class`. It is called as `Class(app, settings)` when an app is made, in commands and scripts too.
    """

    app: Any

    def __init__(self, app: Any, settings: dict[str, Any]) -> None:
        """Note the app, of which only `actor_options` is set. `settings` are Faust's own, and may be changed."""
        self.app = app

    @property
    def reads(self) -> Mapping[str, str]:
        """By consumer group, the topics that it reads itself: a worker of an app without actors runs it then too."""
        return {}

    @property
    def stopped(self) -> Sequence[Mapping[str, str | int | None]]:
        """The rows of what stands still now, beside those of actors in `/health`; no keys, values or addresses."""
        return ()

    def check(self, setup: Setup) -> None:
        """Refuse settings that can't work, before the worker connects to the brokers.

        Raises:
            ConfigurationError: naming them.
        """

    def serve(self, web: Any) -> None:
        """Add routes to `web.web_app`, Faust's web server, before it starts. It is called ahead of `check`."""

    async def start(self, worker: StartingWorker) -> None:
        """Begin; the worker joins its group when this returns. An error ends the worker."""

    async def stop(self) -> None:
        """End, before the worker commits and leaves its group. It has 0.5 s; an error is logged."""


def make_extensions(app: Any, names: Sequence[str], settings: dict[str, Any]) -> Mapping[str, WorkerExtension]:
    """Return the extensions of an app by name.

    Args:
        app: the app, not yet initialised by Faust.
        names: names of installed extensions, `*` for all of these, and `module:Class` for others.
        settings: Faust's settings for the app, which extensions may change.

    Raises:
        ConfigurationError: a name is unknown, or an extension can't be imported.
    """
    points = _installed()
    if not points:
        raise ConfigurationError(
            "the installation of faust-actors names no extensions, not even its own web server: install it again "
            "(pip install faust-actors; in a checkout, pip install -e .)"
        )
    chosen: dict[str, EntryPoint] = {}
    for name in names:
        if name == ALL:
            chosen |= points
        elif name in points:
            chosen[name] = points[name]
        elif ":" in name:
            chosen[name] = EntryPoint(name, name, GROUP)
        else:
            raise ConfigurationError(
                f"extensions={list(names)}: there is no extension {name!r}. Installed are {', '.join(sorted(points))}; "
                "write another one as 'module:Class'"
            )
    return {name: _factory(point)(app, settings) for name, point in chosen.items()}


@functools.cache
def _installed() -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _factory(point: EntryPoint) -> Callable[[Any, dict[str, Any]], WorkerExtension]:
    try:
        factory: Callable[[Any, dict[str, Any]], WorkerExtension] = point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"extension {point.name} ({point.value}) can't be imported: {error}") from error
    return factory
