"""The command line of the local cluster: `python -m dev.kafka up | status | down`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from actors.local_kafka.errors import LocalKafkaError
from actors.local_kafka.jars import ensure_jars, kafka_version
from actors.local_kafka.ports import is_free
from actors.local_kafka.probe import alive_brokers
from actors.local_kafka.settings import STATE_FILE, Secure
from dev import REPOSITORY
from dev.kafka.cluster import BrokerStatus, Cluster
from dev.kafka.existing import existing_brokers

USUAL_PORT = 9092
_NOT_ALL_RUN = 3
_COLOURS = {"running": "green", "starting": "yellow", "paused": "yellow", "down": "red"}
_progress = Console(stderr=True)

_folder_option = click.option(
    "--dir",
    "folder",
    envvar="KAFKA_DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default=REPOSITORY / ".local" / "kafka",
    help="Data folder; .local/kafka of the repository, or KAFKA_DIR.",
)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except LocalKafkaError as error:
        raise click.ClickException(" ".join(str(error).split())) from error


def _existing() -> str | None:
    with _one_line_errors():
        return existing_brokers()


def _answers(address: str) -> bool:
    host, _, port = address.strip().rpartition(":")
    try:
        return bool(alive_brokers(host.strip("[]"), int(port)))
    except (OSError, ValueError):
        return False


@click.group()
def main() -> None:
    """A Kafka cluster on this machine.

    With KAFKA_URL=kafka://host:port or KAFKA_BROKERS=host:port,… set, that cluster is used instead.
    """


@main.command()
@click.option("--brokers", type=click.IntRange(1, 9), help="How many; as many as the folder has, or 1.")
@click.option(
    "--keystore",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A PEM file with a key (PKCS #8) and certificates: adds a SASL_SSL listener to a new cluster.",
)
@click.option("--user", "users", multiple=True, metavar="NAME:PASSWORD", help="May log in there, by SASL.")
@click.option(
    "--port", type=click.IntRange(1024, 65_000), help="Of the first broker of a new cluster; 9092 if that is free."
)
@_folder_option
def up(brokers: int | None, keystore: Path | None, users: tuple[str, ...], port: int | None, folder: Path) -> None:
    """Starts the cluster and waits until it is ready; the last line on stdout is its bootstrap list."""
    if (keystore is None) != (not users):
        raise click.UsageError("--keystore and --user go together")
    existing = _existing()
    if existing is not None:
        if not any(_answers(address) for address in existing.split(",")):
            raise click.ClickException(
                f"no Kafka answers at {existing}, which the environment names: start it, or unset KAFKA_URL and "
                "KAFKA_BROKERS"
            )
        click.echo(existing)
        return
    with _one_line_errors():
        with _progress.status(f"Kafka {kafka_version()}: jars"):
            ensure_jars()
        count = brokers or len(_statuses(folder)) or 1
        if port is None and not _statuses(folder) and is_free(USUAL_PORT):
            port = USUAL_PORT
        with _progress.status(f"Kafka {kafka_version()}: {count} broker(s) starting"):
            cluster = Cluster.up(folder, brokers=count, secure=_secure(keystore, users), port=port)
    _progress.print(f"Kafka {kafka_version()} is ready, data and logs in {cluster.folder}", highlight=False)
    if cluster.secure_bootstrap:
        _progress.print(f"with TLS and SASL: {cluster.secure_bootstrap}", highlight=False)
    click.echo(cluster.bootstrap)


def _secure(keystore: Path | None, users: tuple[str, ...]) -> Secure | None:
    if keystore is None:
        return None
    pairs = [user.partition(":") for user in users]
    return Secure(str(keystore.absolute()), {name: password for name, _, password in pairs})


@main.command()
@_folder_option
@click.pass_context
def status(context: click.Context, folder: Path) -> None:
    """Shows each broker; exit code 0 if all run, 3 if not."""
    existing = _existing()
    if existing is not None:
        addresses = [address.strip() for address in existing.split(",")]
        rows = [("-", address, "-", "running" if _answers(address) else "down") for address in addresses]
    else:
        with _one_line_errors():
            rows = [_row(broker) for broker in _statuses(folder)]
    _print_table(rows)
    if not rows or any(row[-1] != "running" for row in rows):
        context.exit(_NOT_ALL_RUN)


@main.command()
@click.option("--delete", is_flag=True, help="Delete the cluster's data too.")
@_folder_option
def down(delete: bool, folder: Path) -> None:
    """Ends the brokers that `up` started, and no other process."""
    if _existing() is not None:
        _progress.print("KAFKA_URL or KAFKA_BROKERS is set: that cluster is not ours to end")
        return
    if not (folder / STATE_FILE).exists():
        _progress.print(f"no cluster in {folder}", highlight=False)
        return
    with _one_line_errors(), _progress.status("Kafka is ending"):
        Cluster.open(folder).down(delete=delete)


def _statuses(folder: Path) -> tuple[BrokerStatus, ...]:
    return Cluster.open(folder).status() if (folder / STATE_FILE).exists() else ()


def _row(broker: BrokerStatus) -> tuple[str, str, str, str]:
    return str(broker.id), str(broker.port), str(broker.pid or "-"), broker.state


def _print_table(rows: list[tuple[str, str, str, str]]) -> None:
    table = Table("broker", "port", "pid", "state")
    for broker, port, pid, state in rows:
        table.add_row(broker, port, pid, f"[{_COLOURS[state]}]{state}[/]")
    Console().print(table)


if __name__ == "__main__":
    main(prog_name="python -m dev.kafka")
