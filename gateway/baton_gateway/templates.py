"""Rendering of chat templates for the event loop."""

from __future__ import annotations

from collections.abc import Sequence

from baton_gateway.bundle import Bundle
from baton_gateway.chat_template import TemplateFailureError, TemplateRefusalError, compile_template
from baton_gateway.errors import SERVER, Problem, RefusedError, invalid


class TemplateRenderer:
    async def render(self, bundle: Bundle, messages: Sequence[dict[str, str]]) -> str:
        if bundle.chat_template is None:
            raise invalid("messages", "This model has no chat template.", "no_chat_template")
        try:
            return compile_template(bundle.chat_template)(messages, bundle.special_tokens)
        except TemplateRefusalError as error:
            raise invalid("messages", f"The model's chat template refuses these messages: {error}") from error
        except TemplateFailureError as error:
            raise RefusedError(
                Problem(500, SERVER, "The model's chat template failed.", None, "template_failed")
            ) from error
