"""Chooses a build of PyTorch for the environment that runs this, and installs it. Standard library only.

1. An installed one within the range of pyproject.toml stays.
2. With an NVIDIA driver, or TORCH=cuda: the ordinary wheel.
3. Otherwise a CPU build: from the configured indexes if they have one, else from TORCH_INDEX (by default PyTorch's).
A dry run (`pip install --dry-run`) shows first what a requirement would install, so that CUDA's gigabytes never come by
surprise.

`--is-kept` only answers, by its exit status, if this interpreter has a PyTorch that stays. `--constraints FILE` writes
constraints.txt there, with the lines for torch and triton that match the installed PyTorch.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
DRIVER = Path("/proc/driver/nvidia/version")
PROBE_S = 1800
"""An index without separate metadata makes pip fetch the whole wheel to look into it."""


class InstallError(Exception):
    """Nothing was installed; the message says what to do."""


@dataclass(frozen=True)
class Candidate:
    """A requirement for pip, and the index to install it from."""

    requirement: str
    index: str | None = None
    """None: the configured indexes."""

    def arguments(self) -> list[str]:
        return [self.requirement, *(["--index-url", self.index] if self.index else [])]


@dataclass(frozen=True)
class Release:
    """The release that pip would install for a candidate."""

    version: str
    requires: tuple[str, ...]

    @property
    def is_cuda(self) -> bool:
        """True for a CUDA build, by its local version or by its requirements on this platform."""
        local = self.version.partition("+")[2]
        return local.startswith("cu") or any(re.match(r"(nvidia|cuda)[-_]", require) for require in self.requires)


def candidates(pinned: str, wants_cuda: bool, index: str) -> tuple[Candidate, ...]:
    """The candidates, in order. `===` excludes builds with a local version such as +cpu."""
    if wants_cuda:
        return (Candidate(f"torch=={pinned}"), Candidate(f"torch==={pinned}"))
    configured = (Candidate(f"torch=={pinned}+cpu"), Candidate(f"torch=={pinned}"))
    return (*configured, Candidate(f"torch=={pinned}", index))


def choose(
    options: tuple[Candidate, ...], wants_cuda: bool, probe: Callable[[Candidate], Release | None]
) -> tuple[Candidate, Release] | None:
    """The first candidate that exists as the wanted kind of build."""
    for option in options:
        release = probe(option)
        if release is not None and release.is_cuda == wants_cuda:
            return option, release
    return None


def is_kept(installed: str | None, low: tuple[int, int], high: tuple[int, int], wish: str | None) -> bool:
    """True when an installed version stays: it is in the range, and no CPU build if `wish` is CUDA."""
    match = re.match(r"(\d+)\.(\d+)", installed or "")
    if match is None or installed is None or not low <= (int(match[1]), int(match[2])) < high:
        return False
    return not (wish == "cuda" and installed.endswith("+cpu"))


def constraint_lines(lines: list[str], torch: str, pinned: str) -> list[str]:
    """The constraints for an installed torch: exactly that one, and no pinned triton unless it is the pinned torch."""
    others = [line for line in lines if not line.startswith("torch==")]
    if torch.partition("+")[0] != pinned:
        others = [line for line in others if not line.startswith("triton==")]
    return [*others, f"torch=={torch}"]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--is-kept", action="store_true")
    parser.add_argument("--constraints", type=Path)
    options = parser.parse_args()
    wish = os.environ.get("TORCH") or None
    if wish not in (None, "cpu", "cuda"):
        raise InstallError(f"TORCH={wish} is not allowed: must be cpu or cuda")
    keeps = is_kept(_find_installed("torch"), *_range(), wish)
    if options.is_kept:
        return 0 if keeps else 1
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = next(line.partition("==")[2] for line in lines if line.startswith("torch=="))
    if keeps:
        print(f"make install: keeping PyTorch {_find_installed('torch')}")
    else:
        _install(pinned, wish == "cuda" or (wish is None and _has_driver()))
    if options.constraints:
        constraints = constraint_lines(lines, _find_installed("torch") or pinned, pinned)
        options.constraints.write_text("\n".join(constraints) + "\n", encoding="utf-8")
    return 0


def _install(pinned: str, wants_cuda: bool) -> None:
    index = os.environ.get("TORCH_INDEX") or PYTORCH_CPU_INDEX
    kind = "CUDA" if wants_cuda else "CPU"
    chosen = choose(candidates(pinned, wants_cuda, index), wants_cuda, _probe)
    if chosen is None:
        where = "in the configured package indexes" + ("" if wants_cuda else f" or at {index}")
        other = (
            "TORCH=cpu"
            if wants_cuda
            else "TORCH_INDEX=URL for another index, or TORCH=cuda for the CUDA build (several GB)"
        )
        version = ".".join(map(str, sys.version_info[:2]))
        raise InstallError(f"found no {kind} build of torch {pinned} for Python {version} {where}; set {other}")
    candidate, release = chosen
    print(f"make install: PyTorch {release.version} ({kind} build)", flush=True)
    # A CPU build's few dependencies come with everything else, from the configured indexes and pinned.
    alone = [] if wants_cuda else ["--no-deps"]
    _pip(["--quiet", "--force-reinstall", *alone, *candidate.arguments()], timeout_s=None)


def _probe(candidate: Candidate) -> Release | None:
    report = ["--dry-run", "--no-deps", "--ignore-installed", "--quiet", "--report", "-"]
    result = _pip([*report, *candidate.arguments()], timeout_s=PROBE_S, check=False)
    if result.returncode != 0:
        return None
    metadata = json.loads(result.stdout)["install"][0]["metadata"]
    return Release(metadata["version"], tuple(filter(_applies, metadata.get("requires_dist", []))))


def _applies(requirement: str) -> bool:
    """True for a requirement of this platform without an extra."""
    from pip._vendor.packaging.requirements import Requirement

    marker = Requirement(requirement).marker
    return marker is None or bool(marker.evaluate({"extra": ""}))


def _pip(arguments: list[str], timeout_s: float | None, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if check and result.returncode != 0:
        raise InstallError(f"pip failed:\n{result.stderr.strip()}")
    return result


def _find_installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _range() -> tuple[tuple[int, int], tuple[int, int]]:
    """The torch versions that pyproject.toml admits: at least, and less than."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(r'"torch>=(\d+)\.(\d+),<(\d+)\.(\d+)"', text)
    assert match is not None, "pyproject.toml names a range for torch"
    low_major, low_minor, high_major, high_minor = map(int, match.groups())
    return (low_major, low_minor), (high_major, high_minor)


def _has_driver() -> bool:
    return DRIVER.exists() or shutil.which("nvidia-smi") is not None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InstallError as error:
        print(f"make install: {error}", file=sys.stderr)
        sys.exit(1)
