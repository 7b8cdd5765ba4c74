"""Positions in a store's changelog, as the ids of events have them: `3:1841@1c2d3e4f.1764438000`.

Partitions with their next offsets; then, where a worker wrote it, the end of the changelog's id, and the time in Unix
seconds at which the client was known to have everything before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from actors.web.problems import bad_request

TAG_CHARACTERS = 8
MAX_CHARACTERS = 8_000
MAX_OFFSET = 2**63 - 1
_POSITION = re.compile(r"(\d{1,6}:\d{1,19}(?:,\d{1,6}:\d{1,19})*)(?:@([0-9A-Za-z-]{1,8})\.(\d{1,12}))?")


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A point in the partitions of a changelog.

    Attributes:
        offsets: the next offsets by partition.
        tag: the end of the changelog's id, "" if unknown.
        at_s: when the position was the end of the log or before it, Unix seconds; 0 if unknown.
    """

    offsets: Mapping[int, int]
    tag: str = ""
    at_s: int = 0

    @classmethod
    def parse(cls, text: str) -> StreamPosition:
        """Read a position; `Problem` if it isn't one."""
        match = _POSITION.fullmatch(text) if len(text) <= MAX_CHARACTERS and text.isascii() else None
        pairs = [] if match is None else [pair.split(":") for pair in match[1].split(",")]
        offsets = {int(partition): int(offset) for partition, offset in pairs}
        if match is None or len(offsets) < len(pairs) or max(offsets.values()) > MAX_OFFSET:
            raise bad_request(
                "bad-position", f"{text[:100]!r} is no position: send the id of an event, or PARTITION:OFFSET"
            )
        return cls(offsets, match[2] or "", int(match[3] or 0))

    def __str__(self) -> str:
        offsets = ",".join(f"{partition}:{offset}" for partition, offset in self.offsets.items())
        return f"{offsets}@{self.tag}.{self.at_s}" if self.tag else offsets
