"""A window as it lies in a list.

A module of its own, because it isn't compiled: mypyc drops the keyword `array_like=True`, and with it the format.
"""

from __future__ import annotations

import msgspec

from actors._core.windows.kinds import Window


class Held(msgspec.Struct, array_like=True, gc=False):
    """A window in a list.

    Attributes:
        start_ms, end_ms: its bounds.
        value: its value, encoded.
        last_ms: the time of its last record.
        is_closed: its close was handled.
        is_merged: a later session has taken its place, and it is here for its close alone.
    """

    start_ms: int
    end_ms: int
    value: bytes
    last_ms: int
    is_closed: bool = False
    is_merged: bool = False

    @property
    def window(self) -> Window:
        """Its bounds."""
        return Window(self.start_ms, self.end_ms)
