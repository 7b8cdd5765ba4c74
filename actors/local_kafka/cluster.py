"""A Kafka cluster on this machine: brokers that are started together, and end together.

Everything about a cluster is in its folder: the state file, and for each broker its properties, data and log.
Each broker is a controller too, so a cluster of three goes on with any two of them.
"""

import base64
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from actors.local_kafka import jars, settings
from actors.local_kafka.errors import BrokerNotReadyError, ClusterStateError, LocalKafkaError
from actors.local_kafka.files import locked
from actors.local_kafka.ports import free_ports, is_free
from actors.local_kafka.probe import alive_brokers
from actors.local_kafka.processes import Process, spawn
from actors.local_kafka.settings import HOST, STATE_FILE, Broker, Secure, State

_READY_TIMEOUT_S = 60.0
# the last brokers of a quorum wait for a controller that is gone too: no reason to wait with them
_DOWN_TIMEOUT_S = 5.0
_DOWN_AND_DELETE_TIMEOUT_S = 1.0
KILL_TIMEOUT_S = 10.0
_POLL_S = 0.05
LOCK_FILE = "lock"
_FULL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster in a folder. Calls block: in a running event loop, make them by `asyncio.to_thread`.

    The state file is read at each call, so several objects, or a test and the command line, may hold one
    cluster. As a context manager it takes the cluster down at the end and deletes its data.

    Attributes:
        folder: Where everything about the cluster is.
        bootstrap: The brokers' addresses, `127.0.0.1:port,...`; the ports stay when brokers start again.
        secure_bootstrap: Their addresses for TLS and SASL; empty if there is no such listener.
    """

    folder: Path
    bootstrap: str
    secure_bootstrap: str = ""

    @classmethod
    def up(
        cls,
        folder: Path,
        *,
        brokers: int = 1,
        overrides: Mapping[str, str] | None = None,
        secure: Secure | None = None,
        port: int | None = None,
    ) -> Self:
        """Starts the cluster in `folder`, or those brokers of it that do not run; waits until all are ready.

        Args:
            folder: Created if there is none. A cluster that was taken down there goes on with its data.
            brokers: How many: 1, or 3 and more for replication.
            overrides: Broker settings that replace this module's; they stay for later starts. None keeps
                those of the last time.
            secure: A second listener, with TLS and SASL, for a cluster that is made now.
            port: Of the first broker of a cluster that is made now; any free one by default.

        Raises:
            ToolMissingError: There is no Java that is new enough, or no jgo to fetch Kafka's jars with.
            ClusterStateError: The folder holds a cluster with another number of brokers, or another port; or the port
                is taken.
            BrokerNotReadyError: A broker ended or was not ready in a minute; those started here are killed.
        """
        jars.java()
        jars.ensure_jars()
        folder = folder.absolute()
        with locked(folder / LOCK_FILE):
            state = _prepare(folder, brokers, overrides, secure, port)
            missing = [broker for broker in state.brokers if not broker.running()]
            _format(folder, state, missing)
            state = start(folder, state, missing, awaited=[broker.id for broker in state.brokers])
        return cls(folder, state.bootstrap, state.secure_bootstrap)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down(delete=True)

    def pid(self, broker_id: int) -> int | None:
        """Returns a broker's process id, or None if it does not run."""
        broker = state_in(self.folder).broker(broker_id)
        return broker.process.pid if broker.process is not None and broker.running() else None

    def why_ended(self, broker_id: int) -> str:
        """Returns why a broker ended, as far as its log says it, or the disk."""
        if shutil.disk_usage(self.folder).free < _FULL_BYTES:
            return f"the disk of {self.folder} is full: free some space"
        return _why(self.folder, broker_id)

    def down(self, *, delete: bool = False) -> None:
        """Ends all brokers: SIGTERM, then SIGKILL for those that still run after 5 s, or 1 s with `delete`.

        May be called twice.

        Args:
            delete: Whether to delete the cluster's data, and its folder if nothing else is in it.
        """
        if not (self.folder / STATE_FILE).exists():
            return
        with locked(self.folder / LOCK_FILE):
            state = settings.load(self.folder)
            if state is None:
                return
            processes = processes_of(state, [broker.id for broker in state.brokers])
            if not terminate(processes, _DOWN_AND_DELETE_TIMEOUT_S if delete else _DOWN_TIMEOUT_S):
                kill(processes)
            if delete:
                _delete(self.folder, state)


def state_in(folder: Path) -> State:
    """Returns the state of the cluster in a folder; `ClusterStateError` if there is none."""
    state = settings.load(folder)
    if state is None:
        raise ClusterStateError(f"no cluster in {folder}: start one with up")
    return state


def home_of(folder: Path, broker_id: int) -> Path:
    """Returns a broker's folder."""
    return folder / f"broker-{broker_id}"


def _prepare(
    folder: Path, brokers: int, overrides: Mapping[str, str] | None, secure: Secure | None, port: int | None
) -> State:
    if brokers < 1:
        raise ClusterStateError("a cluster has one broker at least")
    state = settings.load(folder)
    if state is None:
        ports = free_ports(3 * brokers + 1)
        if port is not None:
            if not is_free(port):
                raise ClusterStateError(f"port {port} of {HOST} is taken: name another one, or end what listens there")
            ports = [port, *(other for other in ports if other != port)]
        nodes = tuple(
            Broker(i + 1, ports[3 * i], ports[3 * i + 1], None if secure is None else ports[3 * i + 2])
            for i in range(brokers)
        )
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        # a leading dash would be taken for an option
        state = State("k" + cluster_id[1:], nodes, dict(overrides or {}), secure)
    elif port not in (None, state.brokers[0].port):
        have = state.brokers[0].port
        raise ClusterStateError(f"{folder} holds a cluster on port {have}, not {port}: down --delete first")
    elif len(state.brokers) != brokers:
        have = len(state.brokers)
        raise ClusterStateError(f"{folder} holds a cluster with brokers={have}, not {brokers}: down --delete first")
    elif overrides is not None:
        state = replace(state, overrides=dict(overrides))
    settings.save(folder, state)
    return state


def _format(folder: Path, state: State, brokers: Iterable[Broker]) -> None:
    running: list[tuple[Broker, subprocess.Popen[str]]] = []
    for broker in brokers:
        properties = _write_properties(folder, state, broker)
        if (home_of(folder, broker.id) / "data" / "meta.properties").exists():
            continue
        users = () if state.secure is None else state.secure.format_arguments()
        args = ("format", "--cluster-id", state.cluster_id, "--config", str(properties), "--ignore-formatted", *users)
        command = jars.tool_command(jars.STORAGE_TOOL, *args)
        tool = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        running.append((broker, tool))
    # all of them first: each is a second of JVM, and they do not depend on each other
    results = [(broker, tool.communicate()[0], tool.returncode) for broker, tool in running]
    for broker, output, code in results:
        if code != 0:
            why = _telling(output, last=False) or output.strip()[-300:]
            raise LocalKafkaError(f"the storage of broker {broker.id} could not be formatted: {why}")


def _write_properties(folder: Path, state: State, broker: Broker) -> Path:
    home = home_of(folder, broker.id)
    home.mkdir(parents=True, exist_ok=True)
    path = home / "server.properties"
    path.write_text(settings.server_properties(state, broker, log_dir=home / "data"), encoding="ascii")
    return path


def start(folder: Path, state: State, brokers: Iterable[Broker], *, awaited: Iterable[int]) -> State:
    """Starts brokers and waits until the awaited ones are ready; else those started here are killed."""
    started: list[Process] = []
    try:
        for broker in brokers:
            home = home_of(folder, broker.id)
            properties = _write_properties(folder, state, broker)
            command = jars.broker_command(properties, log_file=home / "broker.log", heap=state.heap)
            started.append(spawn(command, home / "stdout.log"))
            # saved one by one: whatever happens next, `down` knows of it
            state = state.with_process(broker.id, started[-1])
            settings.save(folder, state)
        _await_ready(folder, state, frozenset(awaited))
    except BaseException:
        kill(started)
        raise
    return state


def _await_ready(folder: Path, state: State, awaited: frozenset[int]) -> None:
    brokers = [state.broker(broker_id) for broker_id in sorted(awaited)]
    waiting = list(brokers)

    def ready() -> bool:
        for broker in brokers:
            if not broker.running():
                raise BrokerNotReadyError(f"broker {broker.id} ended while starting: {_why(folder, broker.id)}")
        waiting[:] = [broker for broker in waiting if not awaited <= seen_by(broker)]
        return not waiting

    if not poll(ready, _READY_TIMEOUT_S):
        late = ", ".join(str(broker.id) for broker in waiting)
        why = _why(folder, waiting[0].id)
        raise BrokerNotReadyError(f"not ready after {_READY_TIMEOUT_S:g} s: broker {late}: {why}")


def seen_by(broker: Broker) -> frozenset[int]:
    """Returns the brokers that a broker sees; none if it does not answer."""
    # each broker is asked for its own view, because another's may still hold the one from before a restart
    try:
        return frozenset(endpoint.id for endpoint in alive_brokers(HOST, broker.port))
    except OSError:
        return frozenset()


def _why(folder: Path, broker_id: int) -> str:
    home = home_of(folder, broker_id)
    for path in (home / "broker.log", home / "stdout.log"):
        with suppress(OSError):
            telling = _telling(path.read_text(errors="replace"), last=True)
            if telling:
                return f"{telling} ({path})"
    return f"see {home}"


def _telling(output: str, *, last: bool) -> str:
    lines = [line.strip() for line in output.splitlines() if "Exception" in line or "error" in line.lower()]
    return lines[-1 if last else 0][:300] if lines else ""


def processes_of(state: State, broker_ids: Iterable[int]) -> list[Process]:
    """Returns the processes of some brokers, also those that ended."""
    brokers = (state.broker(broker_id) for broker_id in broker_ids)
    return [broker.process for broker in brokers if broker.process is not None]


def terminate(processes: Iterable[Process], timeout_s: float) -> bool:
    """Ends processes by SIGTERM; returns False if one still runs then."""
    processes = list(processes)
    deadline = time.monotonic() + timeout_s
    for process in processes:
        process.send(signal.SIGTERM)
        process.send(signal.SIGCONT)  # a paused process acts on no other signal
    ended = [process.wait(deadline - time.monotonic()) for process in processes]
    return all(ended)


def kill(processes: Iterable[Process]) -> None:
    """Kills processes (SIGKILL) and waits until they are gone."""
    processes = list(processes)
    for process in processes:
        process.send(signal.SIGKILL)
    for process in processes:
        if not process.wait(KILL_TIMEOUT_S):
            raise LocalKafkaError(f"process {process.pid} still runs {KILL_TIMEOUT_S:g} s after SIGKILL")


def _delete(folder: Path, state: State) -> None:
    # only what is ours: the folder may be one that a person named by mistake
    for broker in state.brokers:
        shutil.rmtree(home_of(folder, broker.id), ignore_errors=True)
    (folder / STATE_FILE).unlink()
    (folder / LOCK_FILE).unlink()
    with suppress(OSError):
        folder.rmdir()


def poll(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Waits until a condition is true; returns False if it is not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True
