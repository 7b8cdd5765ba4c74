"""How each system's worker is started for a job, and where it keeps what is looked at from outside."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from actors.local_kafka.files import locked
from actors.local_kafka.jars import jars_of, java
from benchmarks.peers.broker import KAFKA_VERSION
from benchmarks.peers.java_build import HEAP, java_command, streams_version
from dev import REPOSITORY

OURS = "ours"
OURS_COMPILED = "ours_compiled"
KAFKA_STREAMS = "kafka_streams"
KAFKA_STREAMS_CACHED = "kafka_streams_cached"
KAFKA_STREAMS_DIRECT = "kafka_streams_direct"
QUIX = "quix"
FAUST = "faust"
SPARK = "spark"
FLINK = "flink"
SYSTEMS = (OURS, OURS_COMPILED, KAFKA_STREAMS, KAFKA_STREAMS_CACHED, KAFKA_STREAMS_DIRECT, QUIX, FAUST, SPARK, FLINK)
OWN_SYSTEMS = (OURS, OURS_COMPILED)
"""Ours as the pure wheel has it, and with the engine compiled (`make compiled-engine`)."""
JAVA_SYSTEMS = (KAFKA_STREAMS, KAFKA_STREAMS_CACHED, KAFKA_STREAMS_DIRECT)
"""Kafka Streams: as the tables have it, with caching, and with stores that aren't transactional."""
EXACTLY_ONCE = "exactly_once"
AT_LEAST_ONCE = "at_least_once"
GUARANTEES = (EXACTLY_ONCE, AT_LEAST_ONCE)
_MODULES = {
    **dict.fromkeys(("tumbling", "hopping", "session"), "windows"),
    **dict.fromkeys(("stream_join", "table_join"), "joins"),
    **dict.fromkeys(("count_avro", "count_protobuf"), "formats"),
}
"""Where ours has jobs that aren't in `apps/ours.py`."""

COMPILED = REPOSITORY / ".local" / "compiled"
_APPS = Path(__file__).resolve().parent / "apps"
_OWN_PACKAGES = {
    QUIX: ("quixstreams==3.28.1",),
    SPARK: ("pyspark==4.2.1", "confluent-kafka==2.16.1", "pandas==2.3.3", "protobuf==7.36.2", "pyarrow==26.0.1"),
    FLINK: ("apache-flink==2.3.0",),
}
"""What each system that has an environment of its own runs on, the system first."""
_CONNECTORS = {
    SPARK: "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    FLINK: "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2",
}
"""Kafka connectors of the newest release that there is of them."""
_CONNECTOR_JARS = (
    *("spark-sql-kafka-0-10_", "spark-token-provider-kafka-0-10_", "kafka-clients-", "commons-pool2-"),
    "flink-sql-connector-kafka-",
)
"""How the names of the jars begin that the systems don't have themselves."""
_VERSIONS: dict[str, Callable[[], str]] = {
    **dict.fromkeys(OWN_SYSTEMS, lambda: metadata.version("faust-actors")),
    **dict.fromkeys(JAVA_SYSTEMS, streams_version),
    QUIX: lambda: _own_version(QUIX),
    FAUST: lambda: metadata.version("faust-streaming"),
    SPARK: lambda: _own_version(SPARK),
    FLINK: lambda: _own_version(FLINK),
}


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker shall do.

    Attributes:
        system: One of `SYSTEMS`.
        work: `counter` (read, add one, write, send the count) or `dedupe` (put if absent, send the first); ours
            also knows `table` (write and send each), PySpark and PyFlink only `dedupe` of raw values. `tumbling`,
            `hopping` and `session` count in windows and send each count that changed; only ours and Kafka Streams
            know them, and `stream_join` and `table_join`, which send the values of both topics. `count_avro` and
            `count_protobuf` count per key, and send each value with the count in it; they too are known to these two
            only.
        guarantee: One of `GUARANTEES`.
        brokers: Addresses, separated by commas.
        app: Names the group, the topics that the system makes, and the transactions.
        source: The input topic.
        target: The output topic.
        values: `raw` bytes, or `json` decoded to a type of the system's own.
        instance: The static member's name (`group.instance.id`); empty for a dynamic member.
        session_s: The session timeout.
        commit_s: The commit interval.
        partitions: How many the input has.
        other: The other topic of a join: a stream, or that of a table.
        phases: Where ours writes when its records and commits went from step to step; empty: nowhere.
        registry: The address of the schema registry, where the work has schemas.
        schema: What Kafka Streams gets in its place: the schema of the values, and its id.
    """

    system: str
    work: str
    guarantee: str
    brokers: str
    app: str
    source: str
    target: str
    values: str = "raw"
    instance: str = ""
    session_s: float = 10.0
    commit_s: float = 0.1
    partitions: int = 4
    other: str = ""
    phases: str = ""
    registry: str = ""
    schema: tuple[str, int] = ("", 0)

    @property
    def group(self) -> str:
        """The consumer group whose committed offsets tell how far the job is."""
        return f"{self.app}-actors" if self.system in OWN_SYSTEMS else self.app

    @property
    def has_group(self) -> bool:
        """Whether workers are members of that group.

        Those of PySpark and PyFlink aren't: they commit there what a batch or a checkpoint has read.
        """
        return self.system not in _CONNECTORS

    @property
    def inputs(self) -> tuple[str, ...]:
        """The topics whose records are counted: of a table too, since both systems read it in their groups."""
        return (self.source, self.other) if self.other else (self.source,)

    @property
    def changelog(self) -> str:
        """The topic that the state can be folded from."""
        if self.system == QUIX:
            return f"changelog__{self.app}--{self.source}--default"
        return f"{self.app}--state-changelog" if self.system in OWN_SYSTEMS else f"{self.app}-state-changelog"

    @property
    def read_key(self) -> Callable[[bytes], bytes]:
        """How a key is read from a record of the changelog."""
        if self.system == FAUST:
            return lambda key: str(json.loads(key)).encode() if key.startswith(b'"') else key
        return lambda key: key

    @property
    def read_count(self) -> Callable[[bytes], int]:
        """How a count is read from a record of the changelog."""
        if self.system in JAVA_SYSTEMS:
            return lambda value: int(struct.unpack(">q", value)[0])
        return lambda value: int(json.loads(value))

    @property
    def cwd(self) -> Path:
        """The worker's working directory, from which it imports."""
        return COMPILED if self.system == OURS_COMPILED else REPOSITORY

    def command(self, folder: Path) -> list[str]:
        """Return the worker's command line, its state kept in `folder`."""
        if self.system in JAVA_SYSTEMS:
            return self._java_command(folder)
        if self.system == QUIX:
            return [str(_own_python(QUIX)), str(_APPS / "quix_app.py")]
        if self.system in _CONNECTORS:
            app = _APPS / f"{self.system}_app.py"
            return [str(_own_python(self.system)), str(app), HEAP, *_connector_jars(self.system)]
        module = _MODULES.get(self.work, "ours") if self.system in OWN_SYSTEMS else "faust_app"
        options = ["-A", f"benchmarks.peers.apps.{module}", "-D", str(folder)]
        return [sys.executable, "-m", "faust", *options, "worker", "-l", "info", "--without-web"]

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the worker's environment."""
        return {
            **os.environ,
            "PEER_WORK": self.work,
            "PEER_APP": self.app,
            "PEER_BROKERS": self.brokers,
            "PEER_SOURCE": self.source,
            "PEER_OTHER": self.other,
            "PEER_TARGET": self.target,
            "PEER_GUARANTEE": self.guarantee,
            "PEER_VALUES": self.values,
            "PEER_INSTANCE": self.instance,
            "PEER_SESSION_S": str(self.session_s),
            "PEER_COMMIT_S": str(self.commit_s),
            "PEER_PARTITIONS": str(self.partitions),
            "PEER_FOLDER": str(folder),
            "PEER_PHASES": self.phases,
            **({"JAVA_HOME": str(Path(java()).resolve().parents[1])} if self.system in _CONNECTORS else {}),
            **({"SCHEMA_REGISTRY": self.registry} if self.registry else {}),
        }

    def _java_command(self, folder: Path) -> list[str]:
        options = {
            "mode": self.work,
            "bootstrap": self.brokers,
            "application-id": self.app,
            "input": self.source,
            "output": self.target,
            "other": self.other,
            "state-dir": str(folder),
            "guarantee": "exactly_once_v2" if self.guarantee == EXACTLY_ONCE else "at_least_once",
            "caching": "on" if self.system == KAFKA_STREAMS_CACHED else "off",
            "transactional-stores": "off" if self.system == KAFKA_STREAMS_DIRECT else "on",
            "values": self.values,
            "commit-interval-ms": str(round(self.commit_s * 1000)),
            "session-timeout-ms": str(round(self.session_s * 1000)),
        }
        if self.registry:
            options |= {"schema": self.schema[0], "schema-id": str(self.schema[1])}
        if self.instance:
            options["group-instance-id"] = self.instance
        return java_command(*(part for name, value in options.items() for part in (f"--{name}", value)))


def prepare(system: str) -> None:
    """Build or install what a system needs, so that no measurement waits for it."""
    if system in JAVA_SYSTEMS:
        java_command()
    elif system == OURS_COMPILED:
        subprocess.run(["make", "compiled-engine"], cwd=REPOSITORY, check=True, stdout=sys.stderr)
    elif system in _OWN_PACKAGES:
        _own_python(system)
        if system in _CONNECTORS:
            _connector_jars(system)


def versions(systems: Sequence[str]) -> dict[str, str]:
    """Return the versions of the broker and of the systems."""
    return {"broker": os.environ.get("KAFKA_VERSION", KAFKA_VERSION), **{name: _VERSIONS[name]() for name in systems}}


def _own_version(system: str) -> str:
    return _OWN_PACKAGES[system][0].partition("==")[2]


def _own_python(system: str) -> Path:
    """Return the Python of a system's own environment: its dependencies must not change those of ours."""
    packages = _OWN_PACKAGES[system]
    folder = REPOSITORY / ".local" / packages[0].replace("==", "-")
    python = folder / "bin" / "python"
    with locked(folder.with_name(f"{folder.name}.lock")):
        ready = folder / ".ready"
        if not ready.exists():
            venv.create(folder, with_pip=True, clear=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *packages], check=True, stdin=subprocess.DEVNULL)
            ready.touch()
    return python


def _connector_jars(system: str) -> list[str]:
    """Return the jars of a system's Kafka connector that the system doesn't have."""
    _, name, version = _CONNECTORS[system].split(":")
    folder = jars_of([_CONNECTORS[system]], f"peer-{name}-{version}")
    jars = sorted(str(jar) for jar in folder.glob("*.jar") if jar.name.startswith(_CONNECTOR_JARS))
    # Flink's has Kafka's client in it.
    return jars if system == SPARK else [jar for jar in jars if name in jar]
