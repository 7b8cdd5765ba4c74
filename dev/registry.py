"""Apicurio Registry on this machine, for tests and for trying things out: `python -m dev.registry up | down`."""

from __future__ import annotations

from pathlib import Path

from actors.local_kafka.jars import QUICK_START
from actors.local_kafka.settings import HOST
from dev import parts
from dev.kafka import free_port
from dev.parts import Part

CONFLUENT_API = "/apis/ccompat/v7"
_ARCHIVE = ("io.apicurio", "apicurio-registry-app", "3.3.3", "all")


def up(folder: Path) -> Part:
    """Start the registry of a folder, unless it runs, and wait until it answers.

    Its address is that of the API of Confluent's registry. Schemas lie in the folder, and outlive a kill.

    Raises:
        PartError: It can't be fetched or doesn't start.
        LocalKafkaError: There is no free port.
    """
    folder = folder.absolute()
    with parts.starting(folder, "http") as state:
        if isinstance(state, Part):
            return state
        address = state.removesuffix(CONFLUENT_API)
        settings = {
            "quarkus.http.host": HOST,
            "quarkus.http.port": parts.port_of(address),
            # its second server would listen on all addresses
            "quarkus.management.host": HOST,
            "quarkus.management.port": str(free_port()),
            # without a delay a kill loses what was answered
            "apicurio.datasource.url": f"jdbc:h2:file:{folder}/schemas;WRITE_DELAY=0",
            # 20 connections by default, which are opened before it answers
            "apicurio.datasource.jdbc.initial-size": "2",
            "apicurio.datasource.jdbc.min-size": "2",
        }
        jar = parts.unpacked(*_ARCHIVE) / "quarkus-run.jar"
        flags = (*QUICK_START, "-Xmx512m", *(f"-D{key}={value}" for key, value in settings.items()))
        return Part.start(
            folder,
            address + CONFLUENT_API,
            [parts.java_21(), *flags, "-jar", str(jar)],
            ready=lambda: parts.answers(f"{address}{CONFLUENT_API}/subjects"),
        )


main = parts.commands("registry", "A schema registry on this machine: Apicurio, with the API of Confluent's.", up)

if __name__ == "__main__":
    main(prog_name="python -m dev.registry")
