"""The topics that a commit is about, as text in the committed offset's metadata.

A topic that is deleted and created again has the same name, but offsets and records of the former topic mean nothing
in it. Kafka gives each topic an id that is never reused.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

_ID_BYTES = 16
_NAME_BYTES = 6
_TAG_CHARACTERS = 8
_RECREATED = "r"


@dataclass(frozen=True, slots=True)
class TopicIds:
    """The ids of an input and of the changelogs of its actor's stores, as `str(uuid)`; "" is unknown.

    `since` is the first epoch whose writes have offsets of this input: state of earlier epochs says nothing about it.
    `is_recreated` says that the app has handled another input topic of this name before, here or on another cluster.
    `message_tag` is the part of a message id that tells it from a former topic's; "" without a former topic.
    """

    input_id: str = ""
    since: int = 0
    _changelogs: Mapping[str, str] = field(default_factory=dict)
    is_recreated: bool = False
    message_tag: str = field(init=False, compare=False, repr=False)
    _text: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        stores = sorted(self._changelogs.items())
        since = f"{self.since}{_RECREATED if self.is_recreated else ''}"
        parts = [show_id(self.input_id), since, *(store + show_id(topic_id) for store, topic_id in stores)]
        # Each commit of an owner carries the text, and each message has the tag.
        object.__setattr__(self, "_text", ",".join(parts))
        tag = show_id(self.input_id)[-_TAG_CHARACTERS:] if self.is_recreated else ""
        object.__setattr__(self, "message_tag", tag)

    @classmethod
    def of(cls, input_id: str, changelogs: Mapping[str, str], since: int = 0) -> TopicIds:
        """Make it from the input's id and those of the changelogs, by store."""
        return cls(input_id, since).with_changelogs(changelogs)

    def changelog_id(self, *names: str) -> str:
        """Return the id of a store's changelog. The store may have several names; "" if none of them is known."""
        return next((topic_id for name in names if (topic_id := self._changelogs.get(_short(name)))), "")

    def with_changelogs(self, changelogs: Mapping[str, str]) -> TopicIds:
        """Return the same with other ids of the changelogs of these stores."""
        ids = {_short(store): topic_id for store, topic_id in changelogs.items()}
        return replace(self, _changelogs={**self._changelogs, **ids})

    def encode(self) -> str:
        """Return the ids as text without `;`, `.` and `~`: input id, `since`, then a part for each store."""
        return self._text


@functools.lru_cache(maxsize=4096)
def decode_topic_ids(text: str) -> TopicIds:
    """Decode what `TopicIds.encode` returned. Looks read the ids of all tasks again and again.

    Raises:
        ValueError: it isn't that.
    """
    packed_input, epoch, *stores = text.split(",")
    since = epoch.removesuffix(_RECREATED)
    if not (since.isascii() and since.isdecimal() and len(since) <= 18):
        raise ValueError(f"{since!r} is no epoch")
    length = len(_short(""))
    if any(len(part) < length for part in stores):
        raise ValueError(f"{text!r} has a store without a name")
    changelogs = {part[:length]: _unpack(part[length:]) for part in stores}
    return TopicIds(_unpack(packed_input), int(since), changelogs, is_recreated=since != epoch)


@functools.lru_cache(maxsize=4096)
def _short(store: str) -> str:
    digest = hashlib.blake2b(store.encode(), digest_size=_NAME_BYTES).digest()
    return base64.urlsafe_b64encode(digest).decode()


@functools.lru_cache(maxsize=4096)
def show_id(topic_id: str) -> str:
    """Return a topic's id as Kafka's tools show it."""
    return base64.urlsafe_b64encode(uuid.UUID(topic_id).bytes).decode().rstrip("=") if topic_id else ""


def _unpack(text: str) -> str:
    if not text:
        return ""
    try:
        raw = base64.b64decode(f"{text}==", altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text!r} is no topic id") from error
    if len(raw) != _ID_BYTES:
        raise ValueError(f"{text!r} is no topic id")
    return str(uuid.UUID(bytes=raw))


NO_IDS = TopicIds()
