"""Finds the `custom_id` in a line that is no valid request, so that its sender can match the answer.

It scans strings and brackets only, once from the left, so it works on lines that no parser accepts.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

_KEY: Final = "custom_id"
_MARKS: Final = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\Z)|[{}\[\]:]', re.DOTALL)


def lenient_id(raw: bytes, max_chars: int) -> str | None:
    """The id of the line's outermost object; None: it has none, several that differ, or one that is no text.

    >>> lenient_id(b'{"custom_id": "a", "body": {broken', 64)
    'a'
    """
    ids: set[str | None] = set()
    depth, is_key, last = 0, False, b""
    for match in _MARKS.finditer(raw):
        mark = match[0]
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and mark == b":":
            is_key = _text(last) == _KEY
            continue
        elif depth == 1 and is_key:
            text = _text(mark)
            ids.add(text if text is not None and 1 <= len(text) <= max_chars else None)
        is_key, last = False, mark
    return ids.pop() if len(ids) == 1 else None


def _text(string: bytes) -> str | None:
    """The text of a JSON string; None for anything else."""
    try:
        return msgspec.json.decode(string, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
