"""Pages stay readable in a diff: lines and table cells are narrow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page.relative_to(ROOT)
    for page in (
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("lab/*.md"),
        *ROOT.glob("examples/**/*.md"),
    )
)
MAX_LINE = 120
MAX_CELL = 120
REFERENCE = re.compile(r"^\[[\w-]+\]: \S+$")
"""The target of a link by name cannot be wrapped."""


def lines_of(page: Path) -> list[str]:
    return (ROOT / page).read_text(encoding="utf-8").splitlines()


def is_row(line: str) -> bool:
    return line.lstrip().startswith("|")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_lines_and_cells_are_narrow(page: Path) -> None:
    wide = [
        f"{page}:{number}: {what}"
        for number, line in enumerate(lines_of(page), 1)
        for what in (
            [f"cell of {len(cell)}" for cell in cells(line) if len(cell) > MAX_CELL]
            if is_row(line)
            else [f"line of {len(line)}"] * (len(line) > MAX_LINE and not REFERENCE.match(line))
        )
    ]
    assert wide == []
