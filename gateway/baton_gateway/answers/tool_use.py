"""The tools of a request, and whether and how they may be called."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class ToolMode(enum.StrEnum):
    """Modes of calling tools: never, at the model's choice, or always."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


class CallBound(enum.Enum):
    """Bounds that a grammar sets to calls and the text around them."""

    FREE = enum.auto()
    """There is no grammar."""
    MARKED = enum.auto()
    """Calls follow a grammar from their marks on: what has no mark is no call."""
    EITHER = enum.auto()
    """An answer that does not begin with a call has none, whatever its text spells."""
    ONLY = enum.auto()
    """Nothing but calls may come: any other text is the beginning of a call that was cut."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One function that the model may call."""

    name: str
    description: str | None
    parameters: Mapping[str, Any] | None
    """JSON Schema of the arguments; None: any object."""
    strict: bool
    """True if the arguments are constrained to `parameters`."""
    path: str = ""
    """The tool's place in the client's body; empty: its place among the tools."""

    def for_template(self) -> dict[str, Any]:
        """Return the tool as chat templates expect it, without `strict`, which models do not know."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        if self.parameters is not None:
            function["parameters"] = self.parameters
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools, and how they may be called. Without tools the mode is NONE."""

    tools: tuple[Tool, ...] = ()
    mode: ToolMode = ToolMode.NONE
    named: str | None = None
    """The only tool that may be called, with mode REQUIRED."""
    parallel: bool = True
    """True if one answer may have several calls."""

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that the answer may call."""
        if self.mode is ToolMode.NONE:
            return ()
        return tuple(tool for tool in self.tools if self.named is None or tool.name == self.named)


NO_TOOLS = ToolUse()
