"""The `custom_id` that stands in a line which is no request, so that whoever sent it can match the answer.

Only strings and brackets are looked at, once from the left. So it is found in a line that no parser takes.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

_KEY: Final = "custom_id"
_MARKS: Final = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\Z)|[{}\[\]:]', re.DOTALL)


def lenient_id(raw: bytes, max_chars: int) -> str | None:
    """The id of the line's outermost object; None when it has none, several that differ, or one that is no text."""
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
    """What a JSON string says; None for what is none."""
    try:
        return msgspec.json.decode(string, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
