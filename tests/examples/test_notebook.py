"""The notebook-sized example: its cells are Python, and it shows what its first lines promise."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "notebook.py"


def test_the_example_is_python_in_cells_and_does_what_it_promises() -> None:
    text = SOURCE.read_text(encoding="utf-8")
    ast.parse(text)
    assert text.count("\n# %% ") >= 6
    for word in ("stream=True", '"json_schema"', "top_logprobs", "requests.jsonl", "savefig"):
        assert word in text
