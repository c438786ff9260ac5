"""Answers that the scripted model gives through real processes, and what the gateway's readers make of them alone."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import openai

from baton_gateway.answers.output_parts import WholeAnswer, WholeCall
from baton_testing.engine.scripted_model import MARKS, WINDOW, script, tokens_for
from baton_testing.gateway.answer_transcripts import TOOLS, draw_answer, form_of, read_whole
from baton_testing.gateway.answers_by_hand import BY_HAND
from baton_wire.rules.answer_formats import HARMONY

LONGEST = WINDOW - 8
"""Bytes of the longest text that is certain to fit the model's window."""
_ENDS = ("<|call|>", "<|return|>")
"""Tokens of Harmony that end an answer: nothing after them is drawn."""
OFFERED: Any = [
    {"type": "function", "function": {"name": tool.name, "parameters": dict(tool.parameters or {})}} for tool in TOOLS
]


def transcripts(family: str, count: int, seed: int) -> list[str]:
    """Return texts that a model of this family writes: those written by hand, and `count` drawn ones."""
    dice = random.Random(f"{family} {seed}")
    texts = [*BY_HAND[family], *(draw_answer(dice, family, dice.random() < 0.5).text for _ in range(count))]
    return [text for text in texts if text and len(text.encode()) <= LONGEST and not text.startswith("<|start|>user")]


def token_marks(family: str) -> list[str]:
    """Return the marks that are special tokens of a model of this family. Those of other formats are text to it."""
    texts = form_of(family, with_thoughts=True).marks(with_calls=True)
    return [mark for mark in MARKS if any(mark in text for text in texts)]


def expected_answer(family: str, text: str, as_tokens: bool = True) -> WholeAnswer:
    """Return what the reader alone makes of a text, up to the token that ends it if marks are tokens."""
    ends = _ENDS if family == HARMONY and as_tokens else ()
    end = min((place for mark in ends if (place := text.find(mark)) >= 0), default=len(text))
    return read_whole(form_of(family, with_thoughts=True), text[:end])


@dataclass
class Asked:
    """One scripted answer, asked for by the official client. Calls have no ids, which differ each time."""

    client: openai.OpenAI
    text: str
    model: str = "scripted"
    marks: Collection[str] = MARKS
    """Marks in the text that are special tokens; others are letters."""
    fields: dict[str, Any] = field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()
    """Messages after the one that has the script; each turn of the assistant among them used up one answer of it."""
    on_call: Callable[[], None] | None = None
    """Called once a streamed answer has `on_call_at` characters of calls' arguments."""
    on_call_at: int = 1

    def _request(self) -> dict[str, Any]:
        text = tokens_for(self.text, tuple(self.marks))
        messages = [{"role": "user", "content": f"Go. {script(text)}"}, *self.history]
        return {"model": self.model, "messages": messages, "tools": OFFERED, "temperature": 0, **self.fields}

    def whole(self) -> WholeAnswer:
        message = self.client.chat.completions.create(**self._request()).choices[0].message
        calls = [WholeCall("id", call.function.name, call.function.arguments) for call in message.tool_calls or []]
        return WholeAnswer(message.content or "", getattr(message, "reasoning_content", None), calls)

    def streamed(self) -> WholeAnswer:
        answer = WholeAnswer()
        for chunk in self.client.chat.completions.create(**self._request(), stream=True):
            for choice in chunk.choices:
                delta = choice.delta
                answer.content += delta.content or ""
                if (thought := getattr(delta, "reasoning_content", None)) is not None:
                    answer.reasoning = (answer.reasoning or "") + thought
                for piece in delta.tool_calls or []:
                    self._add_call(answer, piece)
        return answer

    def _add_call(self, answer: WholeAnswer, piece: Any) -> None:
        if piece.index == len(answer.calls):
            answer.calls.append(WholeCall("id", piece.function.name))
        answer.calls[piece.index].arguments += piece.function.arguments or ""
        if self.on_call is not None and sum(len(call.arguments) for call in answer.calls) >= self.on_call_at:
            on_call, self.on_call = self.on_call, None
            on_call()


def long_call(length: int) -> tuple[str, WholeAnswer]:
    """Return an answer with a thought, text and two calls, of which the first has arguments of this length."""
    dice = random.Random(length)
    city = "".join(dice.choice("abcdefgh ,.\n") for _ in range(length))
    arguments = json.dumps({"city": city, "days": 3})
    calls = [WholeCall("id", "get_weather", arguments), WholeCall("id", "search", "{}")]
    written = "\n".join(
        f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call>' for call in calls
    )
    return f"<think>\nhm\n</think>\n\nI look.\n{written}", WholeAnswer("I look.", "hm", calls)
