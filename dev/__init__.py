"""The tools for developing this project, which a user's app doesn't need."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
