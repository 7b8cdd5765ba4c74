"""A machine's clock that the product checks."""

from __future__ import annotations

from actors.runtime.clock import SystemClock
from actors.testing.fakes.ports import FakeClock


class MachineClock(FakeClock):
    """A clock of a machine; `checked` is the product's clock on it, None to believe the machine's whatever it says."""

    checked: SystemClock | None = None

    def wall_ms(self) -> int:
        """Return Unix milliseconds as this machine has them, or as far as they are believed."""
        return super().wall_ms() if self.checked is None else self.checked.wall_ms()

    def begin_to_check(self, margin_ms: int) -> None:
        """Believe the machine's clock no further than a worker does that starts now."""
        self.checked = SystemClock(
            margin_ms,
            wall_ns=lambda: super(MachineClock, self).wall_ms() * 1_000_000,
            boot_ms=lambda: int(self.monotonic() * 1000),
        )
