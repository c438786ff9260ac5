"""Names in the product's source that are string constants."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
WORD = re.compile(r"[-/.$_]{0,2}[A-Za-z][\w./:-]+")
CAPITALS = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")
CAMEL_CASE = re.compile(r"[A-Z][a-z]\w+")
PLACE_OF_CODE = {"invalid": 2, "Problem": 4}
"""Among the arguments of what makes an error."""
ON_OBJECTS = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+/[\w-]*")


def syntax(pattern: str) -> Iterator[tuple[str, ast.Module]]:
    """(package, tree) of each file; at least one."""
    files = sorted(ROOT.glob(pattern))
    assert files, f"no file is called {pattern} any more: name the new one"
    for path in files:
        yield path.relative_to(ROOT).parts[1], ast.parse(path.read_bytes())


def text_of(node: ast.AST | None) -> str | None:
    """A string constant's text; None for any other node."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def keys_in(nodes: Iterable[ast.AST]) -> set[str]:
    """Keys of the dict literals among some nodes."""
    keys = (key for node in nodes if isinstance(node, ast.Dict) for key in node.keys)
    return {text for key in keys if (text := text_of(key)) is not None and text.isprintable()}


@functools.cache
def constants() -> Mapping[str, set[str]]:
    """String constants of one word by package, docstrings left out; those that are keys of dict literals as `key:`."""
    constants_by_package: dict[str, set[str]] = {}
    for package, tree in syntax("*/baton_*/**/*.py"):
        nodes = list(ast.walk(tree))
        docs = {node.value for node in nodes if isinstance(node, ast.Expr)}
        texts = (node.value for node in nodes if isinstance(node, ast.Constant) and node not in docs)
        words = constants_by_package.setdefault(package, set())
        words |= {text for text in texts if isinstance(text, str) and WORD.fullmatch(text)}
        words |= {f"{key}:" for key in keys_in(nodes)}
    return constants_by_package


def matching(pattern: re.Pattern[str], package: str = "") -> Iterator[str]:
    """The constants of one package, or of all, that a pattern describes."""
    for name, words in constants().items():
        if package in ("", name):
            yield from (word for word in words if pattern.fullmatch(word.removesuffix(":")))


def words() -> Iterator[str]:
    """Constants that no other pattern describes, each after its package."""
    for package, words_of_package in constants().items():
        for word in words_of_package:
            is_elsewhere = any(pattern.fullmatch(word) for pattern in (CAPITALS, ON_OBJECTS))
            if not is_elsewhere and not (package == "baton_operator" and CAMEL_CASE.fullmatch(word)):
                yield f"{package} {word}"


def codes_where_raised() -> Iterator[str]:
    """Codes of the gateway's errors where an error is made."""
    for _, tree in syntax("gateway/baton_gateway/**/*.py"):
        for node in ast.walk(tree):
            place = PLACE_OF_CODE.get(ast.unparse(node.func).rpartition(".")[2]) if isinstance(node, ast.Call) else None
            if isinstance(node, ast.Call) and place is not None:
                named = (keyword.value for keyword in node.keywords if keyword.arg == "code")
                yield from (text for given in (*node.args[place : place + 1], *named) if (text := text_of(given)))


def returned_numbers(pattern: str) -> Iterator[str]:
    """Whole numbers that functions declared as `int` return, by package: constants, or names of a file's constants."""
    for package, tree in syntax(pattern):
        numbers = {
            ast.unparse(node.targets[0]): ast.unparse(node.value) for node in tree.body if isinstance(node, ast.Assign)
        }
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and _is_int(function.returns):
                returns = (node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value)
                return_texts = (numbers.get(text, text) for text in map(ast.unparse, returns))
                yield from (f"{package} {number}" for number in return_texts if number.isdigit())


def _is_int(annotation: ast.expr | None) -> bool:
    return isinstance(annotation, ast.Name) and annotation.id == "int"
