"""What reading bytes from outside raises: records, headers, answers, what members of the group say of themselves.

`tests/unit/core/test_outside.py` looks that nothing decodes such bytes without it.
"""

from __future__ import annotations

import msgspec

from stores._core import outside as plain

MALFORMED = (*plain.MALFORMED, msgspec.MsgspecError)
"""What decoders raise for bytes that aren't what they should be, msgspec's among them."""

MISSHAPEN = (*plain.MISSHAPEN, msgspec.MsgspecError)
"""The same, and what looking into plain JSON of another shape raises."""
