"""What became of the increments, from the committed outputs and the folded changelog alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """The counts of one run.

    Attributes:
        expected: How many increments were sent.
        counted: What the last running counts of all keys add up to, as a reader of the outputs sees them.
        lost: Running counts 1..n that never came, where n is how often the key was incremented.
        doubled: Running counts that came again, or are higher than n.
        state: What the counts in the state add up to; None if that could not be read.
    """

    expected: int
    counted: int
    lost: int
    doubled: int
    state: int | None

    @property
    def is_exact(self) -> bool:
        """Whether every increment was counted once, in the outputs and in the state."""
        return self.lost == self.doubled == 0 and self.counted == self.expected and self.state == self.expected


def judge(
    inputs: Mapping[bytes, int], outputs: Iterable[tuple[bytes, int]], state: Mapping[bytes, int] | None
) -> Verdict:
    """Compare the increments sent with the running counts that came out and the counts that were kept.

    Args:
        inputs: How often each key was incremented.
        outputs: (key, running count), in any order: each key's have to be 1..n, each once.
        state: Each key's count at the end; None if it could not be read.
    """
    seen: defaultdict[bytes, Counter[int]] = defaultdict(Counter)
    for key, count in outputs:
        seen[key][count] += 1
    lost = doubled = 0
    for key in inputs.keys() | seen.keys():
        wanted = inputs.get(key, 0)
        lost += sum(count not in seen[key] for count in range(1, wanted + 1))
        doubled += sum(times - (1 <= count <= wanted) for count, times in seen[key].items())
    return Verdict(
        expected=sum(inputs.values()),
        counted=sum(max(counts, default=0) for counts in seen.values()),
        lost=lost,
        doubled=doubled,
        state=None if state is None else sum(state.values()),
    )


def fold(changelog: Iterable[tuple[bytes, int | None]]) -> dict[bytes, int]:
    """Give each key's last count; the changelog in the order of its offsets, None for a deleted key."""
    held: dict[bytes, int] = {}
    for key, count in changelog:
        if count is None:
            held.pop(key, None)
        else:
            held[key] = count
    return held
