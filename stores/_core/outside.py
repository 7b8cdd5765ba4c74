"""What reading bytes from outside raises: records, files, answers of other processes."""

from __future__ import annotations

MALFORMED = (ValueError, OverflowError, RecursionError)
"""What decoders raise for bytes that aren't what they should be.

`UnicodeDecodeError`, `JSONDecodeError` and `binascii.Error` are `ValueError`s, and so is the refusal of an integer with
more than 4,300 digits; deep nesting and `int(float("inf"))` have errors of their own. msgspec's errors are in
`actors._core.outside`.
"""

MISSHAPEN = (*MALFORMED, AttributeError, LookupError, TypeError)
"""The same, and what looking into plain JSON of another shape raises."""
