"""Names of the formats of tool calls and of reasoning, as a manifest has them."""

from __future__ import annotations

from typing import Literal

ToolFormat = Literal[
    "auto", "none", "hermes", "llama3_json", "pythonic", "mistral", "mistral_args", "qwen3_coder", "glm",
    "deepseek_v3", "deepseek_v31", "harmony",
]  # fmt: skip
ReasoningFormat = Literal["auto", "none", "think", "mistral", "seed", "harmony"]


def go_together(tools: ToolFormat, reasoning: ReasoningFormat) -> bool:
    """True unless only one of both is harmony, which is the format of tool calls and of reasoning."""
    named = {tools, reasoning} - {"auto"}
    return "harmony" not in named or len(named) == 1
