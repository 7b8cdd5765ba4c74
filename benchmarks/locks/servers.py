"""The servers that are compared, each alone on 127.0.0.1, with its data in a folder that is thrown away."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.local_kafka.jars import jars_of, java
from benchmarks.peers.broker import start_cluster
from benchmarks.peers.worker import cpu_s
from benchmarks.run_commands import start_worker
from dev.kafka import ToolMissingError, free_port

READY_S = 60.0
STOP_S = 20.0
MEMORY = Path("/dev/shm")
# The server needs the last two, which its POM calls provided; Jetty is for a web page that is switched off.
_ARTIFACTS = (
    "org.apache.zookeeper:zookeeper:3.9.4",
    "io.dropwizard.metrics:metrics-core:4.1.12.1",
    "org.xerial.snappy:snappy-java:1.1.10.5",
)
_ZOOKEEPER = "zookeeper-3.9.4"
_EACH_WRITE = {"log.flush.interval.messages": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One row of the table.

    Attributes:
        name: for the command line.
        title: for people.
        client: what talks to it.
        is_synced: whether each write is on disk when it is answered.
        partitions: of the service's topic, for ours.
    """

    name: str
    title: str
    client: str
    is_synced: bool
    partitions: int = 1


@dataclass(frozen=True, slots=True)
class Running:
    """A system that is up: the address that its client takes, and the processes that serve it."""

    address: str
    pids: Sequence[int]

    @property
    def cpu_s(self) -> float:
        """The CPU seconds of its processes so far."""
        return sum(cpu_s(pid) for pid in self.pids)


SYSTEMS = (
    System(name="ours", title="ours, 1 partition", client="ours", is_synced=False),
    System(name="ours_8", title="ours, 8 partitions", client="ours", is_synced=False, partitions=8),
    System(name="ours_synced", title="ours, 1 partition, flush.messages=1", client="ours", is_synced=True),
    System(name="zookeeper", title="ZooKeeper 3.9.4", client="zookeeper", is_synced=True),
    System(name="zookeeper_unsynced", title="ZooKeeper, forceSync=no", client="zookeeper", is_synced=False),
    System(name="etcd", title="etcd", client="etcd", is_synced=True),
    System(name="etcd_unsynced", title="etcd, in memory", client="etcd", is_synced=False),
)


def missing(system: System) -> str | None:
    """Return what a system lacks here, None if it can be started."""
    if system.client == "etcd" and shutil.which("etcd") is None:
        return "there is no etcd on PATH: apt-get install etcd-server"
    if system.name == "etcd_unsynced" and not MEMORY.is_dir():
        return f"there is no {MEMORY} to keep its data in"
    if system.client == "zookeeper" and importlib.util.find_spec("kazoo") is None:
        return "there is no kazoo: pip install -c constraints.txt -e '.[bench]'"
    return None


@contextlib.contextmanager
def running(system: System, folder: Path, brokers: str | None) -> Iterator[Running]:
    """Start a system for the time of the block.

    Args:
        system: which.
        folder: for its data and logs.
        brokers: a cluster for ours; one is started if there is none.
    """
    folder = folder / system.name
    folder.mkdir()
    if system.client == "ours":
        with _ours(system, folder, brokers) as found:
            yield found
    elif system.client == "zookeeper":
        with _zookeeper(system, folder) as found:
            yield found
    else:
        with _etcd(system, folder) as found:
            yield found


@contextlib.contextmanager
def _ours(system: System, folder: Path, brokers: str | None) -> Iterator[Running]:
    pids = []
    with contextlib.ExitStack() as stack:
        if brokers is None or system.is_synced:
            overrides = _EACH_WRITE if system.is_synced else {}
            cluster = stack.enter_context(start_cluster(folder, overrides=overrides))
            brokers = cluster.bootstrap
            pids = [pid for broker in cluster.broker_ids if (pid := cluster.pid(broker))]
        app = f"locks-{os.getpid()}-{system.name}"
        environment = {
            **os.environ,
            "KAFKA_URL": f"kafka://{brokers}",
            "COORDINATION_APP": app,
            "COORDINATION_PARTITIONS": str(system.partitions),
        }
        worker = start_worker("actors.coordination.app", folder / "worker", environment)
        stack.callback(_stop, worker)
        yield Running(f"{brokers}/{app}", [*pids, worker.pid])


@contextlib.contextmanager
def _zookeeper(system: System, folder: Path) -> Iterator[Running]:
    jars, port = jars_of(_ARTIFACTS, _ZOOKEEPER), free_port()
    settings = folder / "zoo.cfg"
    settings.write_text(
        f"dataDir={folder}/data\nclientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
        "maxClientCnxns=0\n"
    )
    force = f"-Dzookeeper.forceSync={'yes' if system.is_synced else 'no'}"
    main_class = "org.apache.zookeeper.server.ZooKeeperServerMain"
    command = [java(), "-XX:+UseG1GC", "-Xmx1g", force, "-cp", f"{jars}/*", main_class, str(settings)]
    with _process(command, folder, port) as pid:
        yield Running(f"127.0.0.1:{port}", [pid])


@contextlib.contextmanager
def _etcd(system: System, folder: Path) -> Iterator[Running]:
    port, peer_port = free_port(), free_port()
    client_url, peer_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    with contextlib.ExitStack() as stack:
        data = folder / "data"
        if not system.is_synced:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=MEMORY, prefix="etcd-"))) / "data"
        options = {
            "data-dir": str(data),
            "listen-client-urls": client_url,
            "advertise-client-urls": client_url,
            "listen-peer-urls": peer_url,
            "initial-advertise-peer-urls": peer_url,
            "initial-cluster": f"default={peer_url}",
        }
        etcd = shutil.which("etcd")
        if etcd is None:
            raise ToolMissingError("there is no etcd on PATH: apt-get install etcd-server")
        command = [etcd, *(f"--{name}={value}" for name, value in options.items())]
        pid = stack.enter_context(_process(command, folder, port))
        yield Running(f"127.0.0.1:{port}", [pid])


@contextlib.contextmanager
def _process(command: Sequence[str], folder: Path, port: int) -> Iterator[int]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _await_port(process, port, folder / "log")
        yield process.pid
    finally:
        _stop(process)


def _await_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until_s = time.monotonic() + READY_S
    while time.monotonic() < until_s and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.1)
    raise RuntimeError(f"{process.args!r} doesn't listen on port {port}:\n{log.read_text(errors='replace')[-2000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
