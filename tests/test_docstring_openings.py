"""Docstrings begin with what a thing is or does, and no name says nothing: `each`, `found`, `told`, `said`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPENING = re.compile(r"(Of|Those|That|It|Who|What|Whether)\b")
"""A docstring that begins so has no noun of its own: it reads only with the line above."""
EMPTY_NAMES = {"each", "found", "told", "said"}


def files() -> Iterator[Path]:
    for package in sorted(ROOT.glob("*/baton_*")):
        yield from sorted(package.rglob("*.py"))


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every docstring with its line: of modules, classes and functions, and of attributes below their assignment."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            match statement:
                case ast.Expr(ast.Constant(str(text))):
                    yield statement.lineno, text


def test_every_docstring_begins_with_what_the_thing_is_or_does() -> None:
    bad = [
        f"{path.relative_to(ROOT)}:{line}: {text.strip().splitlines()[0]}"
        for path in files()
        for line, text in docstrings(ast.parse(path.read_text(encoding="utf-8")))
        if OPENING.match(text)
    ]
    assert bad == []


def test_every_local_is_named_after_what_it_holds() -> None:
    bad = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.id}"
        for path in files()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in EMPTY_NAMES
    ]
    assert bad == []


def test_every_package_is_read() -> None:
    assert len({path.relative_to(ROOT).parts[0] for path in files()}) == 14


def test_an_empty_opening_is_found() -> None:
    tree = ast.parse('"""Of them, the first."""\nclass A:\n    x: int\n    """The value."""\n')
    assert [bool(OPENING.match(text)) for _, text in docstrings(tree)] == [True, False]
