"""An actor as it was declared, and how its messages become bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from actors._core.policy import STOP_ON_ERROR, OnError
from actors._faust.messages import MessageCodec, function_codec, message_codec
from actors.runtime.answers import AnswerTypes
from actors.runtime.context import Context, Store
from actors.runtime.effects import Effect


@dataclass(frozen=True, slots=True)
class ActorDefinition:
    """An actor as it was declared: `declared` is the function or class, `stores` all of its stores.

    `timers`, `effects`, `parked` and `answers` are the stores of what it uses; `answer_types` is what it answers with.
    """

    name: str
    topic: Any
    stores: tuple[Store[Any, Any], ...]
    handler: Callable[[Context, Any], Awaitable[Any]]
    declared: Any
    concurrency: int = 1
    on_error: OnError = STOP_ON_ERROR
    effect_functions: Mapping[str, Effect] = field(default_factory=dict)
    timers: Store[bytes, bytes] | None = None
    effects: Store[bytes, bytes] | None = None
    parked: Store[bytes, bytes] | None = None
    answers: Store[bytes, bytes] | None = None
    answer_types: AnswerTypes | None = None

    @property
    def buries(self) -> bool:
        """Whether messages that can't be handled go to the dead-letter topic."""
        return self.parked is not None or self.on_error.dead_letters

    def messages(self) -> MessageCodec:
        """Give how its messages become bytes.

        Raises:
            ConfigurationError: the topic and the class's handlers don't fit together.
        """
        if isinstance(self.declared, type):
            return message_codec(self.declared, self.topic)
        return function_codec(self.topic)

    @property
    def topic_name(self) -> str:
        """The input topic's name."""
        return str(self.topic.get_topic_name())
