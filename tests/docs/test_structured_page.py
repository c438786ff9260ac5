"""docs/structured.md tells of every keyword that the gateway knows, as the bench wrote it."""

from __future__ import annotations

import re
from collections import Counter

from bench.structured.json_schema_suite import SuiteCase
from bench.structured.support import BEGIN, END, PAGE, table, tally

from baton_gateway.structured_outputs.schema_keywords import ENFORCED, REFUSED


def written() -> list[str]:
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return rest.partition(END)[0].strip().splitlines()


def without_figures(rows: list[str]) -> list[str]:
    return [re.sub(r"( \| \d+)+ \|$", "", row) for row in rows]


def test_the_table_has_every_keyword_and_what_becomes_of_it() -> None:
    assert without_figures(written()) == without_figures(table({}).splitlines())
    assert len(written()) == 2 + len(ENFORCED) + len(REFUSED)


def test_figures_are_of_a_run() -> None:
    followed = [int(row.split(" | ")[2]) for row in written()[2:]]
    assert sum(followed) > 300


def test_a_case_counts_for_each_of_its_keywords() -> None:
    good = SuiteCase("x", {"type": "integer", "minimum": 2}, ((3, True), (1, False), (2.0, True)))
    bad = SuiteCase("y", {"not": {}, "minimum": 2}, ((3, True),))
    counts, wrong = tally([good, bad])
    assert counts["minimum"] == Counter(followed=1, refused=1, valid=1, missed=1)
    assert counts["not"] == Counter(refused=1)
    assert wrong == []
