"""What a request says of tools: which there are, and whether and how they are to be called."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class ToolMode(enum.StrEnum):
    """Who decides whether a tool is called."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Tool:
    """One function that the model may call."""

    name: str
    description: str | None
    parameters: Mapping[str, Any] | None
    """JSON Schema of the arguments; None: not said, so any object."""
    strict: bool
    """The arguments keep to `parameters`, whatever the model would rather write."""

    def for_template(self) -> dict[str, Any]:
        """As chat templates know it. `strict` is between client and gateway; models were not trained with it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        if self.parameters is not None:
            function["parameters"] = self.parameters
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools and how they may be called. Without tools the mode is NONE."""

    tools: tuple[Tool, ...] = ()
    mode: ToolMode = ToolMode.NONE
    named: str | None = None
    """With REQUIRED: the only tool that may be called."""
    parallel: bool = True
    """Whether one answer may have several calls."""

    @property
    def callable(self) -> tuple[Tool, ...]:
        """Tools that this answer may call."""
        if self.mode is ToolMode.NONE:
            return ()
        return tuple(tool for tool in self.tools if self.named is None or tool.name == self.named)


NO_TOOLS = ToolUse()
