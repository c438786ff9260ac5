"""Prompts of sessions: the tokens of their segments, as JSON that is made once per segment.

A segment of the same number is the same text in every prompt, whatever its length, so that prompts share prefixes as
their plan says.
"""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from baton_local.load_test.prompts import words
from baton_simulate.sessions.session_load import Segment

KEPT_BYTES: Final = 64 << 20
"""Segments whose JSON is kept for the next turns of their sessions; older ones are made again."""


@dataclass(frozen=True, slots=True)
class IdSegments:
    """Segments of random token ids from `first` to `last`, with exactly the requested lengths."""

    first: int
    last: int
    salt: int
    opening: bytes = b"["
    """Begins the JSON of a prompt."""
    separator: bytes = b", "
    closing: bytes = b"]"

    def write(self, segment: Segment) -> bytes:
        """The JSON of a segment, without brackets."""
        number, tokens = segment
        draw = random.Random(f"{self.salt} segment {number}")
        return json.dumps(draw.choices(range(self.first, self.last + 1), k=tokens)).encode()[1:-1]


@dataclass(frozen=True, slots=True)
class WordSegments:
    """Segments of random words, with the requested lengths on average."""

    per_word: float
    """Tokens of a word, as the server counts."""
    salt: int
    opening: bytes = b'"'
    separator: bytes = b" "
    closing: bytes = b'"'

    def write(self, segment: Segment) -> bytes:
        """The JSON of a segment, without quotes."""
        number, tokens = segment
        draw = random.Random(f"{self.salt} segment {number}")
        return " ".join(words(draw, max(1, round(tokens / self.per_word)))).encode()


SegmentWriter = IdSegments | WordSegments


@dataclass(slots=True)
class SessionPrompts:
    """Prompts as JSON, from segments that are kept while there is room."""

    writer: SegmentWriter
    kept_bytes: int = KEPT_BYTES
    _kept: OrderedDict[Segment, bytes] = field(default_factory=OrderedDict)
    _size: int = 0

    def as_json(self, prompt: Iterable[Segment]) -> bytes:
        parts = [self._segment(segment) for segment in prompt]
        return self.writer.opening + self.writer.separator.join(parts) + self.writer.closing

    def _segment(self, segment: Segment) -> bytes:
        written = self._kept.pop(segment, None)
        if written is None:
            written = self.writer.write(segment)
            self._size += len(written)
        self._kept[segment] = written
        while self._size > self.kept_bytes and len(self._kept) > 1:
            self._size -= len(self._kept.popitem(last=False)[1])
        return written
