"""Programs in Java, as the Kafka Streams worker of `benchmarks/kafka_streams`, built by Maven when first needed."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from actors.local_kafka.errors import LocalKafkaError, ToolMissingError
from actors.local_kafka.files import locked
from actors.local_kafka.jars import java
from dev import REPOSITORY

SOURCES = REPOSITORY / "benchmarks" / "kafka_streams"
NAME = "kafka-streams-peer"
MAIN_CLASS = "peers.Main"
# Stated, because by default a JVM takes a quarter of the machine, and memory is one of the figures.
HEAP = "1g"


def java_command(*options: str) -> list[str]:
    """Return the command that runs a Kafka Streams worker.

    The JVM is left to itself but for its heap: no flags for a quick start, which would cost it its best compiler.
    """
    quiet = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
    return [java(), f"-Xmx{HEAP}", *quiet, "-cp", f"{ensure_built()}/*", MAIN_CLASS, *options]


def ensure_built(sources: Path = SOURCES, name: str = NAME) -> Path:
    """Return the folder with a program and what it needs, named after its sources: a change builds a new one.

    Args:
        sources: the folder of its `pom.xml`, which builds into the folder of its property `peer.build`.
        name: what the folder's name begins with.

    Raises:
        ToolMissingError: there is no Maven, or no JDK.
        LocalKafkaError: Maven failed.
    """
    java()
    files = [sources / "pom.xml", *sorted(sources.rglob("*.java"))]
    digest = hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:12]
    folder = REPOSITORY / ".local" / "jars" / f"{name}-{digest}"
    if not folder.is_dir():
        with locked(folder.with_name(f"{name}.lock")):
            if not folder.is_dir():
                _build(sources, folder)
    return folder


def streams_version() -> str:
    """Return the version of Kafka Streams that the program is built with."""
    (jar,) = ensure_built().glob("kafka-streams-[0-9]*.jar")
    return jar.stem.removeprefix("kafka-streams-")


def _build(sources: Path, folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise ToolMissingError(f"no Maven here to build {sources.name} with: apt-get install maven")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        jars = Path(temporary) / "jars"
        command = [maven, "-q", "-B", "-f", str(sources / "pom.xml"), "package", "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={jars}", f"-Dpeer.build={temporary}/build"]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, text=True, capture_output=True)
        if result.returncode != 0:
            raise LocalKafkaError(f"Maven could not build {sources}: {result.stdout[-2000:]}")
        for jar in (Path(temporary) / "build").glob("*.jar"):
            shutil.copy(jar, jars)
        # Renamed when complete, so that a build cut off never looks like a whole one.
        jars.rename(folder)
