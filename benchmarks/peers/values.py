"""The value of the jobs with schemas."""

from __future__ import annotations

from typing import Any

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


class Command(msgspec.Struct):
    """The value of the job."""

    command: str
    args: list[str]
    count: int = 0


def protobuf_command() -> Any:
    """Return the class of the same value, without `protoc`."""
    file = descriptor_pb2.FileDescriptorProto(name="benchmark_command.proto", package="benchmark", syntax="proto3")
    message = file.message_type.add(name="Command")
    for number, (name, type_, label) in enumerate((("command", 9, 1), ("args", 9, 3), ("count", 3, 1)), 1):
        message.field.add(name=name, number=number, label=label, type=type_)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("benchmark.Command"))
