"""The helper process that renders chat templates: bounded in memory, killed when it takes too long.

A question names a template by key, and carries its source the first time. An answer has exactly one of text, refusal
and failure.
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
    """One conversation to render with a template."""

    key: str
    source: str | None
    """None: the process has it already."""
    control_tokens: tuple[str, ...]
    """Special tokens that only the template may write; given with the source."""
    conversation: msgspec.Raw
    """An encoded `Conversation`."""
    special_tokens: dict[str, str]


class RenderAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The rendered text, or why there is none."""

    text: str | None = None
    cuts: tuple[int, ...] = ()
    """Cuts of the text, as in `RenderedChat`."""
    refusal: str | None = None
    field: str = "messages"
    """The request's field that was refused."""
    failure: str | None = None
    is_unknown: bool = False
    """True if the process has dropped the template: it needs the source again."""


class Templates:
    """Compiled templates by key."""

    def __init__(self) -> None:
        self._compiled: dict[str, CompiledTemplate] = {}
        self._conversations = msgspec.json.Decoder(Conversation)

    def answer(self, question: Question) -> RenderAnswer:
        """Render a conversation; every error becomes an answer."""
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
        except Exception as error:  # noqa: BLE001 (a template is foreign code and may raise anything)
            return RenderAnswer(failure=f"the chat template failed: {type(error).__name__}")

    def _template(self, question: Question) -> CompiledTemplate | None:
        if question.source is not None:
            if len(self._compiled) >= MAX_TEMPLATES:
                self._compiled.clear()
            self._compiled[question.key] = CompiledTemplate(question.source, question.control_tokens)
        return self._compiled.get(question.key)


def main() -> None:
    """Answer questions until stdin ends."""
    templates = Templates()
    questions, encode = msgspec.json.Decoder(Question), msgspec.json.Encoder().encode
    answer_questions(lambda body: (encode(templates.answer(questions.decode(body))),), MAX_MEMORY_BYTES)


if __name__ == "__main__":
    main()
