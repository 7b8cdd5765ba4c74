"""From the built wheel to a project whose tests pass, offline: finds mistakes of packaging in the quick tests."""

from __future__ import annotations

import json
import re
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.documents import ROOT
from tests.wheel.building import MODULES, PACKAGES, build, run

OWN = ("faust_actors", "__editable__")
WHERE = """
import json
from importlib.util import find_spec
print(json.dumps([find_spec(name).origin for name in ("actors", "spark_replay", "stores", "faust_actors_java")]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def binaries(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the programs of an environment are that has the wheel, and what it needs from the one of the tests."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(folder)
    packages = next(folder.glob("lib/python*/site-packages"))
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(place).iterdir():
            if not entry.name.startswith(OWN):
                (packages / entry.name).symlink_to(entry)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-deps", wheel, cwd=folder)
    return folder / "bin"


def test_the_wheel_has_no_tests_or_benchmarks(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
    [info] = {name.partition("/")[0] for name in names if ".dist-info/" in name}
    assert {name.partition("/")[0] for name in names} == {*PACKAGES, *MODULES, info}
    assert not [name for name in names if re.search(r"(^|/)(tests|benchmarks|dev|examples)/", name)]


def test_a_project_of_the_wheel_passes_its_tests(binaries: Path, tmp_path: Path) -> None:
    found = json.loads(run(binaries / "python", "-c", WHERE, cwd=tmp_path))
    assert all(Path(file).is_relative_to(binaries.parent) for file in found), f"{found}: not the wheel's"
    assert not tmp_path.is_relative_to(ROOT)
    run(binaries / "faust", "init", "shop", "--template", "window", cwd=tmp_path)
    said = run(binaries / "python", "-W", "error", "-m", "unittest", cwd=tmp_path / "shop")
    assert re.search(r"^Ran [1-9]\d* tests?.*^OK$", said, re.MULTILINE | re.DOTALL), said
