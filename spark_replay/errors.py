"""The errors of this package: each is one line for an operator, and the command's exit code 2."""

from __future__ import annotations


class ReplayError(Exception):
    """An error that a person has to correct; its text names what, where and how."""


class ToolMissingError(ReplayError):
    """pyspark, Java or a connector isn't on this machine, or is for another Spark."""


class BrokerError(ReplayError):
    """The brokers didn't answer, or refused."""


class UnknownTopicError(ReplayError):
    """The brokers, or the archive, have no such topic."""


class WrongTopicError(ReplayError):
    """The topic isn't what it was taken for: another app's, re-created, or no changelog."""


class ReadError(ReplayError):
    """Spark couldn't read the changelog, an archive or an export to its end."""


class ArchiveError(ReplayError):
    """The folder is no archive, or a file of it is missing or damaged."""


class ExportError(ReplayError):
    """The folder of exports isn't one that the changelog can be compared with."""


class LiveError(ReplayError):
    """Running workers don't answer what they are asked, or not in the protocol.

    `is_unavailable` says that the state can't be read now: that of one partition may be the cause.
    """

    def __init__(self, text: str, *, is_unavailable: bool = False) -> None:
        super().__init__(text)
        self.is_unavailable = is_unavailable


class LogTooShortError(ReplayError):
    """The requested offsets or time lie outside the log as it is now."""


class PointError(ReplayError):
    """A point in the log can't be read from what was given."""


class TargetError(ReplayError):
    """The folder, or the topic, to write to can't be used."""


class AppError(ReplayError):
    """The user's app can't be used: its module, the app in it, or the store or actor is missing."""


class InputError(ReplayError):
    """The input doesn't hold what a recompute needs."""


class RecomputeError(ReplayError):
    """A replay of the input failed."""


class PlacementError(ReplayError):
    """The state's keys can't be spread over other partitions."""
