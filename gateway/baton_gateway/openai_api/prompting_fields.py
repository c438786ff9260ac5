"""The fields that configure how the chat template renders a prompt."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from baton_gateway.errors import invalid
from baton_gateway.openai_api.chat_messages import ChatMessage
from baton_gateway.openai_api.openai_fields import Fields, wrong_type

MAX_KWARGS_BYTES = 16 << 10


class ReasoningEffort(enum.StrEnum):
    """How much a model should reason, as far as its template supports it."""

    NONE = "none"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    XHIGH = "xhigh"


@dataclass(frozen=True, slots=True)
class Prompting:
    """The input of the template besides messages and tools."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    """The client's `chat_template_kwargs`; only variables that the template reads are allowed."""
    effort: ReasoningEffort | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """True if the answer continues the last message, which is an assistant's."""


PLAIN_PROMPTING = Prompting()


def read_prompting(fields: Fields, messages: Sequence[ChatMessage]) -> Prompting:
    """Read the template's fields from a body. Raises RefusedError."""
    fields.refuse("chat_template", "the model's own template is used")
    continues = fields.flag("continue_final_message", False)
    adds_prompt = fields.flag("add_generation_prompt", not continues)
    if continues and adds_prompt:
        message = "'continue_final_message' and 'add_generation_prompt' exclude each other."
        raise invalid("continue_final_message", message)
    if continues and (not messages or messages[-1]["role"] != "assistant" or "tool_calls" in messages[-1]):
        message = "'continue_final_message' needs a last message of the assistant, without calls."
        raise invalid("continue_final_message", message)
    return Prompting(_variables(fields.take("chat_template_kwargs")), _effort(fields), adds_prompt, continues)


def _variables(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong_type("chat_template_kwargs", "an object")
    if (size := len(msgspec.json.encode(value))) > MAX_KWARGS_BYTES:
        message = f"'chat_template_kwargs' has {size} bytes of JSON; at most {MAX_KWARGS_BYTES} are allowed."
        raise invalid("chat_template_kwargs", message, "too_long")
    return value


def _effort(fields: Fields) -> ReasoningEffort | None:
    value = fields.take("reasoning_effort")
    if value is None:
        return None
    if not isinstance(value, str) or value not in tuple(ReasoningEffort):
        raise invalid("reasoning_effort", f"'reasoning_effort' must be one of {', '.join(ReasoningEffort)}.")
    return ReasoningEffort(value)
