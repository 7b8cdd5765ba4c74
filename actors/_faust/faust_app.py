"""`FaustApp`: how an app with actors differs from Faust's own in its start, web server, topics and settings."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import click
import faust
from click.core import ParameterSource
from faust.app.base import BootStrategy
from faust.exceptions import ImproperlyConfigured
from faust.types import ProcessingGuarantee
from mode import Service

from actors._core.partitioner import MURMUR2, Partitioner, partitioner_of
from actors._faust.extensions import make_extensions
from actors._faust.service import ActorService
from actors._faust.settings.secrets import Secrets
from actors._faust.settings.sources import ARGUMENT, OBJECT, environment_prefix, read_settings, split_options, unusable
from actors._faust.startup.refusal import refuse
from actors._faust.startup.running import running
from actors._kafka.client import own
from actors._kafka.consume.silence import Silence
from actors._kafka.outage import Outages
from actors.declare.arguments import say_unknown
from actors.declare.names import check_apart
from actors.declare.options import milliseconds
from actors.declare.topic import ActorChannel
from actors.declare.values.codecs import Codec, declared_type
from actors.declare.values.schemas import ActorSchema
from actors.declare.values.shapes import ValueType
from actors.errors import ConfigurationError
from actors.runtime.clock import SystemClock
from actors.runtime.handlers.callables import check_callable
from actors.runtime.observe.status import BrokersStatus, WorkerStatus, measured
from stores._files import make_folder

if TYPE_CHECKING:
    from actors._faust.views import View
    from actors.declare.definition import ActorDefinition
    from actors.runtime.message.store import Store


def _partitioner(topics: Sequence[str], declared: Any) -> Partitioner | None:
    try:
        return None if declared is None else partitioner_of(declared)
    except ValueError as error:
        raise ConfigurationError(f"app.topic({', '.join(map(repr, topics))}): {error}") from error


def _take_formats(topics: Sequence[str], formats: Mapping[str, Any], options: dict[str, Any]) -> None:
    """Put the formats of a topic in the place of its serializers.

    Raises:
        ConfigurationError: something else says how keys or values become bytes, or the topic isn't a single one.
    """
    what = f"app.topic({', '.join(map(repr, topics))})"
    for part, format_ in formats.items():
        if format_ is None:
            continue
        option = "format" if part == "value" else "key_format"
        options[f"{part}_type"] = declared_type(what, options.get(f"{part}_type"), format_, option)
        others = [name for name in (f"{part}_serializer", "schema") if options.get(name) is not None]
        if others:
            raise ConfigurationError(f"{what}: {option}= takes the place of {others[0]}=: leave one of the two out")
        if len(topics) != 1:
            raise ConfigurationError(f"{what}: {option}= is for a topic with one name: declare each by itself")
        options[f"{part}_serializer"] = format_


def _timestamp(topics: Sequence[str], declared: Any) -> Callable[[Any], Any] | None:
    if declared is None:
        return None
    what = f"app.topic({', '.join(map(repr, topics))}): timestamp="
    check_callable(declared, what, takes=1, line="def timestamp(value: Value) -> int")
    if any(map(inspect.iscoroutinefunction, (declared, getattr(declared, "__call__", declared)))):  # noqa: B004
        raise ConfigurationError(f"{what} is async: make it a plain function")
    found: Callable[[Any], Any] = declared
    return found


def _brokers(outages: Outages, silence: Silence | None) -> BrokersStatus:
    return BrokersStatus(
        unreachable=outages.unreachable,
        group_silent_s=0.0 if silence is None else silence.group_s,
        throttled_s=outages.throttled_s,
    )


class Boot(BootStrategy):  # type: ignore[misc]
    """Starts Faust's consumer only when something of Faust's consumes, and our service last."""

    def _should_enable_kafka_consumer(self) -> bool:
        return bool(self.app.agents or self.app.tables)

    def server(self) -> Sequence[Service]:
        """Return the services of a worker in the order of their start."""
        services = list(super().server())
        if self.app.has_service:
            services.append(self.app.actor_service)
        return services


class FaustApp(faust.App):  # type: ignore[misc]
    """A Faust app that runs what is declared in `actors`, `stores` and `views`; `App` declares it."""

    BootStrategy = Boot

    def __init__(self, id: str, **options: Any) -> None:
        options, self.setting_origins = read_settings(options, self.Settings.SETTINGS)
        self.actor_options, faust_options = split_options(options, self.Settings.SETTINGS, self.setting_origins)
        self.actors: dict[str, ActorDefinition] = {}
        self.stores: dict[str, Store[Any, Any]] = {}
        self.key_types: dict[str, Any] = {}
        self.value_types: dict[str, ValueType] = {}
        self.value_codecs: dict[str, Codec] = {}
        """By store."""
        self.renamed_stores: dict[str, str] = {}
        """The former name of each store that had another."""
        self.views: list[View[Any, Any]] = []
        self.declared_topics: list[Any] = []
        self.topic_writers: dict[str, tuple[Any, ...]] = {}
        self._actor_service: ActorService | None = None
        self._served: Any = None
        """The web server that has the extensions' routes."""
        declared_type(self.setting_origins.get("format", ARGUMENT), None, self.actor_options.format)
        self.schema_registry: Any = self.actor_options.schema_registry
        """The registry of the app's formats: an address, or an object that formats talk to."""
        self.register_schemas = self.actor_options.register_schemas
        if not self.actor_options.create_topics:
            faust_options.setdefault("topic_allow_declare", False)
        self.extensions: Mapping[str, Any] = make_extensions(self, self.actor_options.extensions, faust_options)
        super().__init__(id, **faust_options)

    @property
    def has_service(self) -> bool:
        """True if a worker has more to run than Faust's own parts."""
        return bool(self.actors or self.views) or any(part.reads for part in self.extensions.values())

    @property
    def app_id(self) -> str:
        """The app's id with its version: `conf.id`, known before the settings are read."""
        id, options = self._default_options
        version = options.get("version", 1)
        return f"{id}-v{version}" if version > 1 else str(id)

    def topic(self, *topics: str, **options: Any) -> Any:
        """Describe a topic, as Faust does; `msgspec.Struct` and dataclasses work as types, bytes and str are raw.

        Faust would read JSON where `value_type` is `bytes` or `str` and no `value_serializer` is given.

        Args:
            topics: as Faust's.
            partitioner: how all its producers place keys: "murmur2" (the default: Java, aiokafka, kafka-python),
                "crc32" (librdkafka's default: confluent-kafka for Python, Go, C#, Node), or a function of the encoded
                key and the number of partitions. Sends, asks and queries use it, and an actor of the
                topic compares its records with it.
            timestamp: a function of the value that gives its time in Unix milliseconds; the record's own when left
                out. Its actor, the order between several inputs, stream time and windows go by it. A record whose time
                can't be told is treated as the actor's `on_error` says.
            writers: the actors that alone write to the topic: their functions, classes or names. A reader's event time
                follows theirs then, so that its windows and joins don't depend on when records are read.
            shared: several actors read the topic by its own key. Each gets its records through a topic of its own,
                which workers make.
            format: how values become bytes, in the place of `value_serializer`: one of `actors.formats`, or your own.
                `Avro(Order)` says the type too.
            key_format: likewise for keys.
            options: as Faust's.

        Raises:
            ConfigurationError: there is no such partitioner, `timestamp` can't be called with a value, or another
                topic's name differs in dots and underscores only.
        """
        for name in topics:
            check_apart("topic", name, (other for declared in self.declared_topics for other in declared.topics))
        writers, is_shared = options.pop("writers", None), options.pop("shared", False)
        partitioner = _partitioner(topics, options.pop("partitioner", None))
        timestamp = _timestamp(topics, options.pop("timestamp", None))
        known = list(inspect.signature(faust.App.topic).parameters)[2:]
        formats = {"key": options.pop("key_format", None), "value": options.pop("format", None)}
        unknown = sorted(options.keys() - set(known))
        if unknown:
            raise ConfigurationError(f"app.topic(…): {say_unknown('argument', unknown, known)}")
        is_typed = options.get("value_type") not in (None, bytes, str) and not options.get("internal")
        if is_typed and all(options.get(name) is None for name in ("value_serializer", "schema")):
            formats["value"] = formats["value"] or self.actor_options.format
        _take_formats(topics, formats, options)
        for part in ("key", "value"):
            if options.get(f"{part}_type") in (bytes, str) and options.get(f"{part}_serializer") is None:
                options[f"{part}_serializer"] = "raw"
        if options.get("schema") is None and "Schema" not in self._default_options[1]:
            options["schema"] = ActorSchema(
                topics[0] if len(topics) == 1 else "",
                **{
                    name: options.get(name) for name in ("key_type", "value_type", "key_serializer", "value_serializer")
                },
            )
        topic = super().topic(*topics, **options)
        topic.partitioner, topic.timestamp, topic.is_shared = partitioner, timestamp, is_shared
        if writers is not None:
            self._note_writers(topic, writers)
        self.declared_topics.append(topic)
        return topic

    def _note_writers(self, topic: Any, writers: Sequence[Any]) -> None:
        """Keep the writers of a topic; the actors may be declared later.

        Raises:
            ConfigurationError: it has other ones already, or a time of its own.
        """
        name = str(topic.get_topic_name())
        named = tuple(writers) if isinstance(writers, list | tuple) else ()
        if not named:
            raise ConfigurationError(f"topic {name}: writers= is a list of actors, as in writers=[count]")
        if topic.timestamp is not None:
            raise ConfigurationError(
                f"topic {name}: timestamp= and writers= exclude each other: the times of its records are those that "
                "its writers give them, and event time goes by these"
            )
        if self.topic_writers.setdefault(name, named) != named:
            raise ConfigurationError(f"topic {name} is declared with two lists of writers=: declare it once")

    def partitioner_for(self, topic: str) -> Partitioner:
        """Return the partitioner of a topic's producers, as one of its declarations says, or the default.

        Raises:
            ConfigurationError: two declarations contradict each other.
        """
        found = {
            declared.partitioner.name: declared.partitioner
            for declared in self.declared_topics
            if declared.topics and declared.partitioner is not None and declared.get_topic_name() == topic
        }
        if len(found) > 1:
            raise ConfigurationError(
                f"topic {topic} is declared with partitioner={' and partitioner='.join(sorted(found))}: a topic has one"
            )
        return next(iter(found.values()), MURMUR2)

    def partitioner_of_store(self, store: str) -> Partitioner:
        """Return the partitioner of a store with `placement="key"`: that of its actor's input."""
        owner = self.owner_of_store(store)
        return MURMUR2 if owner is None else self.partitioner_for(owner.topic_name)

    def owner_of_store(self, store: str) -> ActorDefinition | None:
        """Return the actor that lists a store, None where none does."""
        return next(
            (one for one in self.actors.values() if any(store == held.name for held in one.stores)),
            None,
        )

    def channel(self, **options: Any) -> Any:
        """Make a channel, as Faust does; handlers can't send to it."""
        return ActorChannel(self, **options)

    def _load_settings(self, *, silent: bool = False) -> Any:
        try:
            conf = super()._load_settings(silent=silent)
        except (ValueError, TypeError, LookupError, ImportError, ImproperlyConfigured) as error:
            found = unusable(
                self.Settings.SETTINGS,
                given=self._default_options[1],
                origins=self.setting_origins,
                # As Faust does, before its settings are there to be asked.
                getenv=lambda name: os.environ.get(environment_prefix(self._default_options[1], os.environ) + name),
            )
            if found is None:
                raise
            raise found from error
        if conf.processing_guarantee is not ProcessingGuarantee.EXACTLY_ONCE:
            place = self.setting_origins.get("processing_guarantee", ARGUMENT)
            if conf.getenv("PROCESSING_GUARANTEE"):
                place = "PROCESSING_GUARANTEE in the environment"
            raise ConfigurationError(
                f"{place}: processing_guarantee={conf.processing_guarantee.value} can't be used: exactly once is the "
                "only mode, another would be no faster: leave the setting out"
            )
        if conf.id != self.app_id:
            raise ConfigurationError(
                f"version={conf.version} comes after the declarations of actors, which name topics by it: write "
                f"App({self._default_options[0]!r}, version={conf.version})"
            )
        return conf

    def _load_settings_from_source(self, source: Any, *, silent: bool = False) -> dict[str, Any]:
        """Read a configuration object as Faust does; it is part of the program, so a file and a variable go first."""
        origins, found = self.setting_origins, dict(super()._load_settings_from_source(source, silent=silent))
        found = {name: value for name, value in found.items() if origins.get(name, OBJECT) in (ARGUMENT, OBJECT)}
        origins |= dict.fromkeys(found.keys() & self.Settings.SETTINGS.keys(), OBJECT)
        return found

    @contextlib.asynccontextmanager
    async def running(
        self, *, web: bool = False, on_failure: Callable[[BaseException], None] | None = None
    ) -> AsyncIterator[Self]:
        """Run the app's worker in this event loop for the time of an `async with` block: in an ASGI lifespan, a script.

        The block begins when the worker has joined its group. At its end the worker commits, hands its partitions over
        and leaves, within 8 s, also where the block is cancelled. No signal is handled and no logging is set up: both
        are the host's. An app runs once in a process.

        Args:
            web: whether the worker has its web server (`web_bind`, `web_port`), which answers queries, the ones of
                other workers too, and has dashboard, metrics and health.
            on_failure: is called with the error if the worker ends before the block does, such as
                `lambda error: signal.raise_signal(signal.SIGTERM)`. The block itself isn't interrupted; at its end the
                error is raised.

        Raises:
            ConfigurationError: the worker can't start; as any error that `faust worker` would end with.
            UsageError: the app was started before.
        """
        async with running(self, web=web, on_failure=on_failure):
            yield self

    @property
    def actor_service(self) -> ActorService:
        """The service that runs the actors in a worker."""
        if self._actor_service is None:
            self._actor_service = ActorService(self, loop=self.loop, beacon=self.beacon)
        return self._actor_service

    def worker_status(self) -> WorkerStatus:
        """Return the status of this process's worker, at any time of its life. Call it on the worker's event loop.

        It waits for nothing, and takes some 40 µs a partition and as much a store. `msgspec.json.encode` takes what it
        gives.
        """
        service = self.actor_service
        setup = service.setup
        return WorkerStatus(
            app=str(self.conf.id),
            worker="" if setup is None else setup.worker,
            address="" if setup is None else setup.address,
            at_ms=self.actor_clock.wall_ms(),
            partitions={} if service.worker is None else dict(service.worker.partitions),
            copies=service.copies,
            assigned_copies=service.assigned_copies,
            clock_off_ms=self.actor_clock.off_ms,
            brokers=BrokersStatus() if setup is None else _brokers(setup.connection.outages, service.silence),
            commit_interval_s=self.conf.broker_commit_interval,
            **measured(service.meters, service.tasks),
        )

    @functools.cached_property
    def actor_clock(self) -> SystemClock:
        return SystemClock(milliseconds(self.actor_options.clock_skew_margin))

    @functools.cached_property
    def outages(self) -> Outages:
        """The brokers that the clients of this process can't reach."""
        return Outages()

    def _new_producer(self) -> Any:
        """Make Faust's own producer, which waits for a broker that hangs no longer than our clients do."""
        producer = super()._new_producer()
        make = producer._new_producer

        def watched(**options: Any) -> Any:
            client = make(**options)
            own(client.client, self.outages)
            return client

        producer._new_producer = watched
        return producer

    @functools.cached_property
    def secrets(self) -> Secrets:
        """The tokens and the worker's secret; read when they are first needed."""
        return Secrets(self)

    @functools.cached_property
    def in_transaction(self) -> bool:
        """Return whether Faust's own producer is a transactional one: only if Faust's consumer runs."""
        return bool(super().in_transaction) and self.boot_strategy._should_enable_kafka_consumer()

    def is_leader(self) -> bool:
        """Return whether this worker is the app's leader, for `on_leader=True`.

        Without agents and tables Faust has no leader: then it is the owner of the first actor's first partition.
        """
        if self.boot_strategy._should_enable_kafka_consumer():
            return bool(super().is_leader())
        return self.actor_service.is_leader()

    def stream(self, channel: Any, *args: Any, **options: Any) -> Any:
        """Stream from a channel as Faust does.

        Raises:
            ConfigurationError: it is a topic, and the worker runs without Faust's consumer: nothing would ever come.
        """
        starved = self.actors and self.started and not self.boot_strategy._should_enable_kafka_consumer()
        if starved and isinstance(channel, faust.Topic):
            raise ConfigurationError(
                f"topic {channel.get_topic_name()}: this worker has no agent or table, so Faust's consumer "
                "doesn't run, and "
                "the stream would never get a record: use an @app.agent or an @app.actor"
            )
        return super().stream(channel, *args, **options)

    async def on_start(self) -> None:
        """Start as Faust does, without a consumer where nothing of Faust's consumes."""
        if self.has_service and not (self.client_only or self.producer_only):
            await self.actor_service.connect()
        if self.boot_strategy._should_enable_kafka_consumer():
            await super().on_start()
        else:
            self.finalize()

    def on_webserver_init(self, web: Any) -> None:
        """Have extensions add their routes, once: Faust initialises a worker's web server twice."""
        super().on_webserver_init(web)
        if self._served is not web:
            self._served = web
            for extension in self.extensions.values():
                extension.serve(web)

    def _create_directories(self) -> None:
        """Make the data folder, with those above it; Faust would end with a traceback if one is missing."""
        try:
            for folder in (self.conf.datadir, self.conf.appdir, self.conf.tabledir):
                make_folder(folder)
        except OSError as error:
            refuse(self, ConfigurationError(f"datadir (-D) {self.conf.datadir} can't be made: {error}"))

    def worker_init(self) -> None:
        """Apply `--datadir`: Faust builds its settings before it reads the option."""
        context = click.get_current_context(silent=True)
        root = context.find_root() if context is not None else None
        # The option has a default, which must not take the place of the app's setting.
        if root is not None and root.get_parameter_source("datadir") not in (None, ParameterSource.DEFAULT):
            self.conf.datadir = root.obj.datadir
        super().worker_init()
