"""Errors of the control plane. The type says what the caller does.

OperatorError
├── ManifestError      the LLMDeployment is invalid: report every problem to the user, change nothing
│   └── NotAllowedError    it is valid, but the installation does not allow what it asks for
└── UnsupportedError   the LLMDeployment is valid, but this site cannot run it: report the field and the reason
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_SHOWN_VALUE = 80
MAX_SHOWN_BITS = 256


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """A problem with one field of a manifest."""

    path: str
    """Dotted path as in the manifest, such as `spec.prefill.replicas.min`; empty for the whole file."""
    message: str
    """The problem and the allowed values."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class OperatorError(Exception):
    """Base of every error that this package raises on purpose."""


class ManifestError(OperatorError):
    """A manifest that cannot be used; carries all its problems, in the order of the file."""

    def __init__(self, problems: tuple[FieldProblem, ...]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems


class NotAllowedError(ManifestError):
    """A valid manifest that asks for something that this installation of Baton does not allow."""


class UnsupportedError(OperatorError):
    """A valid field value that the site asked to run it cannot honour."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.problem = FieldProblem(path, message)


def shown(value: object) -> str:
    """A value for an error message: escaped, on one line, shortened."""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif value is None:
        text = "null"
    elif isinstance(value, dict):
        text = "a mapping"
    elif isinstance(value, list | tuple):
        text = f"a list of {len(value)}"
    elif isinstance(value, int) and value.bit_length() > MAX_SHOWN_BITS:
        text = f"an integer of {value.bit_length()} bits"  # Python writes no integer of very many digits
    else:
        text = repr(value)
    return text if len(text) <= MAX_SHOWN_VALUE else text[: MAX_SHOWN_VALUE - 1] + "…"
