"""A finding of the doctor, and how findings are printed."""

from __future__ import annotations

import enum
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

FIX_WIDTH = 100


class State(enum.StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"
    """Serving works, with less speed or fewer features."""
    FAILED = "failed"
    """Something that was asked for will not work."""
    UNKNOWN = "unknown"
    """The check lacks a fact."""


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """The outcome of one check."""

    check: str
    state: State
    text: str
    fix: str = ""
    """The command that mends it, or what to do where no command does; empty: nothing is to be done."""


def ok(check: str, text: str) -> DoctorFinding:
    return DoctorFinding(check, State.OK, text)


def warning(check: str, text: str, fix: str) -> DoctorFinding:
    return DoctorFinding(check, State.WARNING, text, fix)


def failed(check: str, text: str, fix: str) -> DoctorFinding:
    return DoctorFinding(check, State.FAILED, text, fix)


def unknown(check: str, text: str) -> DoctorFinding:
    return DoctorFinding(check, State.UNKNOWN, text)


def as_json(findings: Sequence[DoctorFinding]) -> dict[str, object]:
    """The findings for programs; `fix` is null where nothing is to be done."""
    counts = {state.value: sum(finding.state is state for finding in findings) for state in State}
    rows = [{"check": f.check, "state": f.state.value, "text": f.text, "fix": f.fix or None} for f in findings]
    return {"counts": counts, "findings": rows}


def as_text(findings: Sequence[DoctorFinding]) -> str:
    """The findings for people: one line each, and below it what mends it."""
    width = max((len(finding.check) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.state.value:<7}  {finding.check:<{width}}  {finding.text}")
        lines += [f"{'':<{9 + width}}  → {line}" for line in textwrap.wrap(finding.fix, FIX_WIDTH)]
    counts = [(sum(finding.state is state for finding in findings), state.value) for state in State]
    return "\n".join([*lines, "", ", ".join(f"{count} {name}" for count, name in counts if count)])


def exit_status(findings: Sequence[DoctorFinding]) -> int:
    """1 if a check failed, else 0: warnings and unknowns do not count."""
    return int(any(finding.state is State.FAILED for finding in findings))
