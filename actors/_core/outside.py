"""Errors of decoding bytes from outside: records, headers, answers, metadata of group members.

`tests/unit/core/test_outside.py` checks that all code that decodes such bytes handles them.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from stores._core import outside as plain

MALFORMED = (*plain.MALFORMED, msgspec.MsgspecError)
"""Errors that decoders raise for malformed bytes, msgspec's among them."""

MISSHAPEN = (*plain.MISSHAPEN, msgspec.MsgspecError)
"""The same, and errors of reading plain JSON of another shape."""

EXITS = (KeyboardInterrupt, SystemExit)
"""The end of the process: no failure of the code that it passes through.

All else that foreign code raises is its failure, also what is no `Exception`, as a panic of an extension in Rust. Where
foreign code is awaited, `GeneratorExit` may be the end of the coroutine too: see `actors.runtime.cancellation`.
"""

Error = TypeVar("Error", bound=BaseException)


def caused(error: Error, cause: BaseException) -> Error:
    """Return an error with its cause. A compiled module drops what is behind `from`, so it raises what this returns."""
    error.__cause__ = cause
    return error
