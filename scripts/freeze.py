"""Writes constraints.txt: the exact versions in this environment of all packages that `baton-serving[dev]` needs.

`--hashes` also writes the requirements of the images, with hashes of all files from the package index
(`image_requirements`). `--check` writes nothing and needs no index. It fails when a file pins a version outside
pyproject.toml's ranges, lacks a package, or pins an unneeded one, or when the images' files differ from
constraints.txt. Packages that a CUDA build of PyTorch needs are left to that build. Only a run without options changes
versions.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import image_requirements
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "constraints.txt"
PROJECT = ROOT / "pyproject.toml"
HEADER = """\
# Exact versions for `make install` and CI; ranges are in pyproject.toml. Written by scripts/freeze.py.
"""
DISTRIBUTION = "baton-serving"


def requirements(name: str, extra: str) -> list[Requirement]:
    """The requirements of a distribution; our own are read from pyproject.toml, because pip's record may be older."""
    if name != DISTRIBUTION:
        return [Requirement(text) for text in importlib.metadata.requires(name) or []]
    project = tomllib.loads(PROJECT.read_text())["project"]
    texts = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return [Requirement(text) for text in texts]


def closure(root: str, extras: tuple[str, ...]) -> set[str]:
    """Names of all packages that an installed distribution needs here, itself excluded."""
    return collect_needed([(canonicalize_name(root), extra) for extra in ("", *extras)]) - {canonicalize_name(root)}


def collect_needed(roots: Iterable[tuple[str, str]]) -> set[str]:
    """Names of distributions and of all that they need here. Each root is a distribution with an extra, or with ""."""
    seen: set[tuple[str, str]] = set()
    names: set[str] = set()
    queue = list(roots)
    while queue:
        name, extra = queue.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        names.add(name)
        for requirement in requirements(name, extra):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                queue += [(canonicalize_name(requirement.name), wanted) for wanted in ("", *requirement.extras)]
    return {name for name in names if not name.startswith(image_requirements.CUDA_PREFIXES)}


def needed_by_images() -> dict[str, set[str]]:
    """Names of all packages that each image needs here."""
    build = [(canonicalize_name(requirement.name), "") for requirement in image_requirements.top_level("build")]
    roles = {role: closure(DISTRIBUTION, extras) for role, extras in image_requirements.EXTRAS.items()}
    return roles | {"build": collect_needed(build)}


def frozen(names: set[str]) -> dict[str, str]:
    """Installed versions without local parts such as +cpu, which name a build and not a release."""
    return {name: importlib.metadata.version(name).partition("+")[0] for name in sorted(names)}


def problems(pinned: dict[str, str], names: set[str]) -> list[str]:
    """Problems of the pins, in words."""
    lines = [f"{name} is needed and not pinned" for name in sorted(names - set(pinned))]
    lines += [f"{name} is pinned and not needed" for name in sorted(set(pinned) - names)]
    extras = ("", *tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"])
    for requirement in (requirement for extra in extras for requirement in requirements(DISTRIBUTION, extra)):
        name = canonicalize_name(requirement.name)
        if name in pinned and pinned[name] not in requirement.specifier:
            lines.append(f"{name}=={pinned[name]} is outside {requirement.specifier}")
    return lines


def read_pins(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", text, flags=re.MULTILINE))


def main() -> int:
    names = closure(DISTRIBUTION, ("dev",))
    if "--check" not in sys.argv[1:]:
        pins = frozen(names)
        FILE.write_text(HEADER + "".join(f"{name}=={version}\n" for name, version in pins.items()))
        if "--hashes" in sys.argv[1:]:
            image_requirements.write(pins, sorted(set().union(*needed_by_images().values())))
        return 0
    pins = read_pins(FILE.read_text())
    lines = [f"constraints.txt: {problem}; run scripts/freeze.py" for problem in problems(pins, names)]
    of_images = image_requirements.problems(pins, needed_by_images())
    lines += [f"{problem}; run scripts/freeze.py --hashes" for problem in of_images]
    for line in lines:
        print(line, file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
