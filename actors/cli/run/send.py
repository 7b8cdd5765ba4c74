"""`faust -A APP send TOPIC`: Faust's own command, with the declared types and partitioner of the app's topics."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any, NoReturn

import click
from faust.cli.base import option
from faust.cli.send import send as FaustSend  # noqa: N812  the class has the command's name

from actors._core.logs import text_of
from actors._faust.setup import Setup
from actors._kafka.admin.control import ControlPlane, TopicInfo
from actors.cli.project import name_app
from actors.cli.session import one_line_errors
from actors.declare.definition import messages_of
from actors.declare.topic import refuse_other_writers
from actors.declare.values.codecs import Codec, Place, resolve
from actors.declare.values.messages import MessageCodec
from actors.declare.values.schemas import topic_codecs
from actors.errors import ConfigurationError, UnresolvedSchemaError
from actors.formats.framing import RegistryFormat
from actors.runtime.message.unresolved import resolved_now

_FAUSTS = ("key_type", "value_type", "key_serializer", "value_serializer")


class send(FaustSend):  # type: ignore[misc]  # noqa: N801  the class has the command's name
    """Send a message to a topic of the app, or to an @agent.

    KEY and VALUE are what the topic's serializers write: text as it is, or JSON. They are checked against the declared
    types, unless a type or a serializer is given here. For Avro, Protobuf and JSON Schema they are JSON, and the schema
    has to be registered.
    """

    options = (option("--value", "value_option", help="The value; as the argument VALUE."), *FaustSend.options)

    def __init__(self, context: click.Context, *args: Any, **kwargs: Any) -> None:
        name_app(context)
        super().__init__(context, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Execute the command."""
        try:
            with one_line_errors():
                self._prepare()
        except click.ClickException as error:
            # Faust would print the traceback.
            error.show()
            raise SystemExit(error.exit_code) from None
        super().__call__(*args, **kwargs)
        raise SystemExit(0)

    def _prepare(self) -> None:
        """Turn key and value into bytes, and choose the partition."""
        given, value = self.kwargs.pop("value_option"), self.kwargs["value"]
        if given is not None and value is not None:
            raise click.UsageError("the value is given twice: as an argument and as --value")
        self.kwargs["value"] = value = given if value is None else value
        name = self.kwargs["entity"]
        if name.startswith("@") or not hasattr(self.app, "actor_options"):
            return
        refuse_other_writers(self.app, name)
        info = self._existing(name)
        declared = [one for one in self.app.declared_topics if one.topics and one.get_topic_name() == name]
        if declared and not any(self.ctx.params.get(option) for option in _FAUSTS):
            key_codec, value_codec = topic_codecs(declared[0])
            messages = messages_of(self.app.actors.values(), declared[0])
            codec = messages if messages.by_headers is None or value_codec.headers is None else value_codec
            _refuse_headers(name, codec)
            self.kwargs["value"] = None if value is None else _encoded(value, codec, f"topic {name}: value")
            if self.kwargs["key"] is not None:
                self.kwargs["key"] = _encoded(self.kwargs["key"], key_codec, f"topic {name}: key")
        self._place(name, info)

    def _place(self, name: str, info: TopicInfo) -> None:
        key, partition = self.kwargs["key"], self.kwargs["partition"]
        if partition is not None and not 0 <= partition < info.partitions:
            raise ConfigurationError(f"--partition {partition}: topic {name} has partitions 0 to {info.partitions - 1}")
        if partition is None and key is not None and self.ctx.params.get("key_type") is None:
            raw = key if isinstance(key, bytes) else os.fsencode(key)
            self.kwargs["partition"] = self.app.partitioner_for(name).home(raw, info.partitions)

    def _existing(self, name: str) -> TopicInfo:
        setup = Setup(self.app)

        async def ask() -> dict[str, TopicInfo]:
            async with ControlPlane.connect(setup.connection, setup.group) as control:
                return await control.topics([name])

        found = asyncio.run(ask())
        if name not in found:
            known = sorted({str(one.get_topic_name()) for one in self.app.declared_topics if one.topics})
            raise ConfigurationError(
                f"topic {name} isn't on the broker {','.join(setup.connection.bootstrap)}. The app declares: "
                f"{', '.join(known) or 'none'}"
            )
        return found[name]


def _refuse_headers(topic: str, codec: Codec | MessageCodec) -> None:
    text = f"topic {topic}: %s, and `send` writes no headers: use app.tell(actor, key, message), or %s"
    if isinstance(codec, MessageCodec):
        if codec.by_headers is not None:
            what = "the header fa-type of each record names the type of its message"
            raise ConfigurationError(text % (what, "give the types tags, Struct(tag=…)"))
    elif not isinstance(_format_of(codec), RegistryFormat) or _format_of(codec).ids == "header":
        raise ConfigurationError(text % ("headers have a part of each value", "the producer of another program"))


def _format_of(codec: Codec | MessageCodec) -> Any:
    """Return the format of a codec that has one."""
    match getattr(codec, "origin", None):
        case [_, Place(), format_]:
            return format_
    return None


def _reader(codec: Codec | MessageCodec) -> Callable[[bytes], Any]:
    """Return what makes a value of a text: of JSON, where the topic's bytes begin with the id of a schema."""
    if not isinstance(codec, Codec) or not isinstance(_format_of(codec), RegistryFormat):
        return codec.decode
    type_ = codec.origin[0]
    if hasattr(type_, "DESCRIPTOR"):
        from google.protobuf.json_format import Parse

        return lambda raw: Parse(raw, type_())
    return resolve(type_, "json").decode


def _encoded(text: str, codec: Codec | MessageCodec, what: str) -> bytes:
    """Return a text as the codec's bytes: the text is what the codec writes, JSON of a value, or else a string.

    Raises:
        click.UsageError: it is none of these.
        UnresolvedSchemaError: the registry doesn't give the schema.
    """
    given, reasons, read = os.fsencode(text), [], _reader(codec)
    for raw in (given, json.dumps(text).encode()) if text.isprintable() else (given,):
        try:
            return resolved_now(lambda raw=raw: codec.encode(read(raw)))  # type: ignore[misc]
        except UnresolvedSchemaError:
            raise
        except Exception as error:
            reasons.append(text_of(error) or type(error).__name__)
    raise click.UsageError(f"{what} {text!r} doesn't fit its type: {reasons[0]}")
