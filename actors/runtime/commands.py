"""Admin commands: records of an actor's own input that retry or drop what is parked, or what stopped its partition.

    fa-control       the `Command` as JSON
    fa-control-mac   HMAC-SHA256 of app, topic and its id, partition, record key and the bytes of `fa-control`, by a key
                     that the workers and their administrators share

A command is carried out by the partition's owner, in order with the other records, exactly once. Any producer of the
input can write such a record, so an owner that has the key ignores commands without a valid MAC.

A command that is produced again, by somebody who read it, has a valid MAC. So it says `before`, the end of the input
when it was given, and is about nothing that was written by later input. Carrying it out is later input: what it did to
an entry, and whatever is parked afterwards, is out of its reach.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from actors._core.outside import MALFORMED
from actors.ports import InputRecord
from stores._core.record import WriteMetadata

CONTROL_HEADER = "fa-control"
MAC_HEADER = "fa-control-mac"
KEY_PURPOSE = b"admin commands"
"""The purpose with which the key is derived from the workers' secret."""
ALL = "*"
"""In the place of an id: all of a line."""


class RefusedCommandError(ValueError):
    """A command isn't carried out: it can't be read, or nobody who has the key gave it."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A control record.

    Attributes:
        actor: the actor's name.
        what: "message" or "effect": the parked messages, or effects, of the key. "timer": the timer of the key that
            has that id, which is dropped. "internal": the internal message of that id, which stopped the partition; its
            task looks for such commands ahead of all others: see `about`.
        command: "retry" hands the line to the handler again, up to the first that fails; "drop" forgets.
        id: which one to drop; None the first, `ALL` all. Of effects only the first of a key is ever parked.
        before: the command is about entries that input before this offset wrote; None: about all.
    """

    actor: str
    what: Literal["message", "effect", "timer", "internal"]
    command: Literal["retry", "drop"]
    id: str | None = None
    before: int | None = None


@dataclass(frozen=True, slots=True)
class CommandKey:
    """Signs and checks the commands to one input of an app.

    `secrets` gives the keys that are taken, the first of which signs. If there is none, all commands are obeyed.
    """

    app: str
    topic: str
    topic_id: str
    secrets: Callable[[], Sequence[bytes]]

    def headers(self, partition: int, key: bytes | None, told: bytes) -> list[tuple[str, bytes]]:
        """Return the headers of a command's record."""
        macs = [self._mac(secret, partition, key, told) for secret in self.secrets()[:1]]
        return [(CONTROL_HEADER, told), *((MAC_HEADER, mac) for mac in macs)]

    def read(self, partition: int, record: InputRecord) -> Command:
        """Read the command of a record that has `CONTROL_HEADER`.

        Raises:
            RefusedCommandError: it can't be read, or its MAC is missing or wrong.
        """
        told = control_of(record) or b""
        secrets = self.secrets()
        if secrets:
            given = next((raw for name, raw in record.headers if name == MAC_HEADER), None)
            if given is None:
                raise RefusedCommandError(
                    f"it isn't signed: the header {MAC_HEADER} is missing. A producer of the topic wrote it, or a "
                    "program without the workers' secret"
                )
            valid = [self._mac(secret, partition, record.key, told) for secret in secrets]
            if not any(hmac.compare_digest(given, mac) for mac in valid):
                raise RefusedCommandError("its signature is wrong: it was signed with another secret, or for elsewhere")
        try:
            command = msgspec.json.decode(told, type=Command)
        except MALFORMED as error:
            raise RefusedCommandError(f"it can't be read: {error}") from error
        if secrets and command.before is None:
            raise RefusedCommandError("`before` is missing, the offset up to which it applies")
        return command

    def about(self, partition: int, record: InputRecord, internal: tuple[str, str], reached: int) -> str | None:
        """Return a record's command about the internal message (actor, id) that stopped its partition.

        `reached` is the offset up to which the partition is committed: a command from before is about an earlier stop.

        Raises:
            RefusedCommandError: as `read`.
        """
        if control_of(record) is None:
            return None
        command = self.read(partition, record)
        is_meant = command.what == "internal" and (command.actor, command.id) == internal
        is_past = command.before is not None and reached > command.before
        return command.command if is_meant and not is_past else None

    def _mac(self, secret: bytes, partition: int, key: bytes | None, told: bytes) -> bytes:
        parts = [part.encode() for part in (self.app, self.topic, self.topic_id, str(partition))]
        parts += [b"" if key is None else b"k" + key, told]
        return hmac.new(secret, b"".join(b"%d:" % len(part) + part for part in parts), hashlib.sha256).digest()


OPEN_COMMANDS = CommandKey(app="", topic="", topic_id="", secrets=tuple)
"""Obeys all commands."""


def control_of(record: InputRecord) -> bytes | None:
    """Return a record's command as it came; None if it has none."""
    for name, told in record.headers:
        if name == CONTROL_HEADER:
            return told or b""
    return None


def is_command(record: InputRecord) -> bool:
    """Return whether a record is a command, which is no message of any actor."""
    for name, _ in record.headers:  # noqa: SIM110  called for each record with headers: any() makes a generator
        if name == CONTROL_HEADER:
            return True
    return False


def written_by(metadata: WriteMetadata, home_offset: int | msgspec.UnsetType | None) -> int:
    """Return the offset of the actor's first input, to which commands go, behind which an entry was written.

    Offsets of other inputs can't be compared with a command's: what these wrote says how far the first one was handled.
    """
    return (home_offset or 0) - 1 if metadata.input else metadata.source_offset


def is_over(command: Command, offset: int) -> bool:
    """Return whether a command isn't about the writes of input at `offset`."""
    return command.before is not None and offset >= command.before
