"""Bytes from outside: records, headers, answers, what members of the group say of themselves."""

from __future__ import annotations

import msgspec

MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that aren't what they should be: text that isn't UTF-8 and deep nesting have errors of
their own."""
