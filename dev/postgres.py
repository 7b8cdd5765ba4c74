"""PostgreSQL on this machine, for tests and for trying things out: `python -m dev.postgres up | down`."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from actors.local_kafka.settings import HOST
from dev import parts
from dev.parts import Part, PartError

_PLACES = Path("/usr/lib/postgresql")
_USERS = ("postgres", "nobody")
# a test's database is nothing that has to survive the machine
_SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_wal_senders": "50",
    "max_replication_slots": "50",
    "shared_buffers": "32MB",
    "fsync": "off",
}
_SQL_TIMEOUT_S = 60.0


def programs() -> Path:
    """Return the folder with the server's programs: that of PATH, or Debian's newest.

    Raises:
        PartError: PostgreSQL isn't installed.
    """
    server = shutil.which("postgres")
    candidates = [Path(server).resolve().parent] if server else []
    candidates += sorted(_PLACES.glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    for folder in candidates:
        if (folder / "initdb").exists():
            return folder
    raise PartError("PostgreSQL isn't installed: apt-get install --no-install-recommends postgresql")


def up(folder: Path) -> Part:
    """Start the database server of a folder, unless it runs, and wait until it answers.

    Its address is that of the database `postgres`, with a user who may do everything and needs no password. Logical
    replication is on.

    Raises:
        PartError: It isn't installed or doesn't start.
        LocalKafkaError: There is no free port.
    """
    folder = folder.absolute()
    with parts.starting(folder, "postgresql") as state:
        if isinstance(state, Part):
            return state
        port, data, tools = parts.port_of(state), folder / "data", programs()
        if not data.exists():
            _make(data, tools)
        settings = [word for key, value in (_SETTINGS | {"port": port}).items() for word in ("-c", f"{key}={value}")]
        address = f"postgresql://postgres@{HOST}:{port}/postgres"
        probe = [str(tools / "pg_isready"), "-q", "-d", address]
        return Part.start(
            folder,
            address,
            [*_as_a_user(), str(tools / "postgres"), "-D", str(data), *settings],
            ready=lambda: subprocess.run(probe, check=False).returncode == 0,
            stop_signal=signal.SIGINT,  # SIGTERM waits for all clients
        )


def _make(data: Path, tools: Path) -> None:
    command = [str(tools / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
    done = subprocess.run([*_as_a_user(), *command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shutil.rmtree(data, ignore_errors=True)
        raise PartError(f"initdb failed: {done.stderr.strip()[-300:]}")


def _as_a_user() -> Sequence[str]:
    """Return what a command begins with so that it doesn't run as root, which PostgreSQL refuses."""
    if os.geteuid() != 0:
        return ()
    names = {user.pw_name for user in pwd.getpwall()}
    name = next(name for name in _USERS if name in names)
    user = pwd.getpwnam(name)
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise PartError("PostgreSQL refuses root, and setpriv, which changes the user, is missing: install util-linux")
    # it may enter folders of root's, such as those of tests
    capabilities = ("--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override")
    return (setpriv, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", *capabilities)


def run_sql(address: str, *statements: str) -> str:
    """Run statements one after the other, each in a transaction of its own; return what the last one selects as CSV.

    Raises:
        PartError: The database refuses one.
    """
    command = [str(programs() / "psql"), "-X", "-q", "-t", "--csv", "-v", "ON_ERROR_STOP=1", "-d", address]
    output = ""
    for statement in statements:
        done = subprocess.run(
            command, input=statement, capture_output=True, text=True, timeout=_SQL_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise PartError(f"{statement}: {done.stderr.strip()}")
        output = done.stdout
    return output


main = parts.commands("postgres", "A PostgreSQL on this machine, with logical replication.", up)

if __name__ == "__main__":
    main(prog_name="python -m dev.postgres")
