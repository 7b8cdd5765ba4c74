"""A `FakeRegistry` over HTTP, for clients of others; messages of Protobuf without `protoc`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from aiohttp import web
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from actors.testing import FakeRegistry


@contextlib.contextmanager
def served(registry: FakeRegistry, answer: Any = None) -> Iterator[str]:
    """Serve a registry; `answer`, a function of the request, takes its place where it returns something."""

    async def handle(request: web.Request) -> web.Response:
        other = None if answer is None else await answer(request)
        if other is not None:
            return other
        body = await request.json() if request.can_read_body else None
        path = request.raw_path.lstrip("/")
        status, content = await registry.request(request.method, path, body)
        return web.json_response(content, status=status)

    loop, ready = asyncio.new_event_loop(), threading.Event()
    address: list[str] = []

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        ready.set()
        return runner

    def run() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(10)
        yield address[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def messages(name: str, text: str, uses: tuple[Any, ...] = (), package: str = "shop") -> dict[str, Any]:
    """Return the classes of a file, by name; `text` has a message a line: `Order item:string count:int64`.

    Indented ones are inside of the last one before.
    """
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
    pool = descriptor_pool.Default()
    file.dependency.extend(uses)
    at: list[Any] = [file.message_type]
    for line in text.strip("\n").splitlines():
        depth = (len(line) - len(line.lstrip())) // 4
        title, *fields = line.split()
        message = at[depth].add(name=title)
        at[depth + 1 :] = [message.nested_type]
        for number, field in enumerate(fields, 1):
            own, kind = field.split(":")
            made = message.field.add(name=own, number=number, label=3 if kind.startswith("*") else 1)
            kind = kind.lstrip("*")
            if kind.startswith("."):
                made.type, made.type_name = 11, kind
            else:
                made.type = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{kind.upper()}")
    pool.Add(file)
    found = pool.FindFileByName(name)

    def classes(descriptors: Any) -> dict[str, Any]:
        own: dict[str, Any] = {}
        for one in descriptors:
            own[one.full_name.removeprefix(f"{package}.")] = message_factory.GetMessageClass(one)
            own |= classes(one.nested_types)
        return own

    return classes(found.message_types_by_name.values())
