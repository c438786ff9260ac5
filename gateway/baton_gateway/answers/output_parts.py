"""The parts of an answer in their order, which every API writes in its own form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec


class ContentPart(msgspec.Struct, frozen=True):
    """Text for the user."""

    text: str


class ReasoningPart(msgspec.Struct, frozen=True):
    """Text of the model's reasoning."""

    text: str


class CallPart(msgspec.Struct, frozen=True):
    """The beginning of a tool call. `number` counts the calls of one choice from 0."""

    number: int
    id: str
    name: str


class ArgumentsPart(msgspec.Struct, frozen=True):
    """The next piece of the JSON text of a call's arguments."""

    number: int
    text: str


AnswerPart = ContentPart | ReasoningPart | CallPart | ArgumentsPart


@dataclass(slots=True)
class WholeCall:
    """One tool call. `arguments` is JSON text as the model wrote it, which need not be valid."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class WholeAnswer:
    """All parts of one choice. Absent reasoning is None, not empty."""

    content: str = ""
    reasoning: str | None = None
    calls: list[WholeCall] = field(default_factory=list)


def whole_answer(parts: Iterable[AnswerPart]) -> WholeAnswer:
    """Put the parts of one choice together."""
    answer = WholeAnswer()
    content: list[str] = []
    reasoning: list[str] = []
    arguments: dict[int, list[str]] = {}
    for part in parts:
        match part:
            case ContentPart(text):
                content.append(text)
            case ReasoningPart(text):
                reasoning.append(text)
            case CallPart(_, call_id, name):
                answer.calls.append(WholeCall(call_id, name))
            case ArgumentsPart(number, text):
                arguments.setdefault(number, []).append(text)
    answer.content = "".join(content)
    answer.reasoning = "".join(reasoning) if reasoning else None
    for number, pieces in arguments.items():
        answer.calls[number].arguments = "".join(pieces)
    return answer


def merge_parts(parts: Sequence[AnswerPart]) -> list[AnswerPart]:
    """Return the same parts, with neighbours of one kind merged."""
    merged: list[AnswerPart] = []
    for begin, end in _runs(parts):
        first = parts[begin]
        if end == begin + 1 or isinstance(first, CallPart):
            merged += parts[begin:end]
        else:
            text = "".join(part.text for part in parts[begin:end] if not isinstance(part, CallPart))
            merged.append(msgspec.structs.replace(first, text=text))
    return merged


def _runs(parts: Sequence[AnswerPart]) -> Iterator[tuple[int, int]]:
    """Yield where neighbours of one kind begin and end."""
    begin = 0
    for place in range(1, len(parts) + 1):
        if place == len(parts) or _kind(parts[place]) != _kind(parts[begin]):
            yield begin, place
            begin = place


def _kind(part: AnswerPart) -> tuple[type, int]:
    """Return a key that is equal for parts that may be merged."""
    return type(part), part.number if isinstance(part, CallPart | ArgumentsPart) else 0
