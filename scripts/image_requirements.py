"""images/requirements-ROLE.txt: the packages of each image, by exact version and by the SHA-256 of each file.

`write` queries the configured package index with pip, which downloads no file if the index serves metadata separately.
`problems` compares the files with constraints.txt and pyproject.toml, without an index. CPU builds of PyTorch come from
an index of their own (TORCH_INDEX), whose files have other hashes: unavailable ones are left out, and the build of an
image gets one as TORCH_HASH (images/steps.sh).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = {
    "operator": ("operator",),
    "gateway": ("gateway", "jwt", "otel"),
    "worker-cpu": ("worker",),
    "worker-cuda": ("worker", "gpu", "ucx"),
    "all": ("operator", "gateway", "jwt", "otel", "worker"),
    "build": (),
}
"""Extras of each role, as in images/steps.sh. `build` has the packages for building Baton's own wheel."""
PYTHONS, MACHINES = ("3.11", "3.12", "3.13"), ("x86_64", "aarch64")
CPU_TORCH = ("worker-cpu", "all")
CUDA_PREFIXES = ("nvidia-", "cuda-")
"""Packages that a CUDA build of PyTorch needs; that build pins them, not constraints.txt."""
DEADLINE_S = 600
HEADER = """\
# What the image `{role}` installs, with the hash of each file. Written by scripts/freeze.py --hashes.
"""
_LINE = re.compile(r"^([a-z0-9-]+)==(\S+?)(?: ; (.+?))?((?: --hash=sha256:[0-9a-f]{64})*)$")


@dataclass(frozen=True)
class Target:
    """One kind of image."""

    python: str
    machine: str

    @property
    def environment(self) -> dict[str, str]:
        """The environment for markers."""
        return {
            "python_version": self.python,
            "python_full_version": f"{self.python}.0",
            "platform_machine": self.machine,
            "platform_system": "Linux",
            "sys_platform": "linux",
            "os_name": "posix",
            "platform_python_implementation": "CPython",
            "implementation_name": "cpython",
        }

    def pip_arguments(self) -> Iterator[str]:
        tags = [f"manylinux_2_{minor}" for minor in range(39, 4, -1)] + ["manylinux2014", "manylinux2010", "manylinux1"]
        yield from ("--implementation", "cp", "--python-version", self.python, "--only-binary=:all:")
        yield from itertools.chain.from_iterable(("--platform", f"{tag}_{self.machine}") for tag in (*tags, "linux"))


@dataclass(frozen=True)
class Wheel:
    """A file of a release for one target."""

    version: str
    sha256: str | None
    """Hash of the file; None: its index was not available."""
    requires: tuple[Requirement, ...]


@dataclass(frozen=True)
class Pin:
    """One line of a file."""

    version: str
    marker: str
    hashes: tuple[str, ...]


TARGETS = tuple(Target(python, machine) for python in PYTHONS for machine in MACHINES)


def top_level(role: str) -> list[Requirement]:
    """The requirements of Baton itself in an image."""
    project = PROJECT["project"]
    if role == "build":
        return [Requirement(text) for text in PROJECT["build-system"]["requires"]]
    requirements: list[Requirement] = [Requirement(text) for text in project["dependencies"]]
    extras = list(EXTRAS[role])
    for extra in extras:
        for requirement in map(Requirement, project["optional-dependencies"][extra]):
            if canonicalize_name(requirement.name) == canonicalize_name(project["name"]):
                extras += [more for more in requirement.extras if more not in extras]
            else:
                requirements.append(requirement)
    return requirements


class Index:
    """The configured package index, queried once for each file."""

    def __init__(self, pins: Mapping[str, str]) -> None:
        self._pins = pins
        self._known: dict[tuple[Target, str], Wheel] = {}

    def closure(self, role: str, target: Target) -> dict[str, Wheel]:
        """All wheels that a role needs on a target, by name. Raises RuntimeError for one that the index lacks."""
        wanted: dict[str, str] = {}
        extras: dict[str, set[str]] = {}
        wheels: dict[str, Wheel] = {}
        queue = [requirement for requirement in top_level(role) if _applies(requirement, target, {""})]
        while queue:
            for requirement in queue:
                name = canonicalize_name(requirement.name)
                extras.setdefault(name, {""}).update(requirement.extras)
                wanted.setdefault(name, self._exact(role, name, requirement))
            wheels = self._wheels(target, wanted)
            needed = [
                (canonicalize_name(requirement.name), requirement)
                for name, wheel in wheels.items()
                for requirement in wheel.requires
                if _applies(requirement, target, extras[name])
            ]
            queue = [
                requirement
                for name, requirement in needed
                if name not in wanted or not {*requirement.extras} <= extras[name]
            ]
        return wheels

    def query(self, target: Target, names: Iterable[str]) -> None:
        """Query pinned files ahead, all in one request; a target for which the index lacks one is skipped."""
        with contextlib.suppress(RuntimeError):
            self._wheels(target, {name: f"{name}=={self._pins[name]}" for name in names})

    def _exact(self, role: str, name: str, requirement: Requirement) -> str:
        if name == "torch":
            return f"torch=={self._pins[name]}+cpu" if role in CPU_TORCH else f"torch==={self._pins[name]}"
        if name in self._pins:
            return f"{name}=={self._pins[name]}"
        if not name.startswith(CUDA_PREFIXES):
            raise RuntimeError(f"{name} is needed by the image {role} and not pinned by constraints.txt")
        return f"{name}{requirement.specifier}"

    def _wheels(self, target: Target, wanted: Mapping[str, str]) -> dict[str, Wheel]:
        missing = [text for text in wanted.values() if (target, text) not in self._known]
        cpu = [text for text in missing if text.endswith("+cpu")]
        for name, wheel in self._query(target, [text for text in missing if text not in cpu]).items():
            self._known[target, wanted[name]] = wheel
        for text in cpu:
            self._known[target, text] = self._cpu_torch(target, text)
        return {name: self._known[target, text] for name, text in wanted.items()}

    def _cpu_torch(self, target: Target, text: str) -> Wheel:
        """A CPU build for one target; if its index has none, another target's without the hash."""
        try:
            return self._query(target, [text])["torch"]
        except RuntimeError:
            known = next((wheel for (_, requirement), wheel in self._known.items() if requirement == text), None)
            if known is None:
                known = self._query(TARGETS[0], [text])["torch"]
            return Wheel(known.version, None, known.requires)

    def _query(self, target: Target, requirements: list[str]) -> dict[str, Wheel]:
        if not requirements:
            return {}
        index = os.environ.get("TORCH_INDEX")
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            command = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--dry-run",
                "--ignore-installed",
                "--no-deps",
                "--quiet",
            ]
            command += ["--target", folder, "--report", str(report), *target.pip_arguments()]
            command += ["--extra-index-url", index] if index else []
            done = subprocess.run(
                [*command, *requirements], capture_output=True, text=True, timeout=DEADLINE_S, check=False
            )
            if done.returncode != 0:
                last = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
                raise RuntimeError(f"{target.python} on {target.machine}: {last}")
            installed = json.loads(report.read_text())["install"]
        return {
            canonicalize_name(item["metadata"]["name"]): Wheel(
                item["metadata"]["version"],
                item["download_info"]["archive_info"]["hashes"]["sha256"],
                tuple(map(Requirement, item["metadata"].get("requires_dist", ()))),
            )
            for item in installed
        }


def write(pins: Mapping[str, str], likely: Iterable[str]) -> None:
    """Write the file of each role. `likely`: names that are queried together, to save requests. Raises RuntimeError for
    a package that the index lacks."""
    index = Index(pins)
    for target in TARGETS:
        index.query(target, [name for name in likely if name != "torch"])
    for role in EXTRAS:
        by_target = {target: index.closure(role, target) for target in TARGETS}
        _file(role).write_text(HEADER.format(role=role) + "".join(_lines(by_target)))


def problems(pins: Mapping[str, str], needed: Mapping[str, set[str]]) -> list[str]:
    """Problems of all files, in words. `needed`: by role, the names of the packages that it needs on this machine.
    Raises ValueError for a line that is no pin."""
    return [
        f"images/{_file(role).name}: {problem}"
        for role in EXTRAS
        for problem in role_problems(role, read(_file(role).read_text()), pins, needed[role])
    ]


def read(text: str) -> dict[str, Pin]:
    """The pins of a file. Raises ValueError for a line that is no pin."""
    pins = {}
    for line in text.replace(" \\\n   ", "").splitlines():
        match = _LINE.fullmatch(line)
        if match is not None:
            pins[match[1]] = Pin(match[2], match[3] or "", tuple(match[4].replace("--hash=", "").split()))
        elif not line.startswith("#"):
            raise ValueError(f"{line[:80]!r} is no pin")
    return pins


def role_problems(role: str, written: Mapping[str, Pin], pins: Mapping[str, str], needed: set[str]) -> Iterator[str]:
    """Problems of the file of a role, in words. `written`: the pins in it; `pins`: those of constraints.txt."""
    yield from (f"{name} is needed and missing" for name in sorted(needed - written.keys()))
    for name, pin in written.items():
        is_of_cuda = role == "worker-cuda" and name.startswith(CUDA_PREFIXES)
        if not (name in needed or is_of_cuda or pin.marker):
            yield f"{name} is pinned and not needed"
        if not is_of_cuda and pin.version.partition("+")[0] != pins.get(name):
            yield f"{name}=={pin.version} is not what constraints.txt pins"
        if not pin.hashes and not (name == "torch" and role in CPU_TORCH):
            yield f"{name} has no hash"


def _file(role: str) -> Path:
    return ROOT / "images" / f"requirements-{role}.txt"


def _lines(by_target: Mapping[Target, Mapping[str, Wheel]]) -> Iterator[str]:
    for name in sorted({name for wheels in by_target.values() for name in wheels}):
        wheels = {target: closure[name] for target, closure in by_target.items() if name in closure}
        (version,) = {wheel.version for wheel in wheels.values()}
        marker = _marker(name, wheels)
        hashes = sorted({wheel.sha256 for wheel in wheels.values() if wheel.sha256 is not None})
        yield " \\\n    ".join([f"{name}=={version}{marker}", *(f"--hash=sha256:{digest}" for digest in hashes)]) + "\n"


def _marker(name: str, wheels: Iterable[Target]) -> str:
    """The marker of a package that some targets do not need. Raises RuntimeError for a mix of Pythons and machines."""
    targets = set(wheels)
    pythons, machines = {target.python for target in targets}, {target.machine for target in targets}
    if targets != {target for target in TARGETS if target.python in pythons and target.machine in machines}:
        raise RuntimeError(f"{name}: needed by some Pythons on some machines, which no marker here expresses")
    parts = [] if pythons == {*PYTHONS} else [f"python_version in '{' '.join(sorted(pythons))}'"]
    parts += [] if machines == {*MACHINES} else [f"platform_machine in '{' '.join(sorted(machines))}'"]
    return f" ; {' and '.join(parts)}" if parts else ""


def _applies(requirement: Requirement, target: Target, extras: Iterable[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({**target.environment, "extra": extra}) for extra in extras)
