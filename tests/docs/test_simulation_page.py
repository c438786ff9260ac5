"""docs/simulation.md lists every defect of the zoo, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from baton_testing.simulation.zoo.neighbours import NEIGHBOURS
from baton_testing.simulation.zoo.zoo import ZOO

PAGE = Path(__file__).resolve().parents[2] / "docs" / "simulation.md"
DEFECT = re.compile(r"\b([A-Za-z][A-Za-z_]+)\b(?= \(I\d+\)|,| \|)")


def listed() -> list[str]:
    """The names in the second column of the table of one world, and in the first one of the table of three tenants."""
    one, three = PAGE.read_text(encoding="utf-8").split("## The zoo\n")[1].split("Worlds of three tenants")
    cells = re.findall(r"^\|[^|]+\|([^|]*\(I\d+\)[^|]*\|)$", one, re.MULTILINE)
    cells += re.findall(r"^\|([^|]+\|) I\d+ \|$", three, re.MULTILINE)
    return [name for cell in cells for name in DEFECT.findall(cell)]


def test_the_page_lists_every_defect_of_the_zoo_once() -> None:
    assert sorted(listed()) == sorted([mutant.name for mutant in (*ZOO, *NEIGHBOURS)])
