"""Brokers that can't be reached: how often they are tried, and what is logged about it.

aiokafka tries to connect for each request that it wants to send, ten times a second and client, and logs each failure
several times. Here all clients of a worker share what they know: a broker that refused is tried again after a back-off,
a request to it fails at once until then, and one line per interval reports it.

A broker that hangs accepts connections and never answers. It isn't tried again for as long as the last try took.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
import time
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from aiokafka.errors import KafkaConnectionError

from actors._core.backoff import Backoff
from actors._core.logs import Reminders, escaping
from actors._kafka.permissions import UNAUTHORIZED

logger = escaping(logging.getLogger(__name__))

RETRY = Backoff(0.05, longest_s=1.0)
REMIND_S = 10.0
NEEDED_S = 60.0
"""A broker that no client tried for so long isn't needed: others have its partitions, or it left the cluster."""
_FIRST_CONTACT = ('Unable connect to "%s:%s": %s', 'Unable to request metadata from "%s:%s": %s')
"""The log messages of aiokafka where a broker of the bootstrap list doesn't answer: it reports that in no other way."""
_NOISE = ("Authenticated ", "Discovered coordinator ", "Updating subscribed topics ")
_failures: ContextVar[list[str] | None] = ContextVar("actors_first_contact", default=None)
"""Why the brokers of the list don't answer the client that asks them now."""


@dataclass(slots=True)
class _Down:
    address: str
    since_s: float
    failures: int = 0
    retry_at_s: float = 0.0


class Outages:
    """The brokers of one cluster that are away."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.now_s = now_s
        self._down: dict[Any, _Down] = {}
        self.throttled_s = 0.0
        """For how long quotas held up connections, as the brokers' answers said."""
        # Brokers of the bootstrap list, by address: no metadata names one that the cluster gave up.
        self._unanswered: set[str] = set()
        self._reminders = Reminders(REMIND_S)
        _quiet.know(self)

    @property
    def ongoing(self) -> bool:
        """Return whether some broker can't be reached."""
        return bool(self._down)

    @property
    def away(self) -> list[str]:
        """The addresses of brokers that can't be reached."""
        return [down.address for down in self._down.values()]

    @property
    def unreachable(self) -> int:
        """How many brokers were tried within `NEEDED_S`, in vain."""
        now_s = self.now_s()
        return sum(now_s - down.retry_at_s < NEEDED_S for down in self._down.values())

    def is_waiting(self, node_id: Any) -> bool:
        """Return whether it is too early to try a broker again."""
        down = self._down.get(node_id)
        return down is not None and self.now_s() < down.retry_at_s

    def is_due(self, node_id: Any) -> bool:
        """Return whether a broker is away, and may be tried again."""
        return node_id in self._down and not self.is_waiting(node_id)

    @property
    def unanswered(self) -> set[str]:
        """The addresses of brokers, those of the list included, that answered no client last."""
        return {*self.away, *self._unanswered}

    @contextlib.contextmanager
    def first_contact(self) -> Iterator[None]:
        """Have the error of a first connection say why it failed, which aiokafka only logs.

        Raises:
            KafkaConnectionError: the reason is its argument, if it is known.
        """
        failures: list[str] = []
        token = _failures.set(failures)
        try:
            yield
        except KafkaConnectionError:
            raise KafkaConnectionError(*failures[-1:]) from None
        finally:
            _failures.reset(token)

    def passed_over(self, address: str, why: str) -> None:
        """Note that a broker of the list didn't answer a client's first contact."""
        self._unanswered.add(address)
        if self._reminders.is_due(self.now_s(), address):
            shown = f" ({why})" if why else ""
            logger.warning("broker %s can't be reached%s; the other brokers of the list are asked", address, shown)

    def answered(self, address: str) -> None:
        """Note that a broker of the list answered a client's first contact."""
        self._unanswered.discard(address)
        self._reminders.forget(address)

    def failed(self, node_id: Any, broker: Any, began_s: float) -> None:
        """Note that a broker took no connection in a try that began at `began_s`."""
        now_s, address = self.now_s(), f"{broker.host}:{broker.port}"
        down = self._down.setdefault(node_id, _Down(address, now_s))
        if self._reminders.is_due(now_s, node_id):
            since = f" since {now_s - down.since_s:.0f} s" if down.failures else ""
            logger.warning("broker %s can't be reached%s; it is tried again until it answers", down.address, since)
        # A broker may come back at another address.
        down.address = address
        # Spread, so that the workers of a cluster don't all come back in the same moment.
        down.failures += 1
        down.retry_at_s = now_s + max(RETRY.delay_s(down.failures), now_s - began_s) * random.uniform(0.8, 1.2)

    def reached(self, node_id: Any, broker: Any) -> None:
        """Note that a broker took a connection."""
        down = self._down.pop(node_id, None)
        if down is None:
            return
        self._reminders.forget(node_id)
        address = down.address if broker is None else f"{broker.host}:{broker.port}"
        where = "" if address == down.address else f", at {address} now"
        logger.warning("broker %s is reached again after %.1f s%s", down.address, self.now_s() - down.since_s, where)


def why_away(error: KafkaConnectionError) -> str:
    """Return why brokers of the bootstrap list don't answer, "" where that is unknown."""
    return str(error.args[0]) if error.args else ""


def _told(error: object) -> str:
    """Return why a connection failed, in words: asyncio's have addresses as Python writes them."""
    error = getattr(error, "_given", error)
    codes = {os.strerror(int(code)) for code in re.findall(r"\[Errno (\d+)\]", str(error))}
    return ", ".join(sorted(codes)) or getattr(error, "strerror", None) or str(error) or "no answer in time"


class _Quiet(logging.Filter):
    """Passes each kind of aiokafka's messages once per interval while a broker is away.

    Messages about a missing permission or a retried request are limited at any time. Routine messages of connections
    and producers become DEBUG messages.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: weakref.WeakSet[Outages] = weakref.WeakSet()
        self._reminders = Reminders(REMIND_S)

    def know(self, outages: Outages) -> None:
        """Watch another cluster, and filter the loggers that were made since."""
        self._known.add(outages)
        for name in list(logging.root.manager.loggerDict):
            if name.startswith("aiokafka"):
                escaping(logging.getLogger(name)).addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a message is to be written."""
        failures = _failures.get()
        if failures is not None and record.msg in _FIRST_CONTACT and isinstance(record.args, tuple):
            failures.append(_told(record.args[-1]))
            return False
        if record.levelno == logging.INFO and str(record.msg).startswith(_NOISE):
            # Faust's handlers have levels, and its loggers let everything pass.
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
            return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
        is_repeated = record.levelno >= logging.WARNING and (_is_denial(record) or "retrying" in str(record.msg))
        if not is_repeated and not any(outages.ongoing for outages in self._known):
            return True
        return self._reminders.is_due(time.monotonic(), (record.name, str(record.msg)))


def _is_denial(record: logging.LogRecord) -> bool:
    """Return whether a message is about a missing permission, which our own messages name."""
    error = record.exc_info[1] if record.exc_info else None
    return isinstance(error, UNAUTHORIZED) or "uthoriz" in record.getMessage()


_quiet = _Quiet()
