"""The fields that configure how the chat template renders a prompt."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from baton_gateway.errors import invalid
from baton_gateway.openai_api.chat_messages import ChatMessage
from baton_gateway.openai_api.openai_fields import Fields, check_integer, wrong_type
from baton_gateway.text.chat_template import THINKING_SWITCHES

MAX_KWARGS_BYTES = 16 << 10
MAX_WORD = 64
MAX_BUDGET = 1 << 20
THINKING_TYPES = ("enabled", "adaptive", "auto", "disabled")


_BUDGETS = {"thinking": "budget_tokens", "reasoning": "max_tokens"}
"""Objects in which other providers' clients limit the reasoning, with the field of the limit."""


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
    variables = _variables(fields.take("chat_template_kwargs"))
    if (is_on := fields.take("enable_thinking")) is not None:
        variables = {"enable_thinking": _switch("enable_thinking", is_on)} | variables
    return Prompting(variables, _effort(fields), adds_prompt, continues)


def _variables(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong_type("chat_template_kwargs", "an object")
    if (size := len(msgspec.json.encode(value))) > MAX_KWARGS_BYTES:
        message = f"'chat_template_kwargs' has {size} bytes of JSON; at most {MAX_KWARGS_BYTES} are allowed."
        raise invalid("chat_template_kwargs", message, "too_long")
    return {name: _switch(name, content) if name in THINKING_SWITCHES else content for name, content in value.items()}


def _switch(name: str, value: Any) -> Any:
    """Read a switch of a template. Forms send texts, and any text would be true in a template."""
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if name == "enable_thinking":
        path = f"chat_template_kwargs.{name}"
        raise invalid(path, f"'{path}' must be true or false, not {value[:32]!r}.", "invalid_type")
    return value


def _effort(fields: Fields) -> ReasoningEffort | None:
    """Read OpenAI's field, or the object `reasoning` or `thinking` of other providers' clients."""
    value = fields.take("reasoning_effort")
    for name in ("reasoning", "thinking"):
        other = _other_effort(name, fields.take(name))
        value = other if value is None else value
    if value is None:
        return None
    value = "xhigh" if value == "max" else value
    if not isinstance(value, str) or value not in tuple(ReasoningEffort):
        raise invalid("reasoning_effort", f"'reasoning_effort' must be one of {', '.join(ReasoningEffort)}.")
    return ReasoningEffort(value)


def read_thinking_budget(fields: Fields) -> int | None:
    """Return the most reasoning tokens as other providers' clients write it; None: no limit. Raises RefusedError."""
    for name, limit in _BUDGETS.items():
        value = fields.peek(name)
        if isinstance(value, dict) and (budget := value.get(limit)) is not None:
            return check_integer(budget, f"{name}.{limit}", 0, MAX_BUDGET)
    return None


def _other_effort(name: str, value: Any) -> Any:
    """Read `reasoning: {effort, enabled}` as OpenRouter's clients write it, or `thinking: {type}`; None: as it is."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise wrong_type(name, "an object")
    fields = Fields(value, f"{name}.")
    kind = fields.take("type")
    is_enabled = fields.flag("enabled", True)
    fields.refuse("exclude", "reasoning is returned", harmless=(False,))
    effort = fields.take("effort")
    fields.text("summary", MAX_WORD)
    fields.take(_BUDGETS[name])
    fields.flag("clear_thinking", True)  # templates decide which earlier reasoning they render
    fields.end()
    if kind is not None and kind not in THINKING_TYPES:
        raise invalid(f"{name}.type", f"'{name}.type' must be one of {', '.join(THINKING_TYPES)}.")
    return "none" if kind == "disabled" or not is_enabled else effort
