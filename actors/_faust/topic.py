"""Faust's topic, which refuses to send past a handler's commit."""

from __future__ import annotations

from typing import Any

import faust

from actors.errors import UsageError
from actors.runtime.context import is_handling


class ActorTopic(faust.Topic):  # type: ignore[misc]
    """A topic that agents, pages and tasks send to as always, and actors through `ctx.send` only."""

    def send(self, **options: Any) -> Any:
        """Send as Faust does.

        Raises:
            UsageError: an actor is handling a message: the record would be there even if the message's commit isn't.
        """
        self._refuse_in_handler()
        return super().send(**options)

    def send_soon(self, **options: Any) -> Any:
        """Send as Faust does, soon.

        Raises:
            UsageError: an actor is handling a message.
        """
        self._refuse_in_handler()
        return super().send_soon(**options)

    def _refuse_in_handler(self) -> None:
        if is_handling():
            raise UsageError(
                f"topic {self.get_topic_name()}: send() inside an actor's handler would not be a part of its "
                "commit, and be "
                "repeated or alone after a crash: use ctx.send(topic, key=..., value=...)"
            )
