"""Support of each keyword of JSON Schema: the Test Suite through the gateway's own check, and docs/structured.md.

    python -m bench structured_support [--suite jsonschema-4.26.0.tar.gz]

A case counts for every keyword in its schema. Of a schema that is followed each instance of the suite is
written as JSON and shown to the grammar: an invalid one must never be followed. Unknown formats are refused (`strict`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.structured.json_schema_suite import SuiteCase, keywords, suite_cases
from llguidance import LLMatcher, LLTokenizer

from baton_gateway.errors import RefusedError
from baton_gateway.structured_outputs.grammar_builder import build_grammar
from baton_gateway.structured_outputs.output_format import json_format
from baton_gateway.structured_outputs.schema_keywords import ENFORCED, REFUSED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "structured.md"
BEGIN, END = "<!-- support: written by `python -m bench structured_support` -->", "<!-- end of support -->"
ONLY = {
    "uniqueItems": "enforced where an item has few values",
    "oneOf": "enforced where the cases exclude each other",
    "nullable": "OpenAPI's: next to `type` null is allowed too",
}
_BYTES = LLTokenizer("byte")


def tally(cases: Iterable[SuiteCase]) -> tuple[dict[str, Counter[str]], list[str]]:
    """Counts by keyword, and what was followed although it is invalid."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    wrong: list[str] = []
    for case in cases:
        outcome = _outcome(case, wrong)
        for keyword in keywords(case.schema):
            counts[keyword].update(outcome)
    return counts, wrong


def _outcome(case: SuiteCase, wrong: list[str]) -> Counter[str]:
    try:
        definition = build_grammar(json_format(case.schema, "schema", is_strict=True))
    except RefusedError:
        return Counter(refused=1)
    outcomes = Counter(followed=1)
    for instance, is_valid in case.instances:
        text = json.dumps(instance, ensure_ascii=False)
        if follows(definition, text):
            outcomes["valid" if is_valid else "invalid"] += 1
            if not is_valid:
                wrong.append(f"{case.place}: {text}")
        elif is_valid:
            outcomes["missed"] += 1
    return outcomes


def follows(definition: str, text: str) -> bool:
    """True if `text` is a whole answer. Text that is no Unicode is none."""
    matcher = LLMatcher(_BYTES, definition, log_level=0)
    ids = list(text.encode(errors="replace"))
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def table(counts: dict[str, Counter[str]]) -> str:
    """The rows of the page, a keyword each."""
    rows = ["| keyword | what becomes of it | schemas followed | refused | valid answers followed | not written |"]
    rows.append("|---|---|---|---|---|---|")
    for keyword in sorted(ENFORCED) + sorted(REFUSED):
        count = counts.get(keyword, Counter())
        treatment = f"refused: {REFUSED[keyword]}" if keyword in REFUSED else ONLY.get(keyword, "enforced")
        figures: list[Any] = [count[outcome] for outcome in ("followed", "refused", "valid", "missed")]
        rows.append(f"| `{keyword}` | {treatment} | {' | '.join(map(str, figures))} |")
    return "\n".join(rows)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="structured_support", description=__doc__.splitlines()[0])
    parser.add_argument("--suite", type=Path, help="the source package of jsonschema; else it is fetched")
    options = parser.parse_args(arguments)
    counts, wrong = tally(suite_cases(options.suite))
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(counts)}\n\n{END}{after}", encoding="utf-8")
    print(f"{PAGE.name}: {len(counts)} keywords; invalid and followed: {len(wrong)}")
    for problem in wrong:
        print(f"  {problem}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
