"""The JSON Schema Test Suite (MIT licence, draft 2020-12), as the source package of `jsonschema` brings it along."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = "jsonschema==4.26.0"
_INSIDE = "/json/tests/draft2020-12/"
_ABROAD = ("optional/format/idn", "optional/format/iri", "optional/cross-draft")


@dataclass(frozen=True, slots=True)
class SuiteCase:
    """One schema with instances that are valid or not."""

    place: str
    """File and description."""
    schema: Any
    instances: tuple[tuple[Any, bool], ...]


def suite_cases(package: Path | None = None) -> list[SuiteCase]:
    """All cases of the package's suite; without a package it is fetched with pip, into a folder that goes away."""
    if package is not None:
        return list(_read(package))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", folder]
        subprocess.run([*command, SOURCE], check=True, timeout=300)
        [archive] = Path(folder).glob("*.tar.gz")
        return list(_read(archive))


def _read(package: Path) -> Iterator[SuiteCase]:
    with tarfile.open(package) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            _, separator, name = member.name.partition(_INSIDE)
            if not separator or not name.endswith(".json") or name.startswith(_ABROAD):
                continue
            content = archive.extractfile(member)
            assert content is not None
            for group in json.load(content):
                instances = tuple((test["data"], test["valid"]) for test in group["tests"])
                yield SuiteCase(f"{name}: {group['description']}", group["schema"], instances)


def keywords(schema: Any) -> set[str]:
    """Every key that appears anywhere in a schema."""
    if isinstance(schema, dict):
        return set(schema).union(*map(keywords, schema.values()))
    return set().union(*map(keywords, schema)) if isinstance(schema, list) else set()
