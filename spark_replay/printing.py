"""Bytes of keys and values, as a person reads them."""

from __future__ import annotations

import base64


def printable(raw: bytes | bytearray | None) -> str:
    """Give bytes as text if they are printable UTF-8, else as base64 after `base64:`; `null` for None."""
    if raw is None:
        return "null"
    try:
        text = bytes(raw).decode()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and (text or not raw):
        return text
    return f"base64:{base64.b64encode(raw).decode()}"
