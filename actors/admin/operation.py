"""An operation on an app: its arguments are fields, `run` carries it out.

The command line makes a command of each operation (`actors.cli.operations`), HTTP a path (`actors.web.operations`), and
the dashboard's forms run the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field
from typing import Any, ClassVar

from actors._faust.setup import Setup


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of an operation: its name for records and logs, and how it agrees to what can't be undone."""

    name: str
    confirm: Callable[[str], object] = lambda question: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of an operation.

    Attributes:
        content: the result for programs, as JSON can say it; None where there is text only.
        table: title, columns and rows for people; columns whose name starts with `#` hold numbers.
        lines: what people read below the table; the last one sums up. Without text they get `content`.
        remarks: what isn't part of the result.
        failure: why it is done in part or not at all.
    """

    content: Any
    table: tuple[str, Sequence[str], Sequence[Sequence[str]]] | None = None
    lines: Sequence[str] = ()
    remarks: Sequence[str] = ()
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(ABC):
    """One operation with its arguments; the docstring of each class is the help of its command.

    A field that `option` made is an option of the command, any other an argument.
    """

    command: ClassVar[str]
    """The words of the command."""
    is_reading: ClassVar[bool] = False
    """True if it changes nothing."""
    examples: ClassVar[tuple[str, ...]] = ()
    """Calls as they are typed, for the help."""

    @property
    def verb(self) -> str:
        """The last word of the command."""
        return self.command.split()[-1]

    @abstractmethod
    async def run(self, setup: Setup, caller: Caller) -> Answer:
        """Carry the operation out.

        Raises:
            UsageError: the arguments contradict each other.
            ActorsError: it isn't carried out.
        """


def name_of(field: Field[Any]) -> str:
    """Return the name of an argument or an option outside the program."""
    flag: str = field.metadata.get("flag", field.name)
    return flag.removeprefix("--").replace("-", "_")


def argument(metavar: str, **more: Any) -> Any:
    """Return a field that is an argument of another name on the command line; `more` may have click's `type` of it."""
    return field(metadata={"metavar": metavar, **more})


def option(help: str, default: Any = None, **more: Any) -> Any:
    """Return a field that is an option; `more` may have its `flag`, its `metavar`, its `least` and its `most` value."""
    return field(default=default, metadata={"help": help, **more})
