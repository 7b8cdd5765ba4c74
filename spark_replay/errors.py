"""The errors of this package: each is one line for an operator, and the command's exit code 2."""

from __future__ import annotations


class ReplayError(Exception):
    """Something a person has to put right; the text says what, where and how."""


class ToolMissingError(ReplayError):
    """pyspark, Java or Maven isn't on this machine."""


class BrokerError(ReplayError):
    """The brokers didn't answer, or refused."""


class UnknownTopicError(ReplayError):
    """The brokers have no such topic."""


class ReadError(ReplayError):
    """Spark couldn't read the changelog or an export to its end."""


class ExportError(ReplayError):
    """The folder of exports isn't one that the changelog can be compared with."""


class LogTooShortError(ReplayError):
    """An export's position lies outside the changelog as it is now."""


class TargetError(ReplayError):
    """The folder to write to can't be used."""


class AppError(ReplayError):
    """The user's app can't be used: its module, the app in it, or the actor isn't there."""


class InputError(ReplayError):
    """The input doesn't hold what a recompute needs."""


class RecomputeError(ReplayError):
    """A replay of the input failed."""
