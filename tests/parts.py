"""Registry, database and Kafka Connect that all processes of a test session share."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.parts import Part

REGISTRY, POSTGRES, CONNECT = "registry-of-all-tests", "postgres-of-all-tests", "connect-of-all-tests"


def shared_folder(config: pytest.Config, factory: pytest.TempPathFactory) -> Path:
    """The folder that all processes of a session have in common."""
    base = factory.getbasetemp()
    return base.parent if hasattr(config, "workerinput") else base


def end_parts(folder: Path) -> None:
    """End what tests started there: Kafka Connect first, which is a client of the others."""
    for name in (CONNECT, REGISTRY, POSTGRES):
        part = Part.open(folder / name)
        if part is not None:
            part.down(delete=True)
