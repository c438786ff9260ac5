"""Run by the mutation tool's own interpreter: draws mutants of one file and writes a line of JSON for every mutant.

`draw_mutants.py FILE COUNT SEED`. A place of the source is drawn first and then an operator, so that a comparison with
six replacements counts no more than a `not`. A line has the operator, the line number and the whole mutated source.
A mutant that differs in annotations, options of dataclasses or formatting alone is left out: no test should notice it.
"""

from __future__ import annotations

import ast
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cosmic_ray.ast import get_ast
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.plugins import get_operator, operator_names

LEFT_OUT = re.compile(
    "core/(VariableInserter|VariableReplacer"  # need arguments
    "|RemoveDecorator"  # breaks dataclasses at import, which proves nothing about tests
    "|ReplaceComparisonOperator_(Is|IsNot)_.*"  # a TypeError, or the same for enums and None
    "|ReplaceComparisonOperator_.*_(Is|IsNot))"
)


def main() -> None:
    """Draw the mutants that the arguments ask for."""
    source, count, dice = Path(sys.argv[1]).read_text(), int(sys.argv[2]), random.Random(sys.argv[3])
    original = _behaviour(source)
    drawn: set[str] = set()
    places = _places(source)
    keys = sorted(places)
    dice.shuffle(keys)
    while keys and len(drawn) < count:
        key = keys.pop()
        operator, occurrence = dice.choice(places[key])
        mutated = MutationVisitor.mutate_code(source, get_operator(operator)(), occurrence)
        if mutated is None or mutated in drawn or not _is_different(mutated, original):
            continue
        drawn.add(mutated)
        print(json.dumps({"operator": operator, "line": _first_change(source, mutated), "source": mutated}))


def _places(source: str) -> dict[tuple[int, int], list[tuple[str, int]]]:
    """By line and column: the operators that apply there, each with its occurrence in the file."""
    places: dict[tuple[int, int], list[tuple[str, int]]] = {}
    tree = get_ast(source)
    for name in sorted(name for name in operator_names() if not LEFT_OUT.fullmatch(name)):
        operator = get_operator(name)()
        occurrence = 0
        for node in _nodes(tree):
            for start, _ in operator.mutation_positions(node):
                places.setdefault(start, []).append((name, occurrence))
                occurrence += 1
    return places


def _nodes(node: Any) -> Iterator[Any]:
    """The parso nodes below `node` and itself, in the order in which the tool's own visitor counts occurrences."""
    yield node
    for child in getattr(node, "children", ()):
        yield from _nodes(child)


def _is_different(mutated: str, original: str) -> bool:
    try:
        return _behaviour(mutated) != original
    except SyntaxError:
        return False


def _behaviour(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.ClassDef):
            node.decorator_list = []
    return ast.dump(tree)


def _first_change(source: str, mutated: str) -> int:
    pairs = zip(source.splitlines(), mutated.splitlines(), strict=False)
    return next((number for number, (before, after) in enumerate(pairs, 1) if before != after), 0)


if __name__ == "__main__":
    main()
