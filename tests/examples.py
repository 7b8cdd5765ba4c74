"""How many examples a property test tries: few in `make test`, all in `make nightly`."""

from __future__ import annotations

import os

import hypothesis

ALL = 100
"""Hypothesis' own default, for tests that don't say how many."""
FEW = 25


def load_profile() -> None:
    """Choose few examples; `HYPOTHESIS_PROFILE=nightly` chooses all, and `ci` the same few each time."""
    hypothesis.settings.register_profile("dev", deadline=None, max_examples=FEW)
    hypothesis.settings.register_profile("ci", deadline=None, max_examples=FEW, derandomize=True, print_blob=True)
    hypothesis.settings.register_profile("nightly", deadline=None, max_examples=ALL, print_blob=True)
    hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


def examples(nightly: int) -> int:
    """Return the number of examples of a test that tries so many in `make nightly`."""
    return max(1, nightly * hypothesis.settings().max_examples // ALL)
