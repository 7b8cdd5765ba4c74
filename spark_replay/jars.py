"""Spark's Kafka connector, fetched once by Maven."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_replay.errors import ReplayError, ToolMissingError

CONNECTOR = "spark-sql-kafka-0-10_2.13:4.0.0"
JARS_VARIABLE = "SPARK_REPLAY_JARS"

# each by what its file's name begins with
_NEEDED = ("spark-sql-kafka-0-10_", "spark-token-provider-kafka-0-10_", "kafka-clients-", "commons-pool2-")
_POM = Path(__file__).with_name("pom.xml")
_CACHE = Path("~/.cache/faust-actors/spark-kafka-4.0.0")


def ensure_jars() -> list[Path]:
    """Return the connector's jars, fetching them if need be.

    They are kept in the folder that the variable `SPARK_REPLAY_JARS` names, or in `~/.cache/faust-actors`. A
    folder that is there already is taken as it is, so that machines without Maven can be handed a copy.

    Raises:
        ToolMissingError: They are to be fetched and there is no Maven, or the folder lacks some.
        ReplayError: Maven failed.
    """
    folder = Path(os.environ.get(JARS_VARIABLE) or _CACHE).expanduser().absolute()
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f"{folder.name}.lock")):
            if not folder.is_dir():
                _fetch(folder)
    jars = sorted(folder.glob("*.jar"))
    missing = [name for name in _NEEDED if not any(jar.name.startswith(name) for jar in jars)]
    if missing:
        raise ToolMissingError(
            f"{CONNECTOR} isn't complete: no {', '.join(f'{name}*.jar' for name in missing)} in {folder}; remove the "
            "folder, and it is fetched again"
        )
    return jars


def require_java() -> None:
    """Check that Spark will find a Java.

    Raises:
        ToolMissingError: It won't; the text says what to install.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME={home}" if home else "on PATH"
        raise ToolMissingError(
            f"Spark needs Java 17 and there is none {where}: apt-get install openjdk-17-jre-headless"
        )


def _fetch(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise ToolMissingError(
            f"no Maven here to fetch {CONNECTOR} with: apt-get install maven, or put its jars into {folder}"
        )
    # renamed when complete, so that a fetch cut off never looks like a full one
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        command = [maven, "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={temporary}"]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, text=True, capture_output=True)
        if result.returncode != 0:
            errors = (line.strip() for line in result.stdout.splitlines() if "ERROR" in line)
            reason = next(errors, "it says nothing more")
            raise ReplayError(f"Maven could not fetch {CONNECTOR}: {reason}")
        temporary.chmod(0o755)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
