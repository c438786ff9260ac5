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


def test_its_cells_run_in_a_kernel_which_has_an_event_loop_and_must_not_exit() -> None:
    """Found: `asyncio.run` raised in a notebook, and `sys.exit` ended its cell with a traceback."""
    names = {ast.unparse(node.func) for node in ast.walk(ast.parse(SOURCE.read_text())) if isinstance(node, ast.Call)}
    assert not names & {"asyncio.run", "sys.exit", "exit", "quit"}
