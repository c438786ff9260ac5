"""Makes the environment of `make test-clients`, outside the repository, and prints its interpreter.

It is kept between runs and made anew when what it should hold changes. BATON_CLIENTS names another folder.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
REQUIREMENTS = HERE / "requirements.txt"
VLLM = "vllm==0.33.0"
"""Its benchmark is a client like the others; its engine is not wanted, and most of what it requires is for that."""
LIMIT_S = 3_600


def folder() -> Path:
    """Where the environment is, or will be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("BATON_CLIENTS") or cache / "baton" / "clients")


def requirements_stamp() -> str:
    """The content of a complete environment's stamp: a hash of what it requires."""
    return hashlib.sha256(REQUIREMENTS.read_bytes() + VLLM.encode()).hexdigest()


def interpreter() -> Path | None:
    """The interpreter of a complete environment; None: it has to be made."""
    stamp = folder() / "complete"
    return folder() / "bin" / "python" if stamp.exists() and stamp.read_text() == requirements_stamp() else None


def make() -> Path:
    """Make it. Raises subprocess.SubprocessError with what pip said on stderr."""
    venv.create(folder(), with_pip=True, clear=True)
    python = folder() / "bin" / "python"
    constraints = folder() / "constraints.txt"
    # The same care as for Baton's own environment: no gigabytes of CUDA where there is no driver.
    _run([str(python), str(ROOT / "scripts" / "install_torch.py"), "--constraints", str(constraints)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "--requirement", str(REQUIREMENTS)])
    _run([*pip, "--no-deps", VLLM])
    (folder() / "complete").write_text(requirements_stamp())
    return python


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr, timeout=LIMIT_S)


if __name__ == "__main__":
    print(interpreter() or make())
