"""What became of the increments, from the committed outputs and the folded changelog alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """The counts of one run.

    Attributes:
        expected: How many increments were sent.
        counted: What the highest running counts of all keys add up to, as a reader of the outputs sees them.
        lost: Increments that no output tells of.
        doubled: Outputs that tell of an increment again, or of one that was never sent.
        wrong_counts: Increments whose (first) output has another running count than their place among their key's.
        state: What the counts in the state add up to; None if that could not be read.
        wrong_keys: Keys whose count in the state isn't what was sent; None likewise.
    """

    expected: int
    counted: int
    lost: int
    doubled: int
    wrong_counts: int
    state: int | None
    wrong_keys: int | None

    @property
    def is_exact(self) -> bool:
        """Whether every increment was counted once, in the outputs and in the state."""
        return self.lost == self.doubled == self.wrong_counts == 0 and self.wrong_keys == 0


def judge(
    inputs: Mapping[bytes, Sequence[int]], outputs: Iterable[tuple[bytes, int, int]], state: Mapping[bytes, int] | None
) -> Verdict:
    """Compare the increments sent with the outputs that tell of them and with the counts that were kept.

    Args:
        inputs: Each key's increments in the order of its partition, by number.
        outputs: (key, running count, number of the increment), in the order of their partition.
        state: Each key's count at the end; None if it could not be read.
    """
    places = {(key, number): place for key, numbers in inputs.items() for place, number in enumerate(numbers, 1)}
    times: Counter[tuple[bytes, int]] = Counter()
    highest: defaultdict[bytes, int] = defaultdict(int)
    wrong_counts = 0
    for key, count, number in outputs:
        times[key, number] += 1
        highest[key] = max(highest[key], count)
        wrong_counts += times[key, number] == 1 and places.get((key, number), count) != count
    keys = inputs.keys() | (state or {}).keys()
    return Verdict(
        expected=len(places),
        counted=sum(highest.values()),
        lost=sum(place not in times for place in places),
        doubled=sum(told - (place in places) for place, told in times.items()),
        wrong_counts=wrong_counts,
        state=None if state is None else sum(state.values()),
        wrong_keys=None if state is None else sum(state.get(key, 0) != len(inputs.get(key, ())) for key in keys),
    )


def fold(changelog: Iterable[tuple[bytes, int | None]]) -> dict[bytes, int]:
    """Return each key's last count; the changelog in the order of its offsets, None for a deleted key."""
    held: dict[bytes, int] = {}
    for key, count in changelog:
        if count is None:
            held.pop(key, None)
        else:
            held[key] = count
    return held
