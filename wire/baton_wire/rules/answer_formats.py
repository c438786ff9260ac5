"""Names of the formats in which models write tool calls and reasoning: the same in manifests, flags and parsers.

Manifests check the names and gateways parse the formats, so a name stands here once.
"""

from __future__ import annotations

from typing import Literal, get_args

AUTO = "auto"
"""The model's chat template reveals the format."""
NONE = "none"
"""Nothing is parsed."""
HARMONY = "harmony"
"""The format of tool calls and of reasoning at once."""

ToolFormat = Literal[
    "auto", "none", "hermes", "llama3_json", "pythonic", "mistral", "mistral_args", "qwen3_coder", "glm",
    "deepseek_v3", "deepseek_v31", "seed_oss", "minimax_m2", "granite", "hunyuan_a13b", "olmo3", "harmony",
]  # fmt: skip
ReasoningFormat = Literal["auto", "none", "think", "think_answer", "think_response", "mistral", "seed", "harmony"]
TOOL_FORMAT_NAMES: tuple[str, ...] = get_args(ToolFormat)
REASONING_FORMAT_NAMES: tuple[str, ...] = get_args(ReasoningFormat)


def are_compatible(tool_format: str, reasoning_format: str) -> bool:
    """Return True if a model may have both formats: Harmony goes with no other one."""
    names = {tool_format, reasoning_format} - {AUTO}
    return HARMONY not in names or len(names) == 1
