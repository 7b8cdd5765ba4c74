"""The local cluster for tests: brokers that can be killed, stopped, paused and started again."""

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from actors.local_kafka import cluster as local
from actors.local_kafka.errors import ClusterStateError, LocalKafkaError
from actors.local_kafka.files import locked
from actors.local_kafka.settings import HOST, Broker

STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """One broker as `Cluster.status` found it.

    Attributes:
        id: The broker.
        port: Its port on 127.0.0.1.
        pid: Its process, or None if it does not run.
        state: `running`, `starting` (it does not answer yet, or is fenced), `paused` or `down`.
    """

    id: int
    port: int
    pid: int | None
    state: str


class Cluster(local.Cluster):
    """A cluster in a folder, whose brokers can be broken one by one."""

    __slots__ = ()

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Returns the cluster in `folder`, whether it runs or not; starts nothing.

        Raises:
            ClusterStateError: There is none.
        """
        folder = folder.absolute()
        state = local.state_in(folder)
        return cls(folder, state.bootstrap, state.secure_bootstrap)

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """The brokers' ids, from 1."""
        return tuple(broker.id for broker in local.state_in(self.folder).brokers)

    def address(self, broker_id: int) -> str:
        """Returns one broker's `127.0.0.1:port`."""
        return f"{HOST}:{local.state_in(self.folder).broker(broker_id).port}"

    def log_file(self, broker_id: int) -> Path:
        """Returns the path of a broker's log."""
        return local.home_of(self.folder, broker_id) / "broker.log"

    def data_dir(self, broker_id: int) -> Path:
        """Returns the folder with a broker's partitions, for `DumpLogSegments` and the like."""
        return local.home_of(self.folder, broker_id) / "data"

    def kill(self, broker_id: int) -> None:
        """Kills a broker (SIGKILL) and waits until it is gone. Nothing to do if it does not run."""
        local.kill(local.processes_of(local.state_in(self.folder), [broker_id]))

    def stop(self, broker_id: int, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stops a broker in good order (SIGTERM) and waits until it is gone.

        Raises:
            LocalKafkaError: It still runs after `timeout_s` seconds, as it does without a quorum.
        """
        if not local.terminate(local.processes_of(local.state_in(self.folder), [broker_id]), timeout_s):
            raise LocalKafkaError(f"broker {broker_id} still runs {timeout_s:g} s after SIGTERM: is there a quorum?")

    def start(self, broker_id: int) -> None:
        """Starts a broker on its old port and data, if it does not run; waits until it is unfenced.

        Raises:
            BrokerNotReadyError: It ended or was not ready in a minute, as happens without a quorum.
        """
        with locked(self.folder / local.LOCK_FILE):
            state = local.state_in(self.folder)
            broker = state.broker(broker_id)
            local.start(self.folder, state, [] if broker.running() else [broker], awaited=[broker_id])

    def pause(self, broker_id: int) -> None:
        """Freezes a broker (SIGSTOP): its connections stay open and nothing answers."""
        self._signal(broker_id, signal.SIGSTOP)
        self._await_paused(broker_id, paused=True)

    def resume(self, broker_id: int) -> None:
        """Lets a paused broker go on (SIGCONT). It may be fenced at first: `start` waits until it is not."""
        self._signal(broker_id, signal.SIGCONT)
        self._await_paused(broker_id, paused=False)

    def status(self) -> tuple[BrokerStatus, ...]:
        """Returns how each broker does."""
        return tuple(_status(broker) for broker in local.state_in(self.folder).brokers)

    def _signal(self, broker_id: int, signum: signal.Signals) -> None:
        sent = [process.send(signum) for process in local.processes_of(local.state_in(self.folder), [broker_id])]
        if sent != [True]:
            raise ClusterStateError(f"broker {broker_id} does not run: start it first")

    def _await_paused(self, broker_id: int, *, paused: bool) -> None:
        process = local.state_in(self.folder).broker(broker_id).process
        # the signal is delivered by the kernel a moment after the call that sends it
        if process is not None and not local.poll(lambda: process.paused() == paused, local.KILL_TIMEOUT_S):
            raise LocalKafkaError(f"broker {broker_id} did not {'pause' if paused else 'resume'}")


def _status(broker: Broker) -> BrokerStatus:
    if broker.process is None or not broker.running():
        return BrokerStatus(broker.id, broker.port, None, "down")
    if broker.process.paused():
        state = "paused"
    else:
        state = "running" if broker.id in local.seen_by(broker) else "starting"
    return BrokerStatus(broker.id, broker.port, broker.process.pid, state)
