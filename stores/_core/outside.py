"""Errors of decoding bytes from outside: records, files, answers of other processes."""

from __future__ import annotations

MALFORMED = (ValueError, OverflowError, RecursionError)
"""Errors that decoders raise for malformed bytes.

`UnicodeDecodeError`, `JSONDecodeError` and `binascii.Error` are `ValueError`s, and so is the refusal of an integer with
more than 4,300 digits; deep nesting and `int(float("inf"))` have errors of their own. msgspec's errors are in
`actors._core.outside`.
"""

MISSHAPEN = (*MALFORMED, AttributeError, LookupError, TypeError)
"""The same, and what looking into plain JSON of another shape raises."""
