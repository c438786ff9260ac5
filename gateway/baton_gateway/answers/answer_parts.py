"""The parts of an answer in the order in which they come: what every API writes in its own form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ContentPart:
    """What is meant for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """What the model thought."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPart:
    """A call of a tool begins. `number` counts the calls of one choice from 0."""

    number: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPart:
    """The next piece of the JSON text of a call's arguments."""

    number: int
    text: str


AnswerPart = ContentPart | ReasoningPart | CallPart | ArgumentsPart


@dataclass(slots=True)
class WholeCall:
    """One call of a tool. `arguments` is JSON text as the model wrote it, which need not be valid."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class WholeAnswer:
    """All parts of one choice. An absent thought is None, not empty."""

    content: str = ""
    reasoning: str | None = None
    calls: list[WholeCall] = field(default_factory=list)


def whole_answer(parts: Iterable[AnswerPart]) -> WholeAnswer:
    """The parts put together."""
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


def joined(parts: Sequence[AnswerPart]) -> list[AnswerPart]:
    """The same parts, neighbours of one kind as one."""
    found: list[AnswerPart] = []
    for part in parts:
        last = found[-1] if found else None
        match last, part:
            case ContentPart(before), ContentPart(text):
                found[-1] = ContentPart(before + text)
            case ReasoningPart(before), ReasoningPart(text):
                found[-1] = ReasoningPart(before + text)
            case ArgumentsPart(number, before), ArgumentsPart(other, text) if number == other:
                found[-1] = ArgumentsPart(number, before + text)
            case _:
                found.append(part)
    return found
