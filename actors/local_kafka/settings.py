"""The parts of a local cluster, as its state file has them, and the settings of its brokers."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from actors._core.outside import MALFORMED
from actors.local_kafka.errors import ClusterStateError
from actors.local_kafka.files import replace_text
from actors.local_kafka.processes import Process

HOST = "127.0.0.1"
STATE_FILE = "state.json"
SCRAM = "SCRAM-SHA-512"
OAUTH = "OAUTHBEARER"


@dataclass(frozen=True, slots=True)
class Broker:
    """One broker; the ports are its own for as long as the data folder lives.

    Attributes:
        id: 1 for the first.
        port: Where clients connect.
        controller_port: Where the other controllers connect.
        secure_port: Where clients connect with TLS and a password; None if they can't.
        process: The process last started for it, which may have ended; None if none was.
    """

    id: int
    port: int
    controller_port: int
    secure_port: int | None = None
    process: Process | None = None

    def running(self) -> bool:
        """Return whether the broker's process runs, paused or not."""
        return self.process is not None and self.process.running()


@dataclass(frozen=True, slots=True)
class Secure:
    """A listener beside the plain one: TLS, and users by SASL, PLAIN, SCRAM and OAUTHBEARER.

    OAUTHBEARER takes tokens without a signature, which everybody can make.

    Attributes:
        keystore: A PEM file with the brokers' key, as PKCS #8 and without a password, and their certificates.
        users: Passwords by name, for tests: they lie in the clear in the brokers' settings.
    """

    keystore: str
    users: Mapping[str, str]

    def settings(self) -> dict[str, str]:
        """Returns the broker settings."""
        words = " ".join(f'user_{name}="{password}"' for name, password in self.users.items())
        login = f"org.apache.kafka.common.security.plain.PlainLoginModule required {words};"
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.keystore,
            "sasl.enabled.mechanisms": f"PLAIN,{SCRAM},{OAUTH}",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": login,
            f"listener.name.sasl_ssl.{SCRAM.lower()}.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            # the broker logs in as nobody: the claim is there since the module asks for one
            f"listener.name.sasl_ssl.{OAUTH.lower()}.sasl.jaas.config": (
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
                'unsecuredLoginStringClaim_sub="broker";'
            ),
        }

    def format_arguments(self) -> list[str]:
        """Returns what the storage is formatted with: SCRAM's users are in the metadata, and there from the start."""
        users = [f'{SCRAM}=[name="{name}",password="{password}"]' for name, password in self.users.items()]
        return [argument for user in users for argument in ("--add-scram", user)]


@dataclass(frozen=True, slots=True)
class State:
    """A cluster as its state file has it."""

    cluster_id: str
    brokers: tuple[Broker, ...]
    overrides: Mapping[str, str]
    secure: Secure | None = None

    @property
    def bootstrap(self) -> str:
        """The brokers' addresses, separated by commas."""
        return ",".join(f"{HOST}:{broker.port}" for broker in self.brokers)

    @property
    def secure_bootstrap(self) -> str:
        """The addresses for TLS, separated by commas; empty without such a listener."""
        return ",".join(f"{HOST}:{broker.secure_port}" for broker in self.brokers if broker.secure_port is not None)

    @property
    def heap(self) -> str:
        """A broker's heap, as the JVM's flags name it."""
        return "1g" if len(self.brokers) == 1 else "512m"

    def broker(self, broker_id: int) -> Broker:
        """Returns one broker.

        Raises:
            ClusterStateError: The cluster has no such broker.
        """
        for broker in self.brokers:
            if broker.id == broker_id:
                return broker
        raise ClusterStateError(f"no broker {broker_id}: this cluster has 1 to {len(self.brokers)}")

    def with_process(self, broker_id: int, process: Process) -> "State":
        """Returns the state in which `process` runs this broker."""
        brokers = tuple(replace(b, process=process) if b.id == broker_id else b for b in self.brokers)
        return replace(self, brokers=brokers)


def save(folder: Path, state: State) -> None:
    """Writes the state file, whole."""
    replace_text(folder / STATE_FILE, json.dumps(asdict(state), indent=1) + "\n")


def load(folder: Path) -> State | None:
    """Reads the state file; None if there is none.

    Raises:
        ClusterStateError: The file is not one of ours.
    """
    path = folder / STATE_FILE
    try:
        return _state(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (*MALFORMED, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClusterStateError(f"{path} is not a state file of a local cluster: remove it by hand") from error


def _state(raw: dict[str, Any]) -> State:
    brokers = (
        Broker(**{**broker, "process": broker["process"] and Process(**broker["process"])}) for broker in raw["brokers"]
    )
    secure = raw.get("secure")
    return State(raw["cluster_id"], tuple(brokers), raw["overrides"], secure and Secure(**secure))


def server_properties(state: State, broker: Broker, *, log_dir: Path) -> str:
    """Returns the text of a broker's properties file; the state's overrides have the last word."""
    settings = _network(state, broker) | _replication(len(state.brokers)) | _FIXED
    settings |= {} if state.secure is None else state.secure.settings()
    settings |= {"log.dirs": str(log_dir), **state.overrides}
    # the format's escapes are a subset of JSON's, and it knows no character beyond latin-1
    return "".join(f"{key}={json.dumps(value)[1:-1]}\n" for key, value in settings.items())


def _network(state: State, broker: Broker) -> dict[str, str]:
    clients = f"PLAINTEXT://{HOST}:{broker.port}"
    if broker.secure_port is not None:
        clients += f",SASL_SSL://{HOST}:{broker.secure_port}"
    voters = ",".join(f"{b.id}@{HOST}:{b.controller_port}" for b in state.brokers)
    return {
        "process.roles": "broker,controller",
        "node.id": str(broker.id),
        "controller.quorum.voters": voters,
        "listeners": f"{clients},CONTROLLER://{HOST}:{broker.controller_port}",
        "advertised.listeners": clients,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
    }


def _replication(brokers: int) -> dict[str, str]:
    factor = str(min(brokers, 3))
    min_isr = "2" if brokers >= 3 else "1"
    return {
        "default.replication.factor": factor,
        "min.insync.replicas": min_isr,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": min_isr,
        "share.coordinator.state.topic.replication.factor": factor,
        "share.coordinator.state.topic.min.isr": min_isr,
    }


_FIXED = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    # few, because each is a folder, an index and a leader to elect before the first commit
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.num.partitions": "8",
    "share.coordinator.state.topic.num.partitions": "8",
    "num.network.threads": "2",
    "num.io.threads": "4",
    # a killed broker may not register again before its old session ends: 9 s by default
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
}
