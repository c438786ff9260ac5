"""Names of the formats in which models write calls and thoughts, as a manifest knows them."""

from __future__ import annotations

from typing import Literal

ToolFormat = Literal[
    "auto", "none", "hermes", "llama3_json", "pythonic", "mistral", "mistral_args", "qwen3_coder", "glm",
    "deepseek_v3", "deepseek_v31", "harmony",
]  # fmt: skip
ReasoningFormat = Literal["auto", "none", "think", "mistral", "seed", "harmony"]


def go_together(tools: ToolFormat, reasoning: ReasoningFormat) -> bool:
    """Harmony is the format of both at once."""
    named = {tools, reasoning} - {"auto"}
    return "harmony" not in named or len(named) == 1
