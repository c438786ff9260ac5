"""docs/extending.md is walked: every file that it names exists, and every name is in its file.

Every product file that handles a section's example must be named in that section.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "extending.md"
STEP = re.compile(r"`([\w./-]+/[\w.-]+|[\w-]+\.(?:md|toml))(?::\s+(\w+))?`")
"""A path from the root, and perhaps a name in that file."""
EXAMPLES = {
    "A model family": r'"qwen3"',
    "A weight format": r"\bLinearMethod\b",
    "A transport": r'"ucx"|^UCX =',
    "A sampling parameter": r"\bmin_p\b",
    "A tool-call format": r'"deepseek_v31"',
    "An API surface": r"\bapis\.messages_(?:request|answer)\b|^def parse_message\b|^MESSAGES: AnswerForm",
    "A gateway metric": r"\bmetrics\.stalled\(|\bdef stalled\(self\) -> None",
    "A field of the CR": r"kv_cache_dtype|kvCacheDtype",
    "A scaling rule": r"\bSloSizing\(|class SloSizing\b|Sizing\(Protocol\)",
    "A kernel": r"def rms_norm\b|import rms_norm\b|rms_norm_triton",
}
"""Section → what a product file contains if it handles the section's example."""
OUTSIDE = ("tests/", "bench/", "e2e/", "examples/", "scripts/", "images/")


def sections() -> dict[str, str]:
    parts = re.split(r"^## (.+)\n", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def steps(text: str) -> list[tuple[str, str]]:
    return STEP.findall(text)


@functools.cache
def names_in(path: Path) -> set[str]:
    """The names that a module defines, calls or imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.Name(id=name) | ast.alias(name=name):
                names.add(name)
    return names


@functools.cache
def product_files() -> dict[str, str]:
    """The text of each product file, by its path."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: there is no list of tracked files")
    names = [name for name in listed.stdout.splitlines() if not name.startswith(OUTSIDE) and (ROOT / name).exists()]
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in names}


@pytest.mark.parametrize("section", EXAMPLES)
def test_every_file_and_name_of_a_section_exists(section: str) -> None:
    named = steps(sections()[section])
    assert len(named) >= 5
    assert [path for path, _ in named if not (ROOT / path).exists()] == []
    assert [f"{path}: {name}" for path, name in named if name and name not in names_in(ROOT / path)] == []


@pytest.mark.parametrize(("section", "example"), EXAMPLES.items(), ids=EXAMPLES)
def test_every_product_file_that_handles_the_example_is_named(section: str, example: str) -> None:
    named = {path for path, _ in steps(sections()[section])}
    handling = [name for name, text in product_files().items() if re.search(example, text, re.MULTILINE)]
    assert handling
    assert [name for name in handling if name not in named] == []


@pytest.mark.parametrize("page", sorted(path.name for path in PAGE.parent.glob("*.md")))
def test_names_that_a_page_gives_with_their_file_are_in_it(page: str) -> None:
    named = steps((PAGE.parent / page).read_text(encoding="utf-8"))
    missing = [
        f"{path}: {name}"
        for path, name in named
        if name and path.endswith(".py") and (ROOT / path).is_file() and name not in names_in(ROOT / path)
    ]
    assert missing == []


def test_every_section_is_walked() -> None:
    assert set(sections()) == set(EXAMPLES)
