"""Which inputs of a partition are finished, when those of different keys are handled side by side.

Kafka keeps one offset per partition: all before it is finished. What is finished behind it goes into the offset's
metadata as a bitmap, in the same commit as its effects; the next owner passes it over. So a slow message holds up
neither the effects of the others nor the answer that it waits for itself.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Iterable

SPAN = 12_000
"""How far behind the first unfinished input others may be begun: their bitmap has to fit into an offset's metadata, of
which a broker takes 4,096 bytes by default (`offset.metadata.max.bytes`), beside the ids of sixty changelogs."""


class CompletedOffsets:
    """Where a task is in its input.

    Attributes:
        next_offset: all inputs before it are finished.
        finished: the offsets of finished inputs behind it.
        reached: the offset behind the last input that is finished.
    """

    def __init__(self, next_offset: int, finished: Iterable[int] = ()) -> None:
        self.next_offset = next_offset
        self.finished = {offset for offset in finished if offset >= next_offset}
        self.reached = max(self.finished, default=next_offset - 1) + 1
        self._begun: deque[int] = deque()

    def may_begin(self, offset: int) -> bool:
        """Return whether an input may be begun now, or has to wait until earlier ones are finished."""
        return offset - self.next_offset < SPAN or not self._begun

    def begin(self, offset: int) -> bool:
        """Note that an input, the next after all that were begun, is begun; tell whether it isn't finished already."""
        self._begun.append(offset)
        if offset in self.finished:
            self._advance()
            return False
        return True

    def finish(self, offset: int) -> None:
        """Note that an input that was begun is finished."""
        self.finished.add(offset)
        if offset >= self.reached:
            self.reached = offset + 1
        self._advance()

    @property
    def oldest(self) -> int | None:
        """The first input that was begun and isn't finished."""
        return self._begun[0] if self._begun else None

    def skip_to(self, offset: int) -> None:
        """Note that there is no input before `offset` that isn't finished."""
        self.next_offset = offset
        self.reached = max(self.reached, offset)
        if self.finished:
            self.finished = {later for later in self.finished if later >= offset}

    def _advance(self) -> None:
        begun, finished = self._begun, self.finished
        while begun and begun[0] in finished:
            offset = begun.popleft()
            finished.remove(offset)
            self.next_offset = offset + 1


def encode_finished(next_offset: int, finished: Iterable[int]) -> str:
    """Return the offsets behind `next_offset` as text: base64 of a little-endian bitmap, bit 0 being `next_offset`."""
    bits = 0
    for offset in finished:
        bits |= 1 << (offset - next_offset)
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


def decode_finished(next_offset: int, text: str) -> set[int]:
    """Read what `encode_finished` wrote.

    Raises:
        ValueError: it isn't that.
    """
    raw = base64.b64decode(text, validate=True)
    return {next_offset + 8 * place + bit for place, byte in enumerate(raw) for bit in range(8) if byte >> bit & 1}
