"""Waits between tries: exponential up to a limit.

A formula and no library: libraries for retries run the call and sleep themselves, by the machine's clock. Here a task,
an effect, a broker or aiokafka's sender keeps the count, and the simulation's clock does the waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

_MOST_EXPONENT = 100
"""Beyond any limit, and within what a float holds."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits from `first_s` to `longest_s` seconds, each `factor` times the one before."""

    first_s: float = 0.05
    longest_s: float = 5.0
    factor: float = 2.0

    def delay_s(self, failures: int) -> float:
        """Return the wait after failure number `failures`, counted from 1."""
        return float(min(self.longest_s, self.first_s * self.factor ** min(failures - 1, _MOST_EXPONENT)))

    def longer_s(self, delay_s: float) -> float:
        """Return the wait after one of `delay_s`."""
        return min(self.longest_s, delay_s * self.factor)
