"""Links between pages lead somewhere: the file exists, and the heading that an anchor names."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("lab/*.md")),
]
LINK = re.compile(r"(?:\]\(|^\[[\w-]+\]: )([^)\s]+)", re.MULTILINE)
TREE = (
    "bench|charts|control|crds|decode_worker|docs|e2e|engine|examples|gateway|images|kernels|kv_transfer|lab|local"
    "|model_fetch|operator|prefill_worker|scripts|simulate|tests|wire|worker"
)
NAMED = re.compile(rf"`((?:{TREE})/[\w./-]*[\w/])(?::\s+\w+)?`")
"""A path from the root, as pages name files. The lab notebook is left out: it names files as they were."""


@functools.cache
def modules() -> frozenset[str]:
    """Names of Python files anywhere in the tree."""
    return frozenset(path.name for folder in ROOT.glob("[a-z]*") if folder.is_dir() for path in folder.rglob("*.py"))


def shown(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken(page: Path) -> Iterator[str]:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken(page)) == []


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.parent != ROOT / "lab"],
    ids=shown,
)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    named = NAMED.findall(page.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists() and not list(ROOT.glob(f"{path}*"))] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent != ROOT / "lab"], ids=shown)
def test_modules_that_a_page_names_without_their_folder_are_there(page: Path) -> None:
    spans = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))
    named = [name for span in spans for name in re.findall(r"(?<![\w*])\w+\.py\b", span)]
    assert [name for name in named if name not in modules() and name != "file.py"] == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"]
    folders = [f"{page.parent.name}/README.md" for page in (ROOT / "docs").glob("*/README.md")]
    assert [page for page in [*pages, *folders] if f"({page})" not in index] == []


def test_every_page_of_the_log_is_among_its_topics() -> None:
    folder = ROOT / "lab"
    topics = (folder / "README.md").read_text(encoding="utf-8").split("## Topics")[1]
    listed = set(re.findall(r"^\| \[([\w-]+\.md)\]\(", topics, re.MULTILINE))
    assert {page.name for page in folder.glob("*.md")} - {"README.md", "moves.md"} == listed


def test_every_decision_is_in_its_index() -> None:
    folder = ROOT / "docs" / "decisions"
    rows = re.findall(r"^\| (\d+) \| ([\d-]+) \|.*\]\(([\w-]+\.md)\)", (folder / "README.md").read_text(), re.MULTILINE)
    assert {name for _, _, name in rows} == {page.name for page in folder.glob("*.md")} - {"README.md"}
    assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1))
    for number, day, name in rows:
        assert f"*No. {number} · {day} · " in (folder / name).read_text(encoding="utf-8")


def test_decisions_are_linked_by_their_own_numbers() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = {page.name: page.read_text(encoding="utf-8") for page in folder.glob("*.md")}
    links = [
        (page, number, target)
        for page, text in pages.items()
        for number, target in re.findall(r"\[No\.\s(\d+)\]\(([\w-]+\.md)\)", text)
    ]
    assert links
    assert [link for link in links if f"*No. {link[1]} · " not in pages[link[2]]] == []


def test_the_index_and_the_page_name_the_same_replacement_of_a_decision() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"\]\(([\w-]+\.md)\) \|.*replaced by No\. (\d+)", index))
    heads = {page.name: page.read_text(encoding="utf-8").split("\n\n")[1] for page in folder.glob("*.md")}
    replaced = {
        name: match[1] for name, head in heads.items() if (match := re.search(r"replaced by \[No\. (\d+)\]\(", head))
    }
    assert replaced
    assert listed == replaced
