"""Prose is checked by counting: short sentences, narrow table cells, lines that a diff can show.

Sentences are counted in paragraphs and list items, outside code, tables and headings; an inline code span, a formula in
parentheses included, is one word. The log is a record: its entries are wrapped, their sentences stay as they were.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page.relative_to(ROOT)
    for page in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
    )
)
RECORDS = Path("lab")
"""Entries of the lab notebook; its index is prose."""
MAX_LINE = 120
MAX_CELL = 120
MAX_WORDS = 29
FENCE = re.compile(r"^\s*```")
END = re.compile(r"(?<=[.!?])[\"”’')*_]*\s+(?=[^a-z])")
"""A sentence ends at a stop, closing marks and a blank, unless a small letter follows."""


def lines_of(page: Path) -> list[str]:
    return (ROOT / page).read_text(encoding="utf-8").splitlines()


def is_row(line: str) -> bool:
    return line.lstrip().startswith("|")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def blocks(lines: list[str]) -> Iterator[str]:
    """Paragraphs and list items as one line each; no code, tables, headings or pictures."""
    held: list[str] = []
    in_code = False
    for line in [*lines, ""]:
        fence = FENCE.match(line) is not None
        starts_item = re.match(r"\s*([-*]|\d+\.)\s+", line)
        if fence or in_code or not line.strip() or is_row(line) or line.startswith(("#", "!", ">")) or starts_item:
            if held:
                yield " ".join(held)
            held = []
        if fence:
            in_code = not in_code
        elif in_code or not line.strip() or is_row(line) or line.startswith(("#", "!")):
            continue
        else:
            held.append(re.sub(r"^\s*([-*>]|\d+\.)\s+", "", line).strip())


def sentences(block: str) -> list[str]:
    plain = re.sub(r"`[^`]+`", "Code", block)
    plain = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", plain)
    return [sentence for sentence in END.split(plain.replace("**", "")) if sentence.strip()]


def words(sentence: str) -> int:
    return sum(any(letter.isalnum() for letter in word) for word in sentence.split())


def is_record(page: Path) -> bool:
    return page.parent == RECORDS and page.name != "README.md"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_lines_and_cells_are_narrow(page: Path) -> None:
    wide = [
        f"{page}:{number}: {what}"
        for number, line in enumerate(lines_of(page), 1)
        for what in (
            [f"cell of {len(cell)}" for cell in cells(line) if len(cell) > MAX_CELL]
            if is_row(line)
            else [f"line of {len(line)}"] * (len(line) > MAX_LINE)
        )
    ]
    assert wide == []


@pytest.mark.parametrize("page", [page for page in PAGES if not is_record(page)], ids=str)
def test_sentences_are_short(page: Path) -> None:
    found = [sentence for block in blocks(lines_of(page)) for sentence in sentences(block)]
    assert [f"{words(sentence)}: {sentence}" for sentence in found if words(sentence) > MAX_WORDS] == []


def test_a_long_sentence_is_found() -> None:
    block = "One two. Many " + "words " * 30 + "end. Three `a b c d` four."
    assert [words(sentence) for sentence in sentences(block)] == [2, 32, 3]


def test_prose_is_told_from_what_is_not() -> None:
    page = ["# head", "a", "b", "| x |", "- c", "  d", "```", "code", "```", "1. e", "", "f"]
    assert list(blocks(page)) == ["a b", "c d", "e", "f"]
