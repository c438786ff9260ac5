"""docs/debugging.md explains every part of a request's time, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from baton_gateway.records.parts import MEANINGS, Part

PAGE = Path(__file__).resolve().parents[2] / "docs" / "debugging.md"


def test_the_table_of_parts_has_a_row_for_each_part_of_a_record() -> None:
    table = PAGE.read_text(encoding="utf-8").split("| largest part |")[1].split("\n\n")[0]
    first_cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    documented = [part for cell in first_cells for part in re.findall(r"`(\w+)`", cell)]
    assert sorted(documented) == sorted(Part)
    assert set(MEANINGS) == set(Part)
