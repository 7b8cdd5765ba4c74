"""What developing this project needs and a user's app does not."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
