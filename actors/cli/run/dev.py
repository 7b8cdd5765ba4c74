"""`faust dev`: a broker, the app's topics, and a worker that is reloaded when a Python file changes."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click
from yarl import URL

from actors._faust.brokers import check_schemes
from actors.cli.project import name_app
from actors.cli.run.reload import changed, look
from actors.cli.run.spawned import Spawned, ending, say, signalled
from actors.cli.session import one_line_errors
from actors.runtime.cancellation import end

if TYPE_CHECKING:
    from actors.local_kafka.cluster import Cluster

BROKER_PORT = 9092
WEB_PORT = 6066
CONNECT_S = 3.0
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The app, broker and ports of `faust dev`.

    Attributes:
        module: the app, as `-A` takes it.
        broker: the addresses of brokers that run already; None to start one.
        port: that of the broker to start.
        web_port: that of the worker's web server.
        keep: where data stays; None for a temporary folder.
    """

    module: str
    broker: str | None
    port: int | None
    web_port: int
    keep: Path | None


@click.command("dev")
@click.option("--broker", metavar="HOST:PORT", help="Use a broker that runs already; several with commas.")
@click.option(
    "--port", type=click.IntRange(1024, 65_000), help=f"Of the broker that is started; {BROKER_PORT} by default."
)
@click.option(
    "--web-port", type=click.IntRange(1, 65_535), default=WEB_PORT, show_default=True, help="Of the dashboard."
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep the data of broker and worker in DIR, and go on with it the next time.",
)
@click.pass_context
def dev(context: click.Context, broker: str | None, port: int | None, web_port: int, keep: Path | None) -> None:
    """Run a broker, the app's topics and a worker, which is reloaded when a Python file below this folder changes.

    Without -A it is the app of this folder. Ctrl-C ends everything and deletes the data, unless --keep is given. The
    broker needs the extra: pip install 'faust-actors[broker]'.
    """
    if broker is not None and port is not None:
        raise click.UsageError("--port is for a broker that is started, --broker for one that runs: leave one out")
    plan = Plan(module=name_app(context), broker=broker, port=port, web_port=web_port, keep=keep)
    from actors.local_kafka.errors import LocalKafkaError

    try:
        with _folder(plan.keep) as folder:
            _require_free(plan.web_port)
            if broker is not None:
                _require_broker(broker)
            else:
                _fetch_jars()
            asyncio.run(_run(plan, folder))
    except LocalKafkaError as error:
        remedy = "Or use a broker that runs: --broker HOST:PORT"
        raise click.ClickException(f"{' '.join(str(error).split())}. {remedy}") from error
    except OSError as error:
        where = tempfile.gettempdir() if plan.keep is None else plan.keep
        remedy = "Free some space, or choose another folder with --keep DIR"
        raise click.ClickException(f"the data can't be written below {where}: {error}. {remedy}") from error


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Lock the folder for all data, and yield it; a temporary one is deleted at the end."""

    def leave(signum: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + signum)

    former = {one: signal.signal(one, leave) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    folder = Path(tempfile.mkdtemp(prefix="faust-dev-")) if keep is None else keep.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "dev.lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise click.ClickException(f"{folder} is in use by another `faust dev`: end it first") from None
            yield folder
    finally:
        for one, handler in former.items():
            signal.signal(one, handler)
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def _require_free(web_port: int) -> None:
    """Refuse a port that the worker couldn't listen at: it would wait for a change of a file."""
    from actors.local_kafka.ports import is_free

    if not is_free(web_port):
        raise click.ClickException(
            f"port {web_port} is taken: choose another one for the dashboard with --web-port PORT"
        )


def _require_broker(addresses: str) -> None:
    """Refuse addresses at which nothing listens: a worker's end there would wait for a change of a file."""
    why = ""
    for url in _urls(addresses):
        with one_line_errors():
            check_schemes([url])
        try:
            socket.create_connection((url.host, url.port or BROKER_PORT), timeout=CONNECT_S).close()
        except OSError as error:
            why = str(error)
        else:
            return
    raise click.ClickException(f"no broker answers at {addresses}: {why}. Start it, or leave --broker out to start one")


def _urls(addresses: str) -> list[URL]:
    """Return addresses, separated by commas, as URLs."""
    return [URL(one if "://" in one else f"kafka://{one}") for one in map(str.strip, addresses.split(","))]


def _fetch_jars() -> None:
    from actors.local_kafka.jars import ensure_jars, jars_folder, kafka_version

    if not (jars_folder() / f"kafka-{kafka_version()}").is_dir():
        say(f"Kafka {kafka_version()} is fetched, once, into {jars_folder()}")
    ensure_jars()


async def _run(plan: Plan, folder: Path) -> None:
    stopping = signalled(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    from actors.local_kafka.errors import LocalKafkaError

    why_ended = ""
    try:
        async with _broker(plan, folder) as (bootstrap, cluster):
            if not stopping.is_set():
                watching = asyncio.create_task(_end_of(cluster, stopping))
                await _work(plan, folder, bootstrap, stopping)
                why_ended = watching.result() if watching.done() else ""
                await end(watching)
    except LocalKafkaError:
        # Ctrl-C in a terminal ends the broker's tools too.
        if not stopping.is_set():
            raise
    if why_ended:
        raise LocalKafkaError(f"the broker ended: {why_ended}")
    if plan.keep is not None:
        say(f"the data is in {folder}")


@contextlib.asynccontextmanager
async def _broker(plan: Plan, folder: Path) -> AsyncIterator[tuple[str, Cluster | None]]:
    """Yield the addresses of a broker, and the broker if this starts one: it ends with the block."""
    if plan.broker is not None:
        yield plan.broker, None
        return
    from actors.local_kafka.cluster import Cluster
    from actors.local_kafka.errors import LocalKafkaError
    from actors.local_kafka.ports import is_free
    from actors.local_kafka.settings import load

    home = folder / "kafka"
    known = load(home)
    port = plan.port if plan.port is not None or known is not None else BROKER_PORT
    if known is None and port is not None and not is_free(port):
        raise LocalKafkaError(f"port {port} is taken, perhaps by another broker: choose a free one with --port PORT")
    say("a broker is starting")
    # In a thread and to its end: a broker that is half started would be left behind.
    cluster = await asyncio.to_thread(Cluster.up, home, port=port)
    try:
        yield cluster.bootstrap, cluster
    finally:
        say("the broker is ending")
        await asyncio.to_thread(cluster.down, delete=plan.keep is None)


async def _end_of(cluster: Cluster | None, stopping: asyncio.Event) -> str:
    """Wait for the broker's end, set `stopping`, and say why it ended."""
    while cluster is None or await asyncio.to_thread(cluster.pid, 1) is not None:  # noqa: ASYNC110  no event tells it
        await asyncio.sleep(_LOOK_S)
    if not stopping.is_set():
        stopping.set()
        return await asyncio.to_thread(cluster.why_ended, 1)
    return ""


async def _work(plan: Plan, folder: Path, bootstrap: str, stopping: asyncio.Event) -> None:
    """Run the worker, and again whenever a file changes, until a signal comes."""
    url = ";".join(map(str, _urls(bootstrap)))
    say(f"the broker is at {bootstrap}. In another terminal of this folder:")
    if bootstrap != f"127.0.0.1:{BROKER_PORT}":
        say(f"    export BROKER_URL={url}")
    say("    faust send TOPIC --key KEY --value VALUE")
    command = [sys.executable, "-m", "actors.cli.run.dev_worker", plan.module, str(folder / "data"), str(plan.web_port)]
    here = Path.cwd()
    while not stopping.is_set():
        seen = await asyncio.to_thread(look, here)
        child = await Spawned.start(command, environment={"BROKER_URL": url})
        try:
            await _until_changed(child, changed(here, seen), stopping, plan.web_port)
        finally:
            await child.stop()


async def _until_changed(child: Spawned, change: Any, stopping: asyncio.Event, web_port: int) -> None:
    """Say when the worker is ready and when it ends; return when a file changed or a signal came."""
    changing, stop = asyncio.create_task(change), asyncio.create_task(stopping.wait())
    ready, ended = asyncio.create_task(child.ready.wait()), asyncio.create_task(child.wait())
    tasks = (changing, stop, ready, ended)
    try:
        waiting = set(tasks)
        while not (changing.done() or stop.done()):
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if ready in done:
                say(f"the worker is ready. Dashboard: http://127.0.0.1:{web_port}/dashboard")
            if ended in done and not stop.done():
                say(f"the worker ended, {ending(ended.result())}: waiting for a change of a Python file")
        if changing.done() and not stop.done():
            say(f"{', '.join(changing.result()[:3])} changed: the worker is reloaded")
    finally:
        await end(*tasks)
