"""The process that renders chat templates for a gateway: bounded in memory, killed when it takes too long.

A question names a template by key and brings its source
the first time; an answer has exactly one of text, refusal and failure.
"""

from __future__ import annotations

import msgspec

from baton_gateway.helper_processes.helper_main import answer_questions
from baton_gateway.text.chat_template import (
    CompiledTemplate,
    Conversation,
    TemplateFailureError,
    TemplateRefusalError,
)

MAX_MEMORY_BYTES = 512 << 20
MAX_TEMPLATES = 8


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    source: str | None
    """None: this process knows it already."""
    control_tokens: tuple[str, ...]
    """With the source: special tokens that only the template may write."""
    conversation: msgspec.Raw
    """A `Conversation`."""
    special_tokens: dict[str, str]


class RenderAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    text: str | None = None
    cuts: tuple[int, ...] = ()
    """Of the text, as in `RenderedChat`."""
    refusal: str | None = None
    field: str = "messages"
    """What was refused."""
    failure: str | None = None
    is_unknown: bool = False
    """The template was dropped here: ask again with its source."""


class Templates:
    """Compiled templates by key."""

    def __init__(self) -> None:
        self._compiled: dict[str, CompiledTemplate] = {}
        self._conversations = msgspec.json.Decoder(Conversation)

    def answer(self, question: Question) -> RenderAnswer:
        try:
            template = self._template(question)
            if template is None:
                return RenderAnswer(is_unknown=True)
            rendered = template.render(self._conversations.decode(question.conversation), question.special_tokens)
            return RenderAnswer(text=rendered.text, cuts=rendered.cuts)
        except TemplateRefusalError as error:
            return RenderAnswer(refusal=str(error), field=error.field)
        except TemplateFailureError as error:
            return RenderAnswer(failure=str(error))
        except Exception as error:  # noqa: BLE001 (a template is foreign code, and may raise whatever it likes)
            return RenderAnswer(failure=f"the chat template failed: {type(error).__name__}")

    def _template(self, question: Question) -> CompiledTemplate | None:
        if question.source is not None:
            if len(self._compiled) >= MAX_TEMPLATES:
                self._compiled.clear()
            self._compiled[question.key] = CompiledTemplate(question.source, question.control_tokens)
        return self._compiled.get(question.key)


def main() -> None:
    """Answer until stdin ends."""
    templates = Templates()
    questions, encode = msgspec.json.Decoder(Question), msgspec.json.Encoder().encode
    answer_questions(lambda body: (encode(templates.answer(questions.decode(body))),), MAX_MEMORY_BYTES)


if __name__ == "__main__":
    main()
