"""The demo, on a machine that has Python and no Java: what it needs is fetched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT

HIDDEN = ("java", "javac", "mvn")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What git tracks, as it is now: without jars and other files of earlier runs."""
    folder = tmp_path / "clone"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder for PATH, with all programs of this machine but Java's and Maven."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*"):
            if program.name not in HIDDEN and not os.path.lexists(folder / program.name):
                (folder / program.name).symlink_to(program)
    return folder


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_demo_without_a_java_or_maven(clone: Path, programs: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("KAFKA_", "JAVA_"))}
    assert not any(shutil.which(name, path=str(programs)) for name in HIDDEN)
    done = subprocess.run(
        [sys.executable, "-m", "dev.demo"],
        cwd=clone,
        env=environment | {"PATH": str(programs), "SPARK_REPLAY_JARS": str(tmp_path / "connector")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["spark_mismatches"] == 0
    assert list((clone / ".local" / "jars").glob("kafka-*/kafka_*.jar"))
    assert len(list((tmp_path / "connector").glob("*.jar"))) == 4
