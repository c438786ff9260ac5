"""Reads the training text: questions with their answers, and what is generated to go with them.

A corpus file is a row of entries: one or more `Q: question` lines, then `A: answer`, which runs to the next `Q:` line
or the end of the file. All of it was written for this repository.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a friendly assistant who answers in plain English.",
    "Answer the question of the user.",
    "Be brief.",
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One answer and the questions that lead to it."""

    questions: tuple[str, ...]
    answer: str


def parse(text: str, name: str) -> list[Entry]:
    """Entries of one file. Raises ValueError that names the line when the form is broken."""
    entries: list[Entry] = []
    questions: list[str] = []
    answer: list[str] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("Q: "):
            if answer is not None:
                entries.append(Entry(tuple(questions), "\n".join(answer).strip()))
                questions, answer = [], None
            questions.append(line.removeprefix("Q: "))
        elif line.startswith("A: ") and questions and answer is None:
            answer = [line.removeprefix("A: ")]
        elif answer is not None:
            answer.append(line)
        elif line.strip():
            raise ValueError(f"{name}:{number}: expected a 'Q: ' or 'A: ' line, found {line[:40]!r}")
    if answer is None:
        raise ValueError(f"{name}: the last question has no answer")
    return [*entries, Entry(tuple(questions), "\n".join(answer).strip())]


def sums() -> list[Entry]:
    """One-digit additions: the only generated part."""
    return [
        Entry((f"What is {a} plus {b}?", f"What is {a} + {b}?"), f"{a} plus {b} is {a + b}.")
        for a in range(10)
        for b in range(10)
    ]


def written() -> list[Entry]:
    """All hand-written entries, in the order of the files' names."""
    return [
        entry for path in sorted(FOLDER.glob("*.txt")) for entry in parse(path.read_text(encoding="utf-8"), path.name)
    ]
