"""Makes the environments of `make test-clients`, outside the repository, and prints their interpreters.

They are kept between runs and made anew when what they should hold changes. BATON_CLIENTS, BATON_AGENTS,
BATON_FRAMEWORKS and BATON_EMBEDDINGS name other folders.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VLLM = "vllm==0.33.0"
"""Its benchmark is a client like the others; its engine is not wanted, and most of what it requires is for that."""
LIMIT_S = 3_600


@dataclass(frozen=True)
class Environment:
    """One environment: its folder's name, its requirements, and what is installed without requirements of its own."""

    name: str
    requirements: Path
    alone: tuple[str, ...] = ()
    needs_torch: bool = False

    @property
    def folder(self) -> Path:
        """Where the environment is, or will be."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return Path(os.environ.get(f"BATON_{self.name.upper()}") or cache / "baton" / self.name)

    @property
    def stamp(self) -> str:
        """The content of a complete environment's stamp: a hash of what it requires."""
        return hashlib.sha256(self.requirements.read_bytes() + "".join(self.alone).encode()).hexdigest()

    def interpreter(self) -> Path | None:
        """The interpreter of a complete environment; None: it has to be made."""
        stamp = self.folder / "complete"
        return self.folder / "bin" / "python" if stamp.exists() and stamp.read_text() == self.stamp else None

    def make(self) -> Path:
        """Create the environment. Raises subprocess.SubprocessError; pip's output is on stderr."""
        venv.create(self.folder, with_pip=True, clear=True)
        python = self.folder / "bin" / "python"
        if self.needs_torch:  # the same care as for Baton's own: no gigabytes of CUDA where there is no driver
            constraints = self.folder / "constraints.txt"
            _run([str(python), str(ROOT / "scripts" / "install_torch.py"), "--constraints", str(constraints)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "--requirement", str(self.requirements)])
        for package in self.alone:
            _run([*pip, "--no-deps", package])
        (self.folder / "complete").write_text(self.stamp)
        return python


CLIENTS = Environment("clients", HERE / "requirements.txt", (VLLM,), needs_torch=True)
AGENTS = Environment("agents", HERE / "agents.txt")
FRAMEWORKS = Environment("frameworks", HERE / "frameworks.txt")
EMBEDDINGS = Environment("embeddings", HERE / "embeddings.txt")
ALL = (CLIENTS, AGENTS, FRAMEWORKS, EMBEDDINGS)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr, timeout=LIMIT_S)


if __name__ == "__main__":
    for made in ALL:
        print(made.interpreter() or made.make())
