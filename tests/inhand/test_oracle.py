"""The oracle of the run: it agrees with the app where nothing fails, and finds each planted damage."""

from __future__ import annotations

INPUTS = 300
OUTPUTS = ("finals", "matched", "paid", "late-match", "late-pay", "said")
