"""The declaration of functions that are called at the times of a cron expression."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import datetime
from importlib import import_module
from typing import Any, Literal, TypeVar

from actors._core.task.policy import OnError, Then
from actors.declare.arguments import check_arguments
from actors.runtime.handlers.effect import Effect
from actors.runtime.message.context import Context

Missed = Literal["once", "each", "skip"]
Run = TypeVar("Run", bound=Callable[[Context, datetime], Any])


class Crons:
    """The crons of an `App`."""

    @check_arguments
    def cron(
        self: Any,
        expression: str,
        *,
        tz: str = "UTC",
        missed: Missed = "once",
        name: str | None = None,
        stores: Sequence[Any] = (),
        effects: Sequence[Effect] = (),
        on_error: OnError | Then = "stop",
    ) -> Callable[[Run], Run]:
        """Call a function at the times of a cron expression: once over all workers, however often these die.

        It is called as `(ctx, at)`, where `at` is the time, in the time zone `tz`, and `ctx.key` the name. It is an
        actor of its own, with the topic `{app id}--{name}-cron`, which workers make.

        Args:
            expression: minute, hour, day of the month, month and day of the week, as "30 2 * * *" or "0 9 * * MON-FRI".
            tz: the name of a time zone. A time that the clocks skip is run right after the gap; one that comes twice is
                run the first time. Expressions whose minute or hour begins with a star go on in steps of real time.
            missed: of times that passed while no worker could run them: "once" runs the last one, "each" runs all in
                order, "skip" none of those that are more than a minute ago.
            name: as of `actor`; the function's by default.
            stores: as of `actor`; the function's key is its name.
            effects: likewise.
            on_error: likewise. Later times go on in any case, except behind a run that stops or is parked.

        Raises:
            ConfigurationError: no date fits the expression, or an argument can't be meant.
        """
        # Beside the engine, which knows it by name only.
        calendar: Any = import_module("actors.calendar")
        options: dict[str, Any] = {"stores": stores, "effects": effects, "on_error": on_error}
        return functools.partial(calendar.declare, self, name, (expression, tz, missed), options)
