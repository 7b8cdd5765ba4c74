"""Kafka Connect with Debezium on this machine, for tests and for trials: `python -m dev.connect up | down`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import click

from actors.local_kafka.files import replace_text
from actors.local_kafka.jars import LOGGING, QUICK_START, TOOLS_LOG, jars_of, java, kafka_version
from actors.local_kafka.settings import HOST
from dev import parts
from dev.parts import Part, PartError

Format = Literal["json", "json-schema", "avro"]
_DEBEZIUM = ("io.debezium", "debezium-connector-postgres", "3.7.0.Final", "plugin")
# the newest converter of Maven Central whose parts are all there; it calls the registry by its API of version 2
_AVRO = ("io.apicurio:apicurio-registry-utils-converter:2.6.13.Final", "apicurio-connect-converter-2.6.13")
_MAIN = "org.apache.kafka.connect.cli.ConnectStandalone"
_REQUEST_TIMEOUT_S = 60.0


def up(folder: Path, brokers: str) -> Part:
    """Start Kafka Connect in a folder, unless it runs there, and wait until it answers.

    Its address is that of its REST API. Connectors that were added by `follow` go on where they were.

    Args:
        folder: Where its offsets and connectors are.
        brokers: The bootstrap list of the Kafka that it writes to.

    Raises:
        PartError: A plugin can't be fetched, or it doesn't start.
        LocalKafkaError: Its jars can't be fetched, or there is no free port.
    """
    folder = folder.absolute()
    with parts.starting(folder, "http") as state:
        if isinstance(state, Part):
            return state
        _link_plugins(folder / "plugins")
        settings = {
            "bootstrap.servers": brokers,
            "listeners": f"http://{HOST}:{parts.port_of(state)}",
            "offset.storage.file.filename": str(folder / "offsets"),
            "offset.flush.interval.ms": "1000",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "plugin.path": str(folder / "plugins"),
            "plugin.discovery": "only_scan",  # the converter has no manifest
        }
        properties = folder / "worker.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        version = kafka_version()
        jars = jars_of([f"org.apache.kafka:connect-runtime:{version}", *LOGGING], f"kafka-connect-{version}")
        flags = (*QUICK_START, "-Xmx512m", f"-Dlog4j2.configurationFile={TOOLS_LOG}")
        connectors = map(str, sorted(_connectors(folder).glob("*.json")))
        return Part.start(
            folder,
            state,
            [java(), *flags, "-cp", f"{jars}/*", _MAIN, str(properties), *connectors],
            ready=lambda: parts.answers(f"{state}/connectors"),
        )


def _link_plugins(folder: Path) -> None:
    """Make a folder for each plugin, with its jars but for those that Kafka Connect has of another version."""
    shutil.rmtree(folder, ignore_errors=True)
    debezium, avro = parts.unpacked(*_DEBEZIUM) / "debezium-connector-postgres", jars_of([_AVRO[0]], _AVRO[1])
    for plugin in (debezium, avro):
        target = folder / plugin.name
        target.mkdir(parents=True)
        for jar in plugin.glob("*.jar"):
            if not jar.name.startswith(("connect-", "kafka-clients-", "slf4j-")):
                (target / jar.name).symlink_to(jar.resolve())


def follow(
    connect: Part,
    prefix: str,
    database: str,
    *,
    value_format: Format = "json",
    registry: str = "",
    settings: Mapping[str, str] | None = None,
) -> None:
    """Let Debezium write the changes of a database, each table's to the topic `prefix.schema.table`.

    Args:
        connect: What runs it.
        prefix: What topics begin with; letters, digits and underscores. The connector has this name too.
        database: The database's address.
        value_format: The converter of keys and values.
        registry: The address of the registry, for Avro.
        settings: More settings of the connector, or others.

    Raises:
        PartError: Kafka Connect refuses it.
    """
    config = {**config_of(prefix, database, value_format, registry), **(settings or {})}
    _request(f"{connect.address}/connectors/{prefix}/config", config)
    folder = _connectors(connect.folder)
    folder.mkdir(exist_ok=True)
    replace_text(folder / f"{prefix}.json", json.dumps({"name": prefix, "config": config}, indent=1))


def config_of(prefix: str, database: str, value_format: Format, registry: str) -> dict[str, str]:
    """Return the settings of a connector, as `follow` makes it."""
    url = urlsplit(database)
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": url.hostname or "",
        "database.port": str(url.port),
        "database.user": url.username or "",
        "database.password": url.password or "unused",
        "database.dbname": url.path.removeprefix("/"),
        "topic.prefix": prefix,
        "plugin.name": "pgoutput",
        "slot.name": prefix,
        "publication.name": prefix,
        "skipped.operations": "none",  # it leaves out TRUNCATE by default
        "slot.retry.delay.ms": "500",
        "topic.creation.default.partitions": "4",
        "topic.creation.default.replication.factor": "-1",
        **_converters(value_format, registry),
    }


def forget(connect: Part, prefix: str) -> None:
    """End a connector of `follow`. Its slot and its publication stay in the database."""
    (_connectors(connect.folder) / f"{prefix}.json").unlink(missing_ok=True)
    _request(f"{connect.address}/connectors/{prefix}", None, method="DELETE")


def state_of(connect: Part, prefix: str) -> str:
    """Return the state of a connector's task: `RUNNING`, or `FAILED` with its trace; empty before it started."""
    with urlopen(f"{connect.address}/connectors/{prefix}/status", timeout=_REQUEST_TIMEOUT_S) as response:
        tasks = json.loads(response.read())["tasks"]
    return " ".join(f"{task['state']} {task.get('trace', '')}".strip() for task in tasks)


def _connectors(folder: Path) -> Path:
    return folder / "connectors"


def _converters(value_format: Format, registry: str) -> dict[str, str]:
    if value_format != "avro":
        converter = {
            "converter": "org.apache.kafka.connect.json.JsonConverter",
            "converter.schemas.enable": str(value_format == "json-schema").lower(),
        }
    else:
        if not registry:
            raise PartError("Avro needs the address of a registry")
        converter = {
            "converter": "io.apicurio.registry.utils.converter.AvroConverter",
            "converter.apicurio.registry.url": f"{registry.partition('/apis/')[0]}/apis/registry/v2",
            "converter.apicurio.registry.auto-register": "true",
            "converter.apicurio.registry.find-latest": "true",
            # the wire format of Confluent's serializers: a magic byte, and an id of four bytes, before the record
            "converter.apicurio.registry.headers.enabled": "false",
            "converter.apicurio.registry.as-confluent": "true",
            "converter.apicurio.registry.use-id": "contentId",
        }
    return {f"{side}.{key}": value for side in ("key", "value") for key, value in converter.items()}


def _request(url: str, body: object, *, method: str = "PUT") -> None:
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method=method)
    try:
        with urlopen(request, timeout=_REQUEST_TIMEOUT_S) as response:
            response.read()
    except HTTPError as error:
        with error:
            raise PartError(f"Kafka Connect answers {error.code}: {error.read().decode(errors='replace')}") from error


@click.group()
def main() -> None:
    """Kafka Connect on this machine, with Debezium's connector for PostgreSQL."""


@main.command("up")
@click.option("--broker", "brokers", required=True, help="Bootstrap list, as `python -m dev.kafka up` prints it.")
@click.option("--postgres", required=True, help="Address, as `python -m dev.postgres up` prints it.")
@click.option("--registry", default="", help="Address, as `python -m dev.registry up` prints it; for Avro.")
@click.option("--prefix", default="db", show_default=True, help="What the names of topics begin with.")
@click.option(
    "--format", "value_format", type=click.Choice(["json", "json-schema", "avro"]), default="json", show_default=True
)
@parts.folder_option("connect")
def _up(brokers: str, postgres: str, registry: str, prefix: str, value_format: Format, folder: Path) -> None:
    """Start it and let Debezium follow a database; the last line on stdout is the address of its REST API."""
    with parts.one_line_errors():
        connect = up(folder, brokers)
        follow(connect, prefix, postgres, value_format=value_format, registry=registry)
    click.echo(connect.address)


main.add_command(parts.down_command("connect"))

if __name__ == "__main__":
    main(prog_name="python -m dev.connect")
