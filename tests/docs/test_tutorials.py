"""Commands of the tutorials exist: baton's parser takes them, make has the targets, files are there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from baton_control.spec.api import KIND
from baton_control.spec.manifest import parse_object
from baton_local.options import parse_options

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "tutorials"
PAGES = sorted(FOLDER.glob("*.md"))
FOREIGN = {"kubectl", "helm", "curl", "export", "git"}
"""Programs that are not in this repository."""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each command, lines that go on joined."""
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                yield words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    seen = 0
    for words in commands(page):
        program, arguments = words[0], words[1:]
        seen += 1
        if program == "baton":
            parse_options(arguments)
        elif program == "make":
            assert arguments[0] in targets, words
        elif "/" in program:
            assert (ROOT / program).is_file(), program
        else:
            assert program in FOREIGN, program
        for word in arguments:
            if re.fullmatch(r"(?:charts|examples|e2e)/[\w./-]+", word):
                assert (ROOT / word).exists(), word
    assert seen >= 8


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_manifest_is_valid(page: Path) -> None:
    documents = [document for block in blocks(page, "yaml") for document in yaml.safe_load_all(block)]
    deployments = [document for document in documents if document["kind"] == KIND]
    assert deployments
    for document in deployments:
        parse_object(document)


def test_chart_values_in_tutorials_exist() -> None:
    values = yaml.safe_load((ROOT / "charts" / "baton" / "values.yaml").read_text(encoding="utf-8"))
    for page in PAGES:
        for path in re.findall(r"--set (\w+(?:\.\w+)+)=", page.read_text(encoding="utf-8")):
            inside = values
            for part in path.split("."):
                assert part in inside, path
                inside = inside[part]


def test_both_tutorials_are_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert len(PAGES) == 2
    assert [page.name for page in PAGES if f"(tutorials/{page.name})" not in index] == []
