"""The README's first screens: short, and every command, snippet and manifest in them works."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import yaml

from baton_control.spec.manifest import parse_object
from baton_local.options import parse_options

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_the_demo_is_followed_by_a_command_that_the_clone_has() -> None:
    """Found: after `make demo` a reader had no `baton`, and no page named its place."""
    first = blocks("sh")[0]
    assert first.index("make demo") < first.index(".venv/bin/baton up examples/tiny-llama") < first.index(" chat ")
    assert (ROOT / "examples" / "tiny-llama").is_dir()


def test_it_shows_what_a_stranger_looks_for() -> None:
    for word in (
        "make demo",
        "KV BYTES",
        "from openai import OpenAI",
        "kubectl apply",
        "It does not pay",
        "pip install",
    ):
        assert word in README, word
    assert README.index("make demo") < README.index("## On a cluster")


def test_its_commands_are_taken_by_the_parser() -> None:
    seen = 0
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for block in blocks("sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] in ("baton", ".venv/bin/baton"):
                seen += 1
                parse_options(words[1 : words.index("&&") if "&&" in words else None])
            elif words[:1] == ["make"]:
                assert words[1] in targets
    assert seen >= 3


def test_its_snippet_is_python_and_its_manifest_is_valid() -> None:
    for block in blocks("python"):
        ast.parse(block)
    [manifest] = blocks("yaml")
    parse_object(yaml.safe_load(manifest.replace("<commit>", "0" * 40)))
