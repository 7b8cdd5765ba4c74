"""The Kafka Streams program of `benchmarks/kafka_streams`, built by Maven when it is first needed."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from dev.kafka.errors import LocalKafkaError, ToolMissingError
from dev.kafka.files import locked
from dev.kafka.jars import REPOSITORY, java

SOURCES = REPOSITORY / "benchmarks" / "kafka_streams"
MAIN_CLASS = "peers.Main"
# Stated, because by default a JVM takes a quarter of the machine, and memory is one of the figures.
HEAP = "1g"


def java_command(*options: str) -> list[str]:
    """Return the command that runs a Kafka Streams worker.

    The JVM is left to itself but for its heap: no flags for a quick start, which would cost it its best compiler.
    """
    quiet = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
    return [java(), f"-Xmx{HEAP}", *quiet, "-cp", f"{ensure_built()}/*", MAIN_CLASS, *options]


def ensure_built() -> Path:
    """Return the folder with the program and what it needs, named after its sources: a change builds a new one.

    Raises:
        ToolMissingError: there is no Maven, or no JDK.
        LocalKafkaError: Maven failed.
    """
    java()
    sources = [SOURCES / "pom.xml", *sorted(SOURCES.rglob("*.java"))]
    digest = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    folder = REPOSITORY / ".local" / "jars" / f"kafka-streams-peer-{digest}"
    if not folder.is_dir():
        with locked(folder.with_name("kafka-streams-peer.lock")):
            if not folder.is_dir():
                _build(folder)
    return folder


def streams_version() -> str:
    """Return the version of Kafka Streams that the program is built with."""
    (jar,) = ensure_built().glob("kafka-streams-[0-9]*.jar")
    return jar.stem.removeprefix("kafka-streams-")


def _build(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise ToolMissingError("no Maven here to build Kafka Streams' side with: apt-get install maven")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        jars = Path(temporary) / "jars"
        command = [maven, "-q", "-B", "-f", str(SOURCES / "pom.xml"), "package", "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={jars}", f"-Dpeer.build={temporary}/build"]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, text=True, capture_output=True)
        if result.returncode != 0:
            raise LocalKafkaError(f"Maven could not build Kafka Streams' side: {result.stdout[-2000:]}")
        for jar in (Path(temporary) / "build").glob("*.jar"):
            shutil.copy(jar, jars)
        # Renamed when complete, so that a build cut off never looks like a whole one.
        jars.rename(folder)
