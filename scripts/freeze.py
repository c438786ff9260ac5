"""Writes constraints.txt: the exact versions, in this environment, of everything that `baton-serving[dev]` brings.

`--hashes` also writes what images install, with the hash of each file, for which it asks the package index
(`image_requirements`). `--check` writes nothing, asks nobody, and fails when a file names a version outside
pyproject.toml's ranges, lacks a package, or pins one that nothing needs, or when the images' files are not what
constraints.txt says. What a CUDA build of PyTorch brings is left to that build. Versions themselves are only changed by
running it without.
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
    """What a distribution asks for. Of ours pyproject.toml knows: what pip noted is as old as the last install."""
    if name != DISTRIBUTION:
        return [Requirement(text) for text in importlib.metadata.requires(name) or []]
    project = tomllib.loads(PROJECT.read_text())["project"]
    texts = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return [Requirement(text) for text in texts]


def closure(root: str, extras: tuple[str, ...]) -> set[str]:
    """Names of everything that an installed distribution needs here, itself excluded."""
    return needed([(canonicalize_name(root), extra) for extra in ("", *extras)]) - {canonicalize_name(root)}


def needed(asked: Iterable[tuple[str, str]]) -> set[str]:
    """Names of distributions and of everything that they need here; each comes with an extra of it, or with ""."""
    seen: set[tuple[str, str]] = set()
    names: set[str] = set()
    queue = list(asked)
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


def of_images() -> dict[str, set[str]]:
    """Names of everything that each image needs here."""
    build = [(canonicalize_name(each.name), "") for each in image_requirements.top_level("build")]
    roles = {role: closure(DISTRIBUTION, extras) for role, extras in image_requirements.EXTRAS.items()}
    return roles | {"build": needed(build)}


def frozen(names: set[str]) -> dict[str, str]:
    """Installed versions, without local parts such as +cpu: those say which build, not which release."""
    return {name: importlib.metadata.version(name).partition("+")[0] for name in sorted(names)}


def problems(pinned: dict[str, str], names: set[str]) -> list[str]:
    """What is wrong with the pins."""
    found = [f"{name} is needed and not pinned" for name in sorted(names - set(pinned))]
    found += [f"{name} is pinned and not needed" for name in sorted(set(pinned) - names)]
    extras = ("", *tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"])
    for requirement in (each for extra in extras for each in requirements(DISTRIBUTION, extra)):
        name = canonicalize_name(requirement.name)
        if name in pinned and pinned[name] not in requirement.specifier:
            found.append(f"{name}=={pinned[name]} is outside {requirement.specifier}")
    return found


def read_pins(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", text, flags=re.MULTILINE))


def main() -> int:
    names = closure(DISTRIBUTION, ("dev",))
    if "--check" not in sys.argv[1:]:
        pins = frozen(names)
        FILE.write_text(HEADER + "".join(f"{name}=={version}\n" for name, version in pins.items()))
        if "--hashes" in sys.argv[1:]:
            image_requirements.write(pins, sorted(set().union(*of_images().values())))
        return 0
    pins = read_pins(FILE.read_text())
    found = [f"constraints.txt: {each}; run scripts/freeze.py" for each in problems(pins, names)]
    found += [f"{each}; run scripts/freeze.py --hashes" for each in image_requirements.problems(pins, of_images())]
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
