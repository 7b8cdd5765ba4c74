"""How many files and connections a worker may have open, against what its partitions need."""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterable, Sequence

from actors._core.logs import escaping
from actors.errors import ConfigurationError
from actors.runtime.spec import ActorSpec

logger = escaping(logging.getLogger(__name__))

FILES_OF_PROCESS = 48
"""Of the interpreter, the log, the data folder, the web server, and a few requests to it."""
CLIENTS = 5
"""How many clients connect to each broker, whatever the worker owns."""
FILES_OF_STORE = 16
"""Of a database: 7 while it is empty, and its tables. A large one has more."""
CONNECTIONS_OF_TASK = 2
"""To each broker: to leaders and to coordinators."""
UNLIMITED = 1 << 20
"""To what a limit is raised that has no end."""


def require_open_files(stores: int) -> None:
    """Raise the limit of open files as far as the process may, and refuse one that not even a partition fits in.

    Args:
        stores: how many stores the actor with the most has.

    Raises:
        ConfigurationError: naming the limit and how it is raised.
    """
    if (few := why_none_fits(stores)) is not None:
        raise ConfigurationError(". ".join(few))


def why_none_fits(stores: int) -> tuple[str, str] | None:
    """Return why not even a partition fits in the limit of open files, and what to do, else None; it is raised."""
    limit, least = _raised(), FILES_OF_PROCESS + CLIENTS + _of_task(stores, 1)
    if limit >= least:
        return None
    what = f"this process may have {limit} files and connections open, and needs {least} for a single partition"
    return what, _advice(least)


def warn_open_files(specs: Iterable[ActorSpec], brokers: int) -> None:
    """Warn if the limit is reached when this worker owns all partitions of the app, as when it is the last one."""
    few = why_few_files([(spec.partition_count, len(spec.stores)) for spec in specs], brokers)
    if few is not None:
        logger.warning("%s. %s", *few)


def why_few_files(actors: Sequence[tuple[int, int]], brokers: int) -> tuple[str, str] | None:
    """Return why the limit is too low for a worker that owns all partitions of the app, and what to do; else None.

    `actors` has the number of partitions and of stores of each.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = sum(partitions * _of_task(stores, brokers) for partitions, stores in actors)
    most = FILES_OF_PROCESS + CLIENTS * brokers + files
    if limit == resource.RLIM_INFINITY or limit >= most:
        return None
    what = (
        f"this process may have {limit} files and connections open, and would need about {most} if it owned all "
        f"{sum(partitions for partitions, _ in actors)} partitions of the app's actors: partitions for which none are "
        "left stand still"
    )
    return what, _advice(most)


def _of_task(stores: int, brokers: int) -> int:
    return stores * FILES_OF_STORE + CONNECTIONS_OF_TASK * brokers


def _raised() -> int:
    """Raise the soft limit to the hard limit if the system allows it; return the new soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = UNLIMITED if hard == resource.RLIM_INFINITY else min(hard, UNLIMITED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError) as error:
            logger.info("the limit of %d open files can't be raised to %d: %s", soft, wanted, error)
        else:
            soft = wanted
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def _advice(needed: int) -> str:
    wanted = 1 << max(12, needed.bit_length())
    return (
        f"Raise the limit: `ulimit -n {wanted}` in the shell that starts it, LimitNOFILE={wanted} for systemd, or "
        f"--ulimit nofile={wanted} for docker"
    )
