"""The message of one choice while it is collected, as encoded JSON strings without copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from baton_gateway.answers.output_parts import AnswerPart, ArgumentsPart, CallPart, ContentPart, ReasoningPart
from baton_gateway.openai_api.json_pieces import GrowingText

CALL_BYTES: Final = 512
"""A call without its arguments."""


@dataclass(frozen=True, slots=True)
class CollectedCall:
    """One tool call. `arguments` is JSON text as the model wrote it, which need not be valid."""

    id: str
    name: str
    arguments: GrowingText = field(default_factory=GrowingText)


@dataclass(slots=True)
class CollectedMessage:
    """All parts of one choice so far. Absent reasoning is None, not empty."""

    content: GrowingText = field(default_factory=GrowingText)
    reasoning: GrowingText | None = None
    calls: list[CollectedCall] = field(default_factory=list)

    def add(self, parts: Sequence[AnswerPart]) -> int:
        """Append parts, and return the bytes that they take."""
        size = 0
        for part in parts:
            if type(part) is ContentPart:  # the usual case
                size += self.content.add(part.text)
                continue
            match part:
                case ReasoningPart(text):
                    if self.reasoning is None:
                        self.reasoning = GrowingText()
                    size += self.reasoning.add(text)
                case CallPart(_, call_id, name):
                    self.calls.append(CollectedCall(call_id, name))
                    size += CALL_BYTES
                case ArgumentsPart(number, text):
                    size += self.calls[number].arguments.add(text)
        return size
