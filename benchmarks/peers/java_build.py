"""Programs in Java, as the Kafka Streams worker of `benchmarks/kafka_streams`, compiled when first needed."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from actors.local_kafka.errors import LocalKafkaError
from actors.local_kafka.files import locked
from actors.local_kafka.jars import jars_folder, jars_of, java
from dev import REPOSITORY

SOURCES = REPOSITORY / "benchmarks" / "kafka_streams"
NAME = "kafka-streams-peer"
NEEDS = (
    "org.apache.kafka:kafka-streams:4.4.0",
    "com.fasterxml.jackson.core:jackson-databind:2.21.2",
    "org.apache.avro:avro:1.12.0",
    "com.google.protobuf:protobuf-java:4.31.1",
    # Kafka logs by slf4j 1.7: the binding for slf4j 2 would never be found
    "org.slf4j:slf4j-simple:1.7.36",
)
_COMPILER = "org.eclipse.jdt:ecj:3.40.0"
MAIN_CLASS = "peers.Main"
# Stated, because by default a JVM takes a quarter of the machine, and memory is one of the figures.
HEAP = "1g"


def java_command(*options: str) -> list[str]:
    """Return the command that runs a Kafka Streams worker.

    The JVM is left to itself but for its heap: no flags for a quick start, which would cost it its best compiler.
    """
    quiet = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
    return [java(), f"-Xmx{HEAP}", *quiet, "-cp", f"{ensure_built()}/*", MAIN_CLASS, *options]


def ensure_built(sources: Path = SOURCES, name: str = NAME, needs: Sequence[str] = NEEDS) -> Path:
    """Return the folder with a program and what it needs, named after its sources: a change builds a new one.

    Args:
        sources: the folder of its Java files.
        name: what the folder's name begins with.
        needs: `group:artifact:version` of each artifact that it needs.

    Raises:
        ToolMissingError: there is no Java, or nothing to fetch jars with.
        LocalKafkaError: the compiler failed.
    """
    texts = (*(need.encode() for need in needs), *(file.read_bytes() for file in sorted(sources.rglob("*.java"))))
    folder = jars_folder() / f"{name}-{hashlib.sha256(b'|'.join(texts)).hexdigest()[:12]}"
    if not folder.is_dir():
        with locked(folder.with_name(f"{name}.lock")):
            if not folder.is_dir():
                _build(sources, jars_of(needs, f"{folder.name}-needs"), folder)
    return folder


def streams_version() -> str:
    """Return the version of Kafka Streams that the program is built with."""
    (jar,) = ensure_built().glob("kafka-streams-[0-9]*.jar")
    return jar.stem.removeprefix("kafka-streams-")


def _build(sources: Path, needs: Path, folder: Path) -> None:
    compiler = jars_of([_COMPILER], _COMPILER.split(":", 1)[1].replace(":", "-"))
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        classes = Path(temporary, "classes")
        command = [java(), "-jar", *map(str, compiler.glob("*.jar")), "-17", "-nowarn", "-proc:none"]
        command += ["-classpath", ":".join(map(str, needs.glob("*.jar"))), "-d", str(classes), str(sources)]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, text=True, capture_output=True)
        if result.returncode != 0:
            raise LocalKafkaError(f"{sources} could not be compiled: {result.stderr[-2000:]}")
        Path(shutil.make_archive(f"{temporary}/program", "zip", classes)).rename(needs / "program.jar")
    # Renamed when complete, so that a build cut off never looks like a whole one.
    needs.rename(folder)
