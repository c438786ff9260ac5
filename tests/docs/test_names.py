"""A name in backticks exists: what a docstring or a page calls by a name of two words or more is in the code."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    *("wire", "control", "simulate", "operator", "gateway", "kernels", "kv_transfer", "engine", "worker", "local"),
    *(
        "prefill_worker",
        "decode_worker",
        "flexible_worker",
        "model_fetch",
        "tests",
        "bench",
        "e2e",
        "scripts",
        "images",
    ),
)
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(set(ROOT.glob("docs/*.md")) - {ROOT / "docs" / "from-vllm.md"}),
]
NAMED = re.compile(r"`((?!baton_)[a-z][a-z0-9]*(?:_[a-z0-9]+)+)`")
"""A bare name of two words or more: single words are too often English. Metrics have a test of their own."""
WORD = re.compile(r"[A-Za-z_]\w*")
OF_UCX = frozenset({"ucx_info", "ucs_config_print_flags_t"})


def python_files() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from (ROOT / folder).rglob("*.py")


def docstrings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            match statement:
                case ast.Expr(ast.Constant(str(text))):
                    yield text


@functools.cache
def read_tree() -> tuple[frozenset[str], tuple[tuple[str, str], ...]]:
    """Every name that the code has, and every (place, name) that a docstring puts in backticks."""
    known = set(sys.stdlib_module_names) | OF_UCX
    named: list[tuple[str, str]] = []
    for path in python_files():
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        texts = list(docstrings(tree))
        known |= {path.stem, *path.relative_to(ROOT).parent.parts}
        known |= _names_of(tree, set(texts))
        place = str(path.relative_to(ROOT))
        named += [(place, name) for text in texts for name in NAMED.findall(text)]
    return frozenset(known), tuple(named)


def _names_of(tree: ast.AST, docs: set[str]) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            names.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in docs:
            names.update(WORD.findall(node.value))
        elif isinstance(node, ast.alias):
            names.update(node.name.split("."))
    return names


def test_every_name_in_a_docstring_exists() -> None:
    known, named = read_tree()
    assert [f"{place}: `{name}`" for place, name in named if name not in known] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_on_a_page_exists(page: Path) -> None:
    known, _ = read_tree()
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert [name for name in NAMED.findall(prose) if name not in known] == []


def test_a_name_that_is_gone_is_noticed() -> None:
    known, _ = read_tree()
    gone = "_".join(("decided", "in", "a", "module", "that", "is", "gone"))
    assert NAMED.findall(f"Decided in `{gone}`.") == [gone]
    assert gone not in known
    assert "test_every_name_in_a_docstring_exists" in known
